"""What the apps above tell the portal, which may not import them: each registers what it knows once, in `AppConfig.ready`.

A hook that nobody has registered for is empty, and what would be shown of it is left out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Generic, TypeVar

from django.db import transaction
from django.db.models import QuerySet
from prometheus_client.core import Metric

from portal.models import Appcode, User

T = TypeVar("T")
# A month of a forecast has 730 hours, as price lists reckon.
HOURS = 730
NEWS_AT_ONCE, NEWS_OF_A_MOMENT = 10, 150


class Hook(Generic[T]):
    """What was registered, in that order. Registering the same again changes nothing."""

    def __init__(self, *found: T) -> None:
        self._found = list(found)

    def add(self, what: T) -> None:
        if what not in self._found:
            self._found.append(what)

    def __iter__(self) -> Iterator[T]:
        return iter(self._found)

    @property
    def only(self) -> T | None:
        """Of a hook to which one app at most has the answer."""
        return next(iter(self._found), None)


@dataclass(frozen=True)
class GpuPrices:
    """The cheapest and the dearest GPU for an hour at today's prices; money in settings.CURRENCY, unrounded."""

    low: Decimal
    high: Decimal

    @property
    def high_month(self) -> Decimal:
        return self.high * HOURS


@dataclass(frozen=True)
class GpuUse:
    """GPUs held now by runs of some appcodes; `simulated` when they are no real GPUs, which every page says."""

    in_use: int
    simulated: bool = False


@dataclass(frozen=True)
class Hit:
    """One thing found: its name, a line about it, its page."""

    title: str
    note: str
    url: str


@dataclass(frozen=True)
class News:
    """That a run has come to a phase: told once, by `key`."""

    key: str
    at: dt.datetime
    title: str
    text: str
    url: str


@dataclass(frozen=True)
class Step:
    """Something to set up: whether that is done, and where it is done ("": in the environment of the portal)."""

    title: str
    done: bool
    url: str


# What is to be set up, in its order.
steps: Hook[Callable[[], Iterable[Step]]] = Hook()
# Sentences about the machines that everybody should know.
notes: Hook[Callable[[], Iterable[str]]] = Hook()
# A title ("Clusters"), and a function (user, words, limit) to at most so many hits that the user may see.
searches: Hook[tuple[str, Callable[[User, str, int], list[Hit]]]] = Hook()
# What has happened to runs of a person since a time, the oldest first, at most NEWS_AT_ONCE and
# NEWS_OF_A_MOMENT more of the last one's time: phases are those in small letters.
news: Hook[Callable[[User, Collection[str], dt.datetime], list[News]]] = Hook()
# GPUs that some appcodes hold now; asked at most once in some seconds for each person.
gpu_use: Hook[Callable[[QuerySet[Appcode]], GpuUse]] = Hook()
# What a GPU costs an appcode; None: one without special prices. None where there is no price.
gpu_prices: Hook[Callable[[Appcode | None], GpuPrices | None]] = Hook()
# Mail, in the transaction of what it tells about: key (what it is about, once for ever), id of the appcode (None of what is about
# none), subject, text, and addresses; none: the notification addresses of the appcode.
mail: Hook[Callable[[str, int | None, str, str, Sequence[str]], None]] = Hook()
# The monthly budgets of some appcodes, by their ids; those without one are left out.
budgets: Hook[Callable[[Collection[int]], Mapping[int, Decimal]]] = Hook()
# Makes an amount the monthly budget of an appcode, as an administrator approved it, in the transaction of the approval.
grant_budget: Hook[Callable[[Appcode, Decimal, User], None]] = Hook()
# What has to be looked at again when an appcode, by its id, may use more or has come back; called after the commit.
given: Hook[Callable[[int], None]] = Hook()
# GiB of the volumes of some appcodes, by their codes; those without any are left out.
volumes_gib: Hook[Callable[[Collection[str]], Mapping[str, int]]] = Hook()
# All GPUs that there are.
gpu_pool: Hook[Callable[[], int]] = Hook()
# Families of metrics, in a number of queries that does not depend on how much there is.
metrics: Hook[Callable[[], Iterable[Metric]]] = Hook()
# Networks to which nobody's data may lead, besides those of settings.
closed_networks: Hook[Callable[[], Iterable[str]]] = Hook()


def gpu_prices_of(appcode: Appcode | None) -> GpuPrices | None:
    return price(appcode) if (price := gpu_prices.only) else None


def tell_given(appcode: int) -> None:
    """In the transaction that gives it."""
    for tell in given:
        transaction.on_commit(partial(tell, appcode))


def budgets_of(appcodes: Collection[int]) -> Mapping[int, Decimal]:
    return found(appcodes) if (found := budgets.only) else {}
