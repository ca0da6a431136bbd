"""Images of the compared runs side by side: a row for each name, with the newest image of each run up to a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import conditional_page, require_safe

from clusters.cluster.pages.media import MAX_BYTES, Frame, frame_of, labels_of
from clusters.cluster.pages.metrics import READ_SECONDS, has_words
from clusters.comparison.runs import name_of, runs_to_compare, styles_of, view_of
from clusters.runs.models import Run
from clusters.scalars.events import Shown
from clusters.scalars.files import UNKNOWN
from clusters.scalars.media import Placed
from clusters.scalars.shown import images_of, in_output, media_of
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from portal.access import appcode_for
from portal.api.problems import Unavailable
from portal.errors import Invalid
from portal.pages.appcodes import person
from portal.web.limits import LOOKS

# Names shown, and steps offered: the last ones.
MOST_NAMES, MOST_STEPS = 10, 50
# What an image is of: tag, folder, and which of several.
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Cell:
    """The image of a run, None if it has none so early or of this name; and the series of its curves."""

    run: str
    series: int
    frame: Frame | None


@dataclass(frozen=True)
class Row:
    title: str
    label: str
    cells: list[Cell]


def steps_of(lines: Sequence[Shown]) -> list[int]:
    """The steps at which any has an image, newest first."""
    return sorted({point.step for line in lines for point in line.points} - {UNKNOWN}, reverse=True)[:MOST_STEPS]


def chosen(line: Shown | None, at: int | None) -> Placed | None:
    """The newest image, of those up to step `at` if that is given."""
    points = line.points if line else ()
    return next((point for point in reversed(points) if at is None or point.step <= at), None)


@require_safe
@conditional_page
def media(request: HttpRequest, code: str) -> HttpResponse:
    """`?runs=train/3,train/4&at=200`. Loaded after the page, because reading files may take seconds."""
    appcode = appcode_for(person(request), code)
    view = view_of(request)
    context: dict[str, object] = {"appcode": appcode, "view": view}
    try:
        runs = runs_to_compare(view.runs, appcode)
        with LOOKS.enter(person(request).pk), within(READ_SECONDS):
            # With a script the page itself leaves out what does not have the words, as they are typed.
            context |= _context(runs, view.at, view.find if view.plain else "")
    except Invalid as invalid:
        context["notes"] = [invalid.errors[0].message]
    except Unavailable as error:
        context["notes"] = [str(error)]
    return render(request, "clusters/comparison/_media.html", context)


def _context(runs: Sequence[Run], at: int | None, find: str) -> dict[str, object]:
    found, notes, again = list[Mapping[Key, Shown]](), list[str](), False
    for run in runs:
        try:
            its = media_of(run)
            found.append({(each.tag, each.folder, each.which): each for each in in_output(run, its.images)})
            again = again or not its.is_complete
        except DriverError as error:
            found.append({})
            notes.append(f"The images of {name_of(run)} cannot be read now: {error}")
    keys = [key for key in dict.fromkeys(key for images in found for key in images) if has_words(key[0], find)]
    shown = keys[:MOST_NAMES]
    lines = [next(images[key] for images in found if key in images) for key in shown]
    columns = []
    for run, images in zip(runs, found, strict=True):
        placed = [chosen(images.get(key), at) for key in shown]
        try:
            read = iter(images_of(run, [each for each in placed if each], MAX_BYTES // len(runs)))
        except DriverError as error:
            read, placed = iter(()), [None] * len(shown)
            notes.append(f"The images of {name_of(run)} cannot be read now: {error}")
        columns.append([frame_of(each, next(read)) if each else None for each in placed])
    style = styles_of(runs)
    names = [(name_of(run), style[run.pk]) for run in runs]
    rows = [
        Row(line.tag, label, [Cell(*name, frame) for name, frame in zip(names, frames, strict=True)])
        for line, label, frames in zip(lines, labels_of(lines), zip(*columns, strict=True), strict=True)
    ]
    steps = steps_of([line for images in found for key, line in images.items() if key in shown])
    return {"rows": rows, "steps": steps, "notes": notes, "left_out": len(keys) - len(shown), "again": again}
