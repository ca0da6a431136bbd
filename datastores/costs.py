"""What a volume costs. This app does not know prices; whoever does registers an estimate, once, in `AppConfig.ready`:

datastores.costs.estimate_with(per_hour)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from datastores.specs import size_bytes
from portal.models import Appcode

# A month of a forecast has 730 hours, as price lists reckon.
HOURS = 730

Estimator = Callable[[Appcode, str], Decimal]

_estimators: list[Estimator] = []


@dataclass(frozen=True)
class Estimate:
    """Of `size` for an hour; money in settings.CURRENCY, unrounded."""

    size: str
    per_hour: Decimal

    @property
    def per_month(self) -> Decimal:
        return self.per_hour * HOURS


def estimate_with(estimator: Estimator) -> None:
    _estimators[:] = [estimator]


def estimate(appcode: Appcode, size: str) -> Estimate | None:
    """None where nobody knows prices, and for what is no size."""
    try:
        size_bytes(size)
    except ValueError:
        return None
    return Estimate(size, _estimators[0](appcode, size)) if _estimators else None
