"""The Metrics tab: the run's scalars as charts, read from the event files in its output datastore, or, of a run that keeps no
output, from the log of the task that leads.

While a run goes on its output is stored every few seconds, so the charts follow. What was read of a file is remembered in the
cache by the run and the file's path, so that following a long training reads only what was added to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath

from django.core.cache import cache
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import conditional_page, require_safe

from clusters.clouds.drivers.base import CloudError
from clusters.frameworks import FRAMEWORKS
from clusters.logs.read import RunLogs
from clusters.manifest import ClusterSpec
from clusters.models import Run
from clusters.pages.cluster import page_of
from clusters.pages.log_scalars import scalars_of_log
from clusters.pages.scalars import Point, Progress, Scalars, is_event_file, read
from clusters.spec.folders import output_folder
from datastores.actions import open_store
from datastores.drivers.base import Driver, DriverError, Entry
from datastores.drivers.patience import within
from datastores.models import Datastore
from portal.api.problems import Unavailable
from portal.charts import Chart, Line, draw, number
from portal.limits import LOOKS
from portal.pages.appcodes import person

REMEMBER_SECONDS = 3600
# What one page may wait for the datastore; what was read until then is remembered, and the next page goes on there.
READ_SECONDS = 20
# Files of the output that are looked at for event files among them; checkpoints may be many.
MAX_ENTRIES = 20_000
# Of a log, for one page.
MAX_LOG = 2 * 1024 * 1024
MAX_CHARTS = 40
TABLE_ROWS = 100


@dataclass(frozen=True)
class Metric:
    """A chart, and the same numbers as a table: a row a step, a column a line."""

    chart: Chart
    columns: list[str]
    rows: list[tuple[str, list[str]]]
    thinned: bool


@require_safe
def metrics(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The page. Its charts come right after it, because reading a datastore may take seconds."""
    return render(request, "clusters/metrics.html", {"page": page_of(request, appcode, name)})


@require_safe
@conditional_page
def charts(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    shown = page_of(request, appcode, name)
    context: dict[str, object] = {"page": shown, "metrics": [], "error": ""}
    if shown.run:
        try:
            with LOOKS.enter(person(request).pk), within(READ_SECONDS):
                found = scalars_of(shown.run) if shown.run.spec["output"] else printed(shown.run)
        except (DriverError, CloudError, Unavailable) as error:
            context["error"] = str(error)
        else:
            context |= {"metrics": [_metric(found, tag) for tag in found.tags[:MAX_CHARTS]], "found": found}
            context["left_out"] = max(0, len(found.tags) - MAX_CHARTS)
    return render(request, "clusters/_charts.html", context)


def scalars_of(run: Run) -> Scalars:
    """Reads what is new. Raises DriverError when the datastore cannot be read or is gone."""
    store = (
        Datastore.objects.select_related("appcode").filter(appcode=run.cluster.appcode, name=run.spec["output"]).first()
    )
    if store is None:
        raise DriverError(f"The datastore “{run.spec['output']}” does not exist any more.")
    folder = output_folder(run.spec["outputPath"], name=run.cluster.name, run=run.number)
    driver = open_store(store)
    files = list(_event_files(driver, folder))
    keys = {file.path: f"scalars.{run.pk}.{store.pk}.{_digest(file.path)}" for file in files}
    kept = cache.get_many(keys.values())
    remembered = {path: Progress.from_json(kept[key]) for path, key in keys.items() if key in kept}
    before = {path: each.state for path, each in remembered.items()}
    try:
        found, _ = read(files, driver.read_range, remembered)
    finally:
        changed = [path for path, each in remembered.items() if before.get(path) != each.state]
        if changed:
            cache.set_many({keys[path]: remembered[path].to_json() for path in changed}, REMEMBER_SECONDS)
    return found


def printed(run: Run) -> Scalars:
    """What the first task of its first role prints. Raises CloudError."""
    spec = ClusterSpec.model_validate(run.spec)
    role = next(iter(each for each in FRAMEWORKS[spec.framework].roles if each.name in spec.active_roles)).name
    attempt = run.tasks.filter(role=role, index=0).aggregate(last=Max("attempt"))["last"]
    if attempt is None:
        return Scalars((), 0)
    logs, data = RunLogs(run), b""
    while len(data) < MAX_LOG:
        chunk = logs.read(role, 0, attempt, offset=len(data), limit=MAX_LOG - len(data))
        data += chunk.data
        if not chunk.data:
            return scalars_of_log(data)
    return scalars_of_log(data, [f"Only the first {MAX_LOG >> 20} MiB of the log of {role}-0 are read."])


def _event_files(driver: Driver, folder: str) -> Iterator[Entry]:
    return (entry for entry in islice(driver.walk(folder), MAX_ENTRIES) if is_event_file(entry.path))


def _digest(path: str) -> str:
    return hashlib.blake2b(path.encode(), digest_size=12).hexdigest()


def _metric(found: Scalars, tag: str) -> Metric:
    curves = [curve for curve in found.curves if curve.tag == tag]
    names = _labels([curve.folder for curve in curves])
    lines = [Line(label, [(p.step, p.value) for p in curve.points]) for label, curve in zip(names, curves, strict=True)]
    by_step: dict[int, dict[int, Point]] = {}
    for column, curve in enumerate(curves):
        for point in curve.points:
            by_step.setdefault(point.step, {})[column] = point
    steps = sorted(by_step)
    stride = -(-len(steps) // TABLE_ROWS) or 1
    chosen = sorted({*steps[::stride], *steps[-1:]}, reverse=True)
    rows = [
        (f"{step:,}", [number(by_step[step][n].value) if n in by_step[step] else "" for n in range(len(curves))])
        for step in chosen
    ]
    return Metric(draw(tag, lines, x_label="step"), names, rows, stride > 1)


def _labels(folders: list[str]) -> list[str]:
    """Short names of lines: the folders without what all of them begin with; one line alone needs none."""
    if len(folders) < 2:
        return [""] * len(folders)
    parts = [PurePosixPath(folder).parts for folder in folders]
    common = 0
    while all(len(each) > common and each[common] == parts[0][common] for each in parts):
        common += 1
    return ["/".join(each[common:]) or (each[-1] if each else "output") for each in parts]
