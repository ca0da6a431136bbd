"""What a GPU costs, for whoever asks for some. The portal knows no prices; billing says what it knows when it starts:

portal.costs.price_gpus_with(gpu_prices)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from portal.models import Appcode

# A month of a forecast has 730 hours, as price lists reckon.
HOURS = 730


@dataclass(frozen=True)
class GpuPrices:
    """The cheapest and the dearest GPU for an hour at today's prices; money in settings.CURRENCY, unrounded."""

    low: Decimal
    high: Decimal

    @property
    def high_month(self) -> Decimal:
        return self.high * HOURS


Pricer = Callable[[Appcode | None], GpuPrices | None]

_pricers: list[Pricer] = []


def price_gpus_with(pricer: Pricer) -> None:
    _pricers[:] = [pricer]


def gpu_prices(appcode: Appcode | None) -> GpuPrices | None:
    """For an appcode, None: for one without special prices. None where there is no price."""
    return _pricers[0](appcode) if _pricers else None
