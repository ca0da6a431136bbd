"""What the apps above tell this one, which may not import them: who uses a datastore, what a cloud says to one, what a volume
costs. Each registers what it knows once, in `AppConfig.ready`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from datastores.models import Datastore
from datastores.retention import Held, Output
from datastores.specs import DatastoreSpec, size_bytes
from portal.errors import FieldError
from portal.hooks import HOURS, Hook
from portal.models import Appcode


@dataclass(frozen=True)
class Use:
    """One user of a datastore: what people call it ("show1") and its page."""

    name: str
    url: str


@dataclass(frozen=True)
class Estimate:
    """Of a volume of `size` for an hour; money in settings.CURRENCY, unrounded."""

    size: str
    per_hour: Decimal

    @property
    def per_month(self) -> Decimal:
        return self.per_hour * HOURS


# What uses each of some datastores (with their appcodes joined), by primary key, in one query or two.
finders: Hook[Callable[[Sequence[Datastore]], Mapping[int, Sequence[Use]]]] = Hook()
# What is wrong with a datastore on the clouds of an appcode, with paths as in the manifest.
judges: Hook[Callable[[Appcode, DatastoreSpec], Sequence[FieldError]]] = Hook()
# What a volume of a size costs an appcode for an hour.
volume_prices: Hook[Callable[[Appcode, str], Decimal]] = Hook()
# The folders of a datastore that runs wrote to, of all that ever were, one by one.
outputs: Hook[Callable[[Datastore], Iterable[Output]]] = Hook()
# The folders of a datastore that runs which are not over read or write.
in_use: Hook[Callable[[Datastore], Sequence[Held]]] = Hook()


def uses_of(stores: Sequence[Datastore]) -> dict[int, list[Use]]:
    """Everything that uses each of `stores`, by primary key; an unused one has an empty list."""
    found: dict[int, list[Use]] = {store.pk: [] for store in stores}
    for finder in finders if stores else ():
        for pk, uses in finder(stores).items():
            found[pk].extend(uses)
    return found


def wrongs(appcode: Appcode, spec: DatastoreSpec) -> list[FieldError]:
    return [wrong for judge in judges for wrong in judge(appcode, spec)]


def estimate(appcode: Appcode, size: str) -> Estimate | None:
    """None where nobody knows prices, and for what is no size."""
    try:
        size_bytes(size)
    except ValueError:
        return None
    price = volume_prices.only
    return Estimate(size, price(appcode, size)) if price else None
