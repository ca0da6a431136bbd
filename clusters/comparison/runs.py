"""Rows and numbers of an appcode's runs for a comparison, shared by its page and REST."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest

from clusters.catalog.data import runs_named
from clusters.clouds.drivers.base import CloudError
from clusters.comparison.values import MOST, Difference, differences
from clusters.comparison.view import View
from clusters.results.values import styles
from clusters.runs.models import Run
from clusters.scalars.events import Scalars
from clusters.scalars.reading import scalars_of
from datastores.drivers.base import DriverError
from portal.errors import Invalid
from portal.models import Appcode

_NAME = re.compile(r"[a-z0-9-]{1,63}/[0-9]{1,9}")


def runs_to_compare(names: Sequence[str], appcode: Appcode) -> list[Run]:
    """The runs (`train/3`) in the order of their names, each once. Raises Invalid at `runs`."""
    wanted = list(dict.fromkeys(names))
    if len(wanted) > MOST:
        raise Invalid.at("runs", message=f"At most {MOST} runs are compared at once.")
    if unclear := next((name for name in wanted if not _NAME.fullmatch(name)), None):
        raise Invalid.at("runs", message=f"“{unclear[:80]}” is no run; write cluster and number, like train/3.")
    found = runs_named(wanted, appcode)
    if missing := [name for name in wanted if name not in found]:
        raise Invalid.at("runs", message=f"{appcode.code} has no run {missing[0]}.")
    return [found[name] for name in wanted]


def what_differs(runs: Sequence[Run], *, equal: bool = False) -> list[Difference]:
    """Differences between what they were started with: definitions, options of the command, commits or digests of code, digests
    of input. With `equal`, also what is the same in all."""
    return differences([_definition(run) for run in runs], equal=equal)


def _definition(run: Run) -> dict[str, Any]:
    env = run.spec.get("env") or {}
    options = {name: text for name, text in (run.parameters or {}).items() if name not in env}
    return {**run.spec, "option": options, "code": _program(run), "read": {"digest": run.read.get("digest")}}


def numbers_of(runs: Sequence[Run], seconds: float) -> tuple[list[Scalars], list[str]]:
    """What each run has reported so far, and a sentence for each whose numbers cannot be read now, or within `seconds`."""
    found, refused, end = [], [], time.monotonic() + seconds
    for run in runs:
        if time.monotonic() > end:
            found.append(Scalars((), 0))
            refused.append(f"The numbers of {name_of(run)} are not read: those before took {seconds:.0f} s.")
            continue
        try:
            found.append(scalars_of(run))
        except (DriverError, CloudError) as error:
            found.append(Scalars((), 0))
            refused.append(f"The numbers of {name_of(run)} cannot be read now: {error}")
    return found, refused


def styles_of(runs: Sequence[Run]) -> dict[int, int]:
    """The series of their curves, by primary key."""
    return styles({run.pk: run.hue for run in runs})


def name_of(run: Run) -> str:
    return f"{run.cluster.name}/{run.number}"


def _program(run: Run) -> dict[str, Any]:
    """Its code in short: digests instead of files."""
    said = run.spec.get("code") or {}
    return {**{key: value for key, value in said.items() if key != "files"}, **run.code}


def view_of(request: HttpRequest) -> View:
    return View.read(dict(request.GET.lists()))
