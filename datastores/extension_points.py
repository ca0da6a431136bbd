"""Where the apps above, which this app may not import, register facts: users of a datastore, errors of clouds, prices
of volumes. Each registers once, in `AppConfig.ready`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from datastores.files.retention import Held, Output
from datastores.models import Datastore
from datastores.specs import DatastoreSpec, size_bytes
from portal.errors import FieldError
from portal.extension_points import HOURS, ExtensionPoint
from portal.models import Appcode


@dataclass(frozen=True)
class Use:
    """One user of a datastore: its display name ("show1"), its page, and whether it stores files there."""

    name: str
    url: str
    writes: bool = False


@dataclass(frozen=True)
class Estimate:
    """The hourly price of a volume of `size`, in settings.CURRENCY, unrounded."""

    size: str
    per_hour: Decimal

    @property
    def per_month(self) -> Decimal:
        return self.per_hour * HOURS


# The users of these datastores (with their appcodes joined) by primary key, in one or two queries.
finders: ExtensionPoint[Callable[[Sequence[Datastore]], Mapping[int, Sequence[Use]]]] = ExtensionPoint()
# Errors of a datastore on the clouds of an appcode, with manifest paths.
judges: ExtensionPoint[Callable[[Appcode, DatastoreSpec], Sequence[FieldError]]] = ExtensionPoint()
# The hourly price of a volume of this size for an appcode.
volume_prices: ExtensionPoint[Callable[[Appcode, str], Decimal]] = ExtensionPoint()
# Yields the folders of a datastore that any run ever wrote to.
outputs: ExtensionPoint[Callable[[Datastore], Iterable[Output]]] = ExtensionPoint()
# What wrote into this folder of a datastore.
writers: ExtensionPoint[Callable[[Datastore, str], Use | None]] = ExtensionPoint()
# The folders of a datastore that unfinished runs read or write.
in_use: ExtensionPoint[Callable[[Datastore], Sequence[Held]]] = ExtensionPoint()


def uses_of(stores: Sequence[Datastore]) -> dict[int, list[Use]]:
    """All users of each of `stores`, by primary key; an unused one has an empty list."""
    found: dict[int, list[Use]] = {store.pk: [] for store in stores}
    for finder in finders if stores else ():
        for pk, uses in finder(stores).items():
            found[pk].extend(uses)
    return found


def writer_of(store: Datastore, folder: str) -> Use | None:
    return next(filter(None, (writer(store, folder) for writer in writers)), None) if folder else None


def wrongs(appcode: Appcode, spec: DatastoreSpec) -> list[FieldError]:
    return [wrong for judge in judges for wrong in judge(appcode, spec)]


def estimate(appcode: Appcode, size: str) -> Estimate | None:
    """None if there are no prices or the size is invalid."""
    try:
        size_bytes(size)
    except ValueError:
        return None
    price = volume_prices.only
    return Estimate(size, price(appcode, size)) if price else None
