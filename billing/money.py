"""Exact money and metered amounts, and their rounding. Pure.

A charge is a whole number of UNITs, so that a month equals the sum of its days whatever the prices. It is rounded once,
half to even, for display or for an invoice line.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

SECONDS_PER_HOUR = 3600
PRECISION = 28
EXACTLY = Context(prec=PRECISION, rounding=ROUND_HALF_EVEN)
# Precise enough for every product of a quantity, a price and a percentage.
WIDE = Context(prec=100)
# Charges are whole multiples of 1/UNIT of the currency (times the decimals of prices). In it a second of a GPU, of a
# thousandth of a core or of a MiB at an hourly price is exact; a division by 3600 would not be.
UNIT = SECONDS_PER_HOUR * 128_000
# UNITs for one unit-second at a price of 1 per hour: per GPU, per thousandth of a core, per MiB.
WORTH = {
    "gpu": UNIT // 3600,
    "cpu": UNIT // 3600 // 1000,
    "memory": UNIT // 3600 // 1024,
    "storage": UNIT // 3600 // 1024,
}
# Metered units per priced unit: cores and GiB.
SIZE = {"gpu": 1, "cpu": 1000, "memory": 1024, "storage": 1024}
# Classes of GPU time with SKUs of their own: "spare-gpu:A100" begins with the class, and the rest is the SKU of the same GPU.
# Spare GPUs may be taken back at any moment and never cost more than the same GPU; urgent ones come first and never cost less.
SPARE, URGENT = "spare", "urgent"
CLASSES = (SPARE, URGENT)
# Order of display.
ORDER = {"gpu": 0, "cpu": 1, "memory": 2, "storage": 3}
TITLES = {"gpu": "GPU", "cpu": "CPU", "memory": "Memory", "storage": "Storage"}
UNITS = {"gpu": "GPU-hours", "cpu": "core-hours", "memory": "GiB-hours", "storage": "GiB-hours"}


@dataclass(frozen=True)
class Used:
    """GPU-seconds, and a charge in UNITs. Both are exact, so parts add up to the whole."""

    gpu_seconds: int = 0
    charge: Decimal = Decimal(0)

    def __add__(self, other: Used) -> Used:
        return Used(self.gpu_seconds + other.gpu_seconds, self.charge + other.charge)

    @property
    def cost(self) -> Decimal:
        return money(self.charge)

    @property
    def gpu_hours(self) -> Decimal:
        return Decimal(self.gpu_seconds) / SECONDS_PER_HOUR

    def of(self, measure: str) -> Decimal:
        """Its value in a chart of "hours" or "cost"."""
        return self.gpu_hours if measure == "hours" else self.cost


def class_of(sku: str) -> str:
    """ "spare" for "spare-gpu:A100", "urgent" for "urgent-gpu:A100", otherwise ""."""
    found, _, gpu = sku.partition("-")
    return found if found in CLASSES and gpu.startswith("gpu") else ""


def unclassed(sku: str) -> str:
    """The SKU of the same GPU without a class."""
    return sku.removeprefix(f"{each}-") if (each := class_of(sku)) else sku


def family(sku: str) -> str:
    """ "gpu" for "gpu:A100" and "spare-gpu:A100"; otherwise the SKU itself."""
    return unclassed(sku).partition(":")[0]


def model_of(sku: str) -> str:
    """The GPU model that a SKU names, or ""."""
    return sku.partition(":")[2]


def title(sku: str) -> str:
    """The display name: "GPU A100" for "gpu:A100", "GPU A100, spare" for "spare-gpu:A100", "Memory" for "memory"."""
    kind = family(sku)
    named = f"{TITLES.get(kind, kind)} {model_of(sku)}".strip()
    return f"{named}, {of}" if (of := class_of(sku)) else named


def wider(sku: str) -> tuple[str, ...]:
    """The SKU and those that include it, nearest first: "spare-gpu:A100", "spare-gpu", "gpu:A100", "gpu"."""
    own = tuple(dict.fromkeys([sku, sku.partition(":")[0]]))
    return (*own, *wider(unclassed(sku))) if class_of(sku) else own


def discounted(sku: str) -> tuple[str, ...]:
    """What a discount on the SKU may name. One on urgent GPUs alone would make them cheaper than the same GPUs."""
    return ("*", *wider(unclassed(sku) if class_of(sku) == URGENT else sku))


def money(charge: Decimal) -> Decimal:
    """Converts a charge in UNITs to money."""
    return decimal(Fraction(charge) / UNIT)


def decimal(value: Fraction) -> Decimal:
    return EXACTLY.divide(Decimal(value.numerator), Decimal(value.denominator))


def display(amount: Decimal, digits: int = 2) -> Decimal:
    """Rounds an amount for display, half to even."""
    return amount.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_EVEN)


def cents(charge: Decimal) -> Decimal:
    """Converts a charge to cents, rounded once (half to even) from the exact fraction."""
    return Decimal(round(Fraction(charge) * 100 / UNIT)).scaleb(-2)


def hours(sku: str, quantity: int) -> Decimal:
    """Unit-seconds as GPU-, core- or GiB-hours."""
    return WIDE.divide(Decimal(quantity), Decimal(SECONDS_PER_HOUR * SIZE[family(sku)]))


def unit_seconds(sku: str, quantity: int) -> str:
    """A quantity of the ledger in words, exactly: "31,065,195 GPU-seconds", "0.5 core-seconds"."""
    whole, _, decimals = f"{Decimal(quantity) / SIZE[family(sku)]:,f}".partition(".")
    digits = decimals.rstrip("0")
    return f"{whole}{'.' if digits else ''}{digits} {UNITS[family(sku)].removesuffix('hours')}seconds"


def price_text(per_hour: Decimal) -> str:
    """All its digits, at least two decimals: "1.20", "0.000137"."""
    whole, _, decimals = f"{per_hour.normalize():,f}".partition(".")
    return f"{whole}.{decimals:0<2}"
