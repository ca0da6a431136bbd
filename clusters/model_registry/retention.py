"""The retention rule of a model: which versions are deleted, and why each other one stays. Pure.

The newest Ready versions stay, with `days` also the younger ones, and any version that is used, named or may be rolled back to.
Preview and deletion use the same decision. A number of versions is required, so that no rule leaves a model without one that
can be served. A rule of days alone was rejected, because it would delete all versions while nobody trains.
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
    """What is kept of a model; everything else is deleted."""

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
        """For display: "Keep the last 10 versions, and all of the last 30 days"."""
        last = f"{self.keep} versions" if self.keep != 1 else "version"
        more = ""
        if self.days is not None:
            more = f", and all of the last {self.days} days" if self.days != 1 else ", and all of the last day"
        return f"Keep the last {last}{more}"


@dataclass(frozen=True)
class Found:
    """A version. `state` is that of its files, `size` their bytes."""

    number: int
    state: str
    registered: dt.datetime
    size: int


@dataclass(frozen=True)
class Named:
    """`alias` names a version (`until` None), or named it last until then. `goes_back`: the alias names another version now,
    and this is the one that a rollback would return to."""

    number: int
    alias: str
    until: dt.datetime | None
    goes_back: bool = False


@dataclass(frozen=True)
class Held:
    """What keeps a version, for display ("service answers has it"), and its page if it has one."""

    number: int
    why: str
    url: str = ""


@dataclass(frozen=True)
class Stays:
    """A version that would be deleted without `held`, which has at least one entry."""

    version: Found
    held: tuple[Held, ...]


@dataclass(frozen=True)
class Kept:
    """Versions that the rule does not touch, newest first, and why."""

    why: str
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    """Each version is in one of these. `going` and `held` have the oldest first, the order of deletion."""

    going: tuple[Found, ...]
    held: tuple[Stays, ...]
    kept: tuple[Kept, ...]

    @property
    def size(self) -> int:
        """Bytes of the versions that are deleted."""
        return sum(version.size for version in self.going)


def decide(
    spec: RetentionSpec, versions: Iterable[Found], named: Iterable[Named], held: Iterable[Held], now: dt.datetime
) -> Decision:
    """What is deleted now, of all `versions` of a model."""
    newest_first = sorted(versions, key=lambda version: -version.number)
    ready = [version.number for version in newest_first if version.state == READY]
    # The oldest of the newest `keep` Ready versions. It and everything newer stays.
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
    # A Pending version has its turn once its files were read.
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
    """Version numbers that a definition names as `"model": "digits/3"`, at any depth, as it may contain several clusters."""
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
