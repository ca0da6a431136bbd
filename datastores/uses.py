"""Who uses a datastore. This app does not know what clusters are; whoever mounts datastores registers a finder.

A finder gets datastores (with their appcodes joined) and answers what uses each of them, by primary key, in one query or two.
It is registered once, in `AppConfig.ready`:

    datastores.uses.add(clusters_that_use)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from datastores.models import Datastore


@dataclass(frozen=True)
class Use:
    """One user of a datastore: what people call it ("show1") and its page."""

    name: str
    url: str


Finder = Callable[[Sequence[Datastore]], Mapping[int, Sequence[Use]]]

_finders: list[Finder] = []


def add(finder: Finder) -> None:
    if finder not in _finders:
        _finders.append(finder)


def uses_of(stores: Sequence[Datastore]) -> dict[int, list[Use]]:
    """Everything that uses each of `stores`, by primary key; an unused one has an empty list."""
    found: dict[int, list[Use]] = {store.pk: [] for store in stores}
    for finder in _finders if stores else ():
        for pk, uses in finder(stores).items():
            found[pk].extend(uses)
    return found
