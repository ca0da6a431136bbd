"""Findings that need logs or event files: stragglers, crashes and their cost. For views of a single run; lists omit them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from clusters.clouds.drivers.base import CloudError
from clusters.runs.models import Run
from clusters.scalars.counted import kept
from clusters.scalars.crashes import Crash
from clusters.scalars.pace import Straggler
from clusters.scalars.reading import crashes_of, lately, stragglers_of
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from portal.api.problems import Unavailable
from portal.models import User
from portal.web.limits import TRANSFERS

T = TypeVar("T", Straggler, Crash)
# Time limit in seconds; a user waits meanwhile.
SECONDS = 10.0


@dataclass(frozen=True)
class Looks:
    """None: not read, or not readable now."""

    stragglers: list[Straggler] | None = None
    crashes: list[Crash] | None = None


def looks_at(run: Run, user: User) -> Looks:
    """Never raises. The caller tries again for what could not be read."""
    if run.is_terminal:
        return Looks([], kept(run))
    return Looks(_read(run, user, stragglers_of, Straggler), _read(run, user, crashes_of, Crash))


def _read(run: Run, user: User, find: Callable[[Run], list[T]], make: Callable[..., T]) -> list[T] | None:
    try:
        with TRANSFERS.enter(user.pk), within(SECONDS):
            return lately(run, find, make)
    except (CloudError, DriverError, Unavailable):
        return None
