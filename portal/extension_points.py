"""Where the apps above, which the portal may not import, register facts that it shows. Each registers once, in
`AppConfig.ready`. Pages leave out what nobody registered for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, Generic, TypeVar

from django.db import transaction
from django.db.models import QuerySet
from django.templatetags.static import static
from django.utils.text import slugify
from prometheus_client.core import Metric

from portal.models import Appcode, User
from portal.search import Hit, Kind

T = TypeVar("T")
# Hours of a month in price lists.
HOURS = 730
NEWS_AT_ONCE, NEWS_OF_A_MOMENT = 10, 150


class ExtensionPoint(Generic[T]):
    """Registered values in order. Registering a value again changes nothing."""

    def __init__(self, *found: T) -> None:
        self._found = list(found)

    def add(self, what: T) -> None:
        if what not in self._found:
            self._found.append(what)

    def __iter__(self) -> Iterator[T]:
        return iter(self._found)

    @property
    def only(self) -> T | None:
        """The value of a point that at most one app registers for."""
        return next(iter(self._found), None)


@dataclass(frozen=True)
class GpuPrices:
    """The hourly price of the cheapest and of the most expensive GPU now, in settings.CURRENCY, unrounded."""

    low: Decimal
    high: Decimal

    @property
    def high_month(self) -> Decimal:
        return self.high * HOURS


@dataclass(frozen=True)
class GpuUse:
    """GPUs held now by runs of some appcodes; every page shows if they are `simulated`."""

    in_use: int
    simulated: bool = False


@dataclass(frozen=True)
class News:
    """Something that happened. Browsers show it once for each `key`; the bell's are the verbs of events, like run.failed."""

    key: str
    at: dt.datetime
    title: str
    text: str
    url: str


@dataclass(frozen=True)
class Told:
    """A kind of thing that the bell tells: `rows` that concern a user and that they may see, the column that says when each
    happened, and its words. A row without a time is not told."""

    name: str
    rows: Callable[[User], QuerySet[Any]]
    at: str
    news: Callable[[Any], News]


@dataclass(frozen=True)
class Picture:
    """A picture of static/portal/pictures/, which `make pictures` makes, and what it shows, for whom cannot see it."""

    name: str
    shows: str

    @property
    def url(self) -> str:
        return static(f"portal/pictures/{self.name}.webp")


@dataclass(frozen=True)
class Step:
    """A step of setting the portal up, or of a person's first hour: whether it is done, its page ("": it is done in the portal's
    environment), how it is done, and how that looks."""

    title: str
    done: bool
    url: str
    how: str = ""
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """How a program does something: what it is called, a sentence or two, and lines to copy."""

    title: str
    text: str
    code: str

    @property
    def anchor(self) -> str:
        return slugify(self.title)


# The set-up steps, in order.
steps: ExtensionPoint[Callable[[], Iterable[Step]]] = ExtensionPoint()
# What a new person tries first, in order.
first_hour: ExtensionPoint[Callable[[User], Iterable[Step]]] = ExtensionPoint()
# What programs of users can do, in order.
recipes: ExtensionPoint[Recipe] = ExtensionPoint()
# Sentences about the machines that every user should know.
notes: ExtensionPoint[Callable[[], Iterable[str]]] = ExtensionPoint()
# The kinds of objects that the search finds, in the order of equally good hits.
kinds: ExtensionPoint[Kind] = ExtensionPoint()
# Pages that a whole text means as it was typed ("compare a b"), in a number of queries that does not depend on rows.
sentences: ExtensionPoint[Callable[[User, str], Iterable[Hit]]] = ExtensionPoint()
# Changes of phase of a user's runs since a time, oldest first: at most NEWS_AT_ONCE, plus up to NEWS_OF_A_MOMENT with
# the last one's time. Phases are lower case.
news: ExtensionPoint[Callable[[User, Collection[str], dt.datetime], list[News]]] = ExtensionPoint()
# What the bell tells besides decisions about appcodes.
told: ExtensionPoint[Told] = ExtensionPoint()
# GPUs held now by some appcodes; called at most once every few seconds per user.
gpu_use: ExtensionPoint[Callable[[QuerySet[Appcode]], GpuUse]] = ExtensionPoint()
# GPU prices for an appcode (None: one without special prices); returns None without any price.
gpu_prices: ExtensionPoint[Callable[[Appcode | None], GpuPrices | None]] = ExtensionPoint()
# Queues mail in the transaction it reports on: unique key, appcode id (or None), subject, text, and addresses (none:
# the appcode's notification addresses).
mail: ExtensionPoint[Callable[[str, int | None, str, str, Sequence[str]], None]] = ExtensionPoint()
# Monthly budgets by appcode id; appcodes without one are left out.
budgets: ExtensionPoint[Callable[[Collection[int]], Mapping[int, Decimal]]] = ExtensionPoint()
# Sets the monthly budget that an administrator approved, in the transaction of the approval.
grant_budget: ExtensionPoint[Callable[[Appcode, Decimal, User], None]] = ExtensionPoint()
# Called after the commit, with the appcode's id, when an appcode gets more quota or is enabled again.
given: ExtensionPoint[Callable[[int], None]] = ExtensionPoint()
# GiB of volumes by appcode code; appcodes without volumes are left out.
volumes_gib: ExtensionPoint[Callable[[Collection[str]], Mapping[str, int]]] = ExtensionPoint()
# The number of all GPUs.
gpu_pool: ExtensionPoint[Callable[[], int]] = ExtensionPoint()
# Metric families, in a number of queries that does not depend on the number of rows.
metrics: ExtensionPoint[Callable[[], Iterable[Metric]]] = ExtensionPoint()
# Networks closed to user data, besides those of the settings.
closed_networks: ExtensionPoint[Callable[[], Iterable[str]]] = ExtensionPoint()


def gpu_prices_of(appcode: Appcode | None) -> GpuPrices | None:
    return price(appcode) if (price := gpu_prices.only) else None


def tell_given(appcode: int) -> None:
    """Calls those registered for `given` at the commit of the current transaction."""
    for tell in given:
        transaction.on_commit(partial(tell, appcode))


def budgets_of(appcodes: Collection[int]) -> Mapping[int, Decimal]:
    return found(appcodes) if (found := budgets.only) else {}
