"""Who issues invoices, to whom, with which tax and until when they are due: what administrators set, and the `Terms` of one
invoice. Pure.

A closed invoice keeps its own terms, so a change is on later invoices only. Without any, an invoice is what companies charge
their own teams by: no issuer, no tax.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from portal.manifests import Manifest, Strict, stripped
from portal.manifests.appcode import Line, OrgPath, decimal_text

CENT = Decimal("0.01")
MOST_LINES, MOST_ADDRESSES = 8, 1000


def _lines(value: str) -> str:
    lines = [" ".join(line.split()) for line in value.splitlines()]
    found = [line for line in lines if line]
    if len(found) > MOST_LINES:
        raise ValueError(f"At most {MOST_LINES} lines.")
    if not all(line.isprintable() for line in found):
        raise ValueError("Use printable characters only.")
    return "\n".join(found)


def _percent(value: Decimal) -> Decimal:
    if not value.is_finite() or not 0 <= value <= 100 or value != value.quantize(CENT):
        raise ValueError("Give a percentage from 0 to 100, with two decimals at most.")
    return value


Block = Annotated[str, StringConstraints(max_length=500), BeforeValidator(stripped), AfterValidator(_lines)]
Percent = Annotated[
    Decimal, BeforeValidator(decimal_text), Field(max_digits=20, examples=["19.00"]), AfterValidator(_percent)
]


class Tax(Strict):
    """Added to what an invoice asks for."""

    name: Annotated[Line, StringConstraints(max_length=40)] = Field(default="", examples=["VAT"])
    percent: Percent = Decimal(0)


class InvoicingSpec(Strict):
    issuer: Block = Field(
        default="",
        description="Legal name and address, one line each.",
        examples=["Example AI Ltd.\n1 Main Street\nDublin 2"],
    )
    tax_number: Annotated[Line, StringConstraints(max_length=60)] = Field(
        default="", description="The issuer's.", examples=["IE1234567T"]
    )
    tax: Tax = Tax()
    payment: Block = Field(
        default="", description="How to pay: a bank account, say.", examples=["IBAN IE12 BOFI 9000 0112 3456 78"]
    )
    due_days: Annotated[int, Field(ge=0, le=365)] | None = Field(
        default=None, description="Days from the closing until it is due; null: no date."
    )
    bill_to: Annotated[dict[OrgPath, Block], Field(max_length=MOST_ADDRESSES)] = Field(
        default={},
        description="Legal names, addresses and tax numbers of business lines; those below one inherit its.",
        examples=[{"example.research": "Example Research GmbH\nHauptstr. 1\n10115 Berlin\nDE123456789"}],
    )


class InvoicingManifest(Manifest):
    kind: Literal["invoicing"] = "invoicing"
    spec: InvoicingSpec


@dataclass(frozen=True)
class Terms:
    """Those of one invoice. Empty text: not stated."""

    issuer: str = ""
    tax_number: str = ""
    tax_name: str = ""
    tax_percent: Decimal = Decimal(0)
    payment: str = ""
    due_on: dt.date | None = None
    bill_to: str = ""

    def tax(self, amount: Decimal) -> Decimal:
        """The tax on an amount, rounded once, half to even."""
        return (amount * self.tax_percent / 100).quantize(CENT, rounding=ROUND_HALF_EVEN)

    def facts(self) -> dict[str, Any]:
        """For the hashed document and the database."""
        return {
            "issuer": self.issuer,
            "taxNumber": self.tax_number,
            "tax": {"name": self.tax_name, "percent": f"{self.tax_percent:.2f}"},
            "payment": self.payment,
            "dueOn": self.due_on.isoformat() if self.due_on else None,
            "billTo": self.bill_to,
        }

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> Terms:
        due = facts["dueOn"]
        return cls(
            facts["issuer"], facts["taxNumber"], facts["tax"]["name"], Decimal(facts["tax"]["percent"]), facts["payment"],
            dt.date.fromisoformat(due) if due else None, facts["billTo"],
        )  # fmt: skip


def terms_of(spec: InvoicingSpec, business_line: str, closed_on: dt.date) -> Terms | None:
    """The terms of an invoice to a business line; None if nothing is set."""
    due_on = None if spec.due_days is None else closed_on + dt.timedelta(days=spec.due_days)
    found = Terms(
        spec.issuer, spec.tax_number, spec.tax.name, spec.tax.percent, spec.payment, due_on, _address(spec, business_line)
    )  # fmt: skip
    return found if any(asdict(found).values()) else None


def _address(spec: InvoicingSpec, business_line: str) -> str:
    """That of the line itself or of the nearest above it."""
    parts = business_line.split(".")
    for length in range(len(parts), 0, -1):
        if found := spec.bill_to.get(".".join(parts[:length])):
            return found
    return ""
