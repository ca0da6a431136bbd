"""What a run came to, on its Overview: its last numbers, the curve that people look at first, what it wrote, and what to do next.

It loads after the page, because it reads the output's datastore: a slow one never delays the state of the run. Numbers and
files are read apart, so that each is there even if the other cannot be read now.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import conditional_page, require_safe

from clusters.catalog.folders import output_folder
from clusters.clouds.drivers.base import CloudError
from clusters.cluster.pages.cluster import page_of
from clusters.cluster.pages.metrics import lines_of
from clusters.results.values import is_judged, is_less_better, parameters
from clusters.runs.models import Run
from clusters.scalars.events import Point, Scalars, tag_order
from clusters.scalars.reading import scalars_of
from datastores.actions import open_store
from datastores.drivers.base import Driver, DriverError, Entry, NotPossible
from datastores.drivers.patience import within
from datastores.files import previews
from datastores.files.downloads import LOOK_SECONDS
from datastores.models import Datastore
from datastores.pages.views import address
from portal.api.problems import Unavailable
from portal.pages.appcodes import person
from portal.pages.charts import draw, number
from portal.web.limits import LOOKS

# The loss that training lowers, by any of its names.
TRAINING_LOSS = re.compile(r"(?i)(?:train(?:ing)?[/_.-])?loss")
# Numbers, parameters, files and pictures that are shown at most; pictures are part of the page, so only small ones are.
FIGURES, PARAMETERS, FILES, PICTURES, PICTURE_BYTES = 6, 24, 8, 3, 512 * 1024


@dataclass(frozen=True)
class Figure:
    """The last value of a number that the program tells, and its step; the best one where that is another; and what is wrong with
    the last one ("NaN since step 12")."""

    label: str
    value: str
    step: int
    best: str = ""
    best_step: int = 0
    wrong: str = ""


@dataclass(frozen=True)
class Output:
    """A file or a folder that the run wrote, with its page. `picture` is a `data:` URL, "" for other files."""

    entry: Entry
    url: str
    picture: str = ""


@require_safe
@conditional_page
def outcome(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    shown = page_of(request, appcode, name)
    context: dict[str, Any] = {"page": shown}
    if shown.run and shown.run.started_at:
        try:
            with LOOKS.enter(person(request).pk), within(LOOK_SECONDS):
                context |= _numbers(shown.run) | _files(shown.run)
        except Unavailable as busy:
            context["trouble"] = str(busy)
    return render(request, "clusters/cluster/_outcome.html", context)


def _numbers(run: Run) -> dict[str, Any]:
    try:
        found = scalars_of(run)
    except (DriverError, CloudError) as error:
        return {"no_numbers": str(error)}
    if not found.curves:
        return {}
    tag = main_tag(found)
    chart = draw(tag, lines_of(found, tag), x_label="step") if tag else None
    # By MLflow or W&B. Those of ENV and the command stand on the page as such.
    said = parameters(run.spec)
    recorded = [(name, text) for name, text in sorted((run.parameters or {}).items()) if name not in said]
    return {"figures": figures(found), "chart": chart, "recorded": recorded[:PARAMETERS]}


def main_tag(found: Scalars) -> str:
    """The metric whose curve people look at first: the loss, then accuracies, then others; "" where none has two values."""
    curves = (each for each in found.curves if sum(math.isfinite(point.value) for point in each.points) > 1)

    def order(tag: str) -> tuple[bool, bool, tuple[int, str, str]]:
        return not TRAINING_LOSS.fullmatch(tag), not is_judged(tag), tag_order(tag)

    return min((curve.tag for curve in curves), key=order, default="")


def figures(found: Scalars) -> list[Figure]:
    """The last values, losses and accuracies first. Curves of one number in several folders are told apart by these."""
    last = []
    for tag in found.tags:
        for line, curve in zip(lines_of(found, tag), (each for each in found.curves if each.tag == tag), strict=True):
            if curve.points:
                last.append(_figure(f"{tag} {line.label}".strip(), tag, curve.points))
    return last[:FIGURES]


def _figure(label: str, tag: str, points: Sequence[Point]) -> Figure:
    last, better = points[-1], min if is_less_better(tag) else max
    finite = [point for point in points if math.isfinite(point.value)]
    best = better(finite, key=lambda point: point.value) if finite and is_judged(tag) else last
    wrong = ""
    if not math.isfinite(last.value):
        since = next((n for n in range(len(points), 0, -1) if math.isfinite(points[n - 1].value)), 0)
        wrong = f"{number(last.value)} since step {points[since].step:,}"
    differs = best.value != last.value and best is not last
    return Figure(label, number(last.value), last.step, number(best.value) if differs else "", best.step, wrong)


def _files(run: Run) -> dict[str, Any]:
    """What lies in the folder of the run, pictures first. One query, none without an output datastore."""
    if not run.spec["output"]:
        return {}
    store = (
        Datastore.objects.select_related("appcode").filter(appcode=run.cluster.appcode, name=run.spec["output"]).first()
    )
    if store is None:
        return {"no_files": f"The datastore “{run.spec['output']}” does not exist any more."}
    folder = output_folder(run.spec["outputPath"], name=run.cluster.name, run=run.number)
    where = {"store": store, "folder": folder, "folder_url": address(store, folder)}
    try:
        driver = open_store(store)
        listing = driver.list(folder, limit=200)
        ranked = sorted(listing.entries, key=lambda entry: previews.kind_of(entry.name) != "picture")
        # A run that goes on is read again and again; its pictures come at its end.
        pictures = _pictures(driver, ranked) if run.is_terminal else {}
    except NotPossible:
        return {**where, "no_files": "Only tasks see what is in this datastore; a notebook on it shows its files."}
    except DriverError as error:
        return {**where, "no_files": str(error)}
    outputs = [Output(entry, _page(store, entry), pictures.get(entry.path, "")) for entry in ranked[:FILES]]
    return {**where, "outputs": outputs, "more_files": len(listing.entries) > FILES or bool(listing.cursor)}


def _pictures(driver: Driver, entries: Sequence[Entry]) -> dict[str, str]:
    """The first small pictures, by path."""
    small = [each for each in entries if previews.kind_of(each.name) == "picture" and 0 < each.size <= PICTURE_BYTES]
    read = {each.path: (each, driver.read_range(each.path, 0, each.size)) for each in small[:PICTURES]}
    return {path: previews.preview(each.name, data, each.size).picture for path, (each, data) in read.items()}


def _page(store: Datastore, entry: Entry) -> str:
    if entry.is_folder:
        return address(store, entry.path)
    page = reverse("datastore_preview", args=[store.appcode.code, store.name])
    return f"{page}?{urlencode({'path': entry.path}, safe='/')}"
