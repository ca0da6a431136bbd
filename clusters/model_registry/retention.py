"""The retention rule of a model: which versions go by themselves, and why each other one stays. Pure.

The newest that are Ready stay, and with `days` those that are younger; of the others whatever somebody uses, names or may go
back to. So a preview and what is done by the rule are one decision, made twice. A number of versions has to be said, so no rule
leaves a model without one that can be served: a rule of days alone, which would have let all go while nobody trains, was refused.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field

from portal.manifests import Strict

READY, PENDING = "Ready", "Pending"


class RetentionSpec(Strict):
    """What stays of a model; all else goes."""

    keep: int = Field(
        ge=1,
        le=1000,
        description="How many of the newest versions stay. Those that are not Ready count for none.",
        examples=[10],
    )
    days: int | None = Field(
        default=None,
        ge=1,
        le=3650,
        description="So many days a version stays after it was registered, and after an alias has named it. null: none.",
        examples=[30],
    )

    @property
    def words(self) -> str:
        """As people would say it: "Keep the last 10 versions, and all of the last 30 days"."""
        last = f"{self.keep} versions" if self.keep != 1 else "version"
        more = ""
        if self.days is not None:
            more = f", and all of the last {self.days} days" if self.days != 1 else ", and all of the last day"
        return f"Keep the last {last}{more}"


@dataclass(frozen=True)
class Found:
    """A version: `state` is that of its files, `size` their bytes."""

    number: int
    state: str
    registered: dt.datetime
    size: int


@dataclass(frozen=True)
class Named:
    """That `alias` names a version (`until` None), or named it last until then. `goes_back`: it names another one now, and this
    was the one before, to which people roll back."""

    number: int
    alias: str
    until: dt.datetime | None
    goes_back: bool = False


@dataclass(frozen=True)
class Held:
    """Who keeps a version, for people, "service answers has it", and the page of that, where it has one."""

    number: int
    why: str
    url: str = ""


@dataclass(frozen=True)
class Stays:
    """A version that would go, were it not `held`, by one at least."""

    version: Found
    held: tuple[Held, ...]


@dataclass(frozen=True)
class Kept:
    """Versions that the rule leaves alone, the newest first, and why."""

    why: str
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    """Each version is in one of these. Going and held are in the order in which they go, the oldest first."""

    going: tuple[Found, ...]
    held: tuple[Stays, ...]
    kept: tuple[Kept, ...]

    @property
    def size(self) -> int:
        """Bytes of those that go."""
        return sum(version.size for version in self.going)


def decide(
    spec: RetentionSpec, versions: Iterable[Found], named: Iterable[Named], held: Iterable[Held], now: dt.datetime
) -> Decision:
    """What goes of all the `versions` of a model now."""
    newest_first = sorted(versions, key=lambda version: -version.number)
    ready = [version.number for version in newest_first if version.state == READY]
    # None of these, and nothing that is newer than they are.
    oldest_kept = ready[spec.keep - 1] if len(ready) >= spec.keep else 0
    since = now - dt.timedelta(days=spec.days) if spec.days is not None else None
    holders = defaultdict[int, list[Held]](list)
    for each in (*_by_names(named, since), *held):
        holders[each.number].append(each)
    going, stays, kept = [], [], defaultdict[str, list[int]](list)
    for version in newest_first:
        if why := _why_kept(version, spec, oldest_kept, since):
            kept[why].append(version.number)
        elif who := holders.get(version.number):
            stays.append(Stays(version, tuple(who)))
        else:
            going.append(version)
    return Decision(
        tuple(reversed(going)), tuple(reversed(stays)), tuple(Kept(why, tuple(each)) for why, each in kept.items())
    )


def _why_kept(version: Found, spec: RetentionSpec, oldest_kept: int, since: dt.datetime | None) -> str:
    if version.number >= oldest_kept:
        return f"among the last {spec.keep}" if spec.keep != 1 else "the last"
    if since is not None and version.registered >= since:
        return f"registered in the last {spec.days} days" if spec.days != 1 else "registered in the last day"
    # What it is, is known when its files have been read; then its turn comes.
    return "its files are being read" if version.state == PENDING else ""


def _by_names(named: Iterable[Named], since: dt.datetime | None) -> Iterable[Held]:
    for each in named:
        if each.until is None:
            yield Held(each.number, f"{each.alias} names it")
        elif each.goes_back:
            yield Held(each.number, f"{each.alias} goes back to it when it is rolled back")
        elif since is not None and each.until >= since:
            yield Held(each.number, f"{each.alias} named it until {each.until.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC")


def versions_in(spec: object, model: str) -> set[int]:
    """The numbers of versions of a model that a definition names as `"model": "digits/3"`, wherever it does: what consists of
    clusters has that in each of them."""
    found: set[int] = set()
    if isinstance(spec, dict):
        said = spec.get("model")
        if isinstance(said, str):
            name, slash, number = said.partition("/")
            if slash and name == model and number.isascii() and number.isdecimal():
                found.add(int(number))
    for each in spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ():
        found |= versions_in(each, model)
    return found
