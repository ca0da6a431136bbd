"""Writes what programs record. Each call is one short transaction under the lock of the TrackedRun, with a constant number of
queries."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Mapping, Sequence

import orjson
from django.db import transaction

from clusters.runs.models import Run
from clusters.scalars.events import Point, Series
from clusters.tracking.messages import Metric, Record, Refused, wrong
from clusters.tracking.models import Experiment, TrackedMetric, TrackedRun
from portal.db.bulk_update import update_rows
from portal.models import Appcode

# MLflow's experiment for runs that name none. Its id is always 0 there.
DEFAULT, DEFAULT_ID = "Default", "0"
MAX_EXPERIMENTS = 1000
# For one run of the portal.
MAX_TRACKED, MAX_METRICS = 500, 1000
# Bytes of the JSON of all parameters, and of all tags.
MAX_JSON = 128 * 1024
# Points that are in a small column when they are merged into the long one, and that stay there then.
MOST_RECENT, LEAST_RECENT = 48, 16
_POINT = struct.Struct("<qdd")


def now_ms() -> int:
    return int(time.time() * 1000)


def experiment_called(appcode: Appcode, name: str) -> Experiment:
    """Returns it, and makes it if there is none. Raises Refused where there are too many."""
    found = Experiment.objects.filter(appcode=appcode, name=name).first()
    if found is not None:
        return found
    if Experiment.objects.filter(appcode=appcode).count() >= MAX_EXPERIMENTS:
        raise Refused(
            "RESOURCE_LIMIT_EXCEEDED", f"{appcode.code} has {MAX_EXPERIMENTS:,} experiments, which is the most."
        )
    return Experiment.objects.get_or_create(appcode=appcode, name=name)[0]


def new_experiment(appcode: Appcode, name: str) -> Experiment:
    if not name or Experiment.objects.filter(appcode=appcode, name=name).exists():
        sentence = f"There is an experiment “{name}” already." if name else "An experiment needs a name."
        raise Refused("RESOURCE_ALREADY_EXISTS" if name else "INVALID_PARAMETER_VALUE", sentence)
    return experiment_called(appcode, name)


@transaction.atomic
def create(run: Run, experiment: Experiment, *, name: str, started_at: int, tags: Mapping[str, str]) -> TrackedRun:
    """Begins a TrackedRun of `run`, whose row is locked so that the limit holds."""
    Run.objects.select_for_update(no_key=True).only("pk").get(pk=run.pk)
    if TrackedRun.objects.filter(run=run).count() >= MAX_TRACKED:
        raise Refused(
            "RESOURCE_LIMIT_EXCEEDED", f"This run of the portal has recorded {MAX_TRACKED} runs, which is the most."
        )
    name = name or tags.get("mlflow.runName", "")[:256] or f"{run.cluster.name}-{run.number}"
    tags = _fits({"mlflow.runName": name, **tags}, "tags")
    return TrackedRun.objects.create(experiment=experiment, run=run, name=name, started_at=started_at, tags=tags)


@transaction.atomic
def update(run: Run, tracked_id: str, *, status: str, ended_at: int | None, name: str) -> TrackedRun:
    """Changes what is given; "" and None leave a value as it is."""
    tracked = _own(run, tracked_id)
    if status:
        if status not in TrackedRun.Status.values:
            raise wrong(f"“{status[:40]}” is no status; those are {', '.join(TrackedRun.Status.values)}.")
        tracked.status = status
    if name:
        tracked.name, tracked.tags = name, _fits({**tracked.tags, "mlflow.runName": name}, "tags")
    if ended_at is not None:
        tracked.ended_at = ended_at
    tracked.save(update_fields=["status", "ended_at", "name", "tags"])
    return tracked


@transaction.atomic
def record(run: Run, tracked_id: str, said: Record) -> None:
    """Adds metrics, parameters and tags to a TrackedRun of `run`. All or nothing. Repeating a request changes nothing."""
    tracked, changed = _own(run, tracked_id), []
    if said.params:
        other = next((name for name, value in said.params.items() if tracked.params.get(name, value) != value), None)
        if other is not None:
            raise wrong(
                f"Parameter “{other}” is “{tracked.params[other][:200]}” already, and a parameter never changes."
            )
        tracked.params = _fits({**tracked.params, **said.params}, "parameters")
        changed.append("params")
    if said.tags:
        tracked.tags = _fits({**tracked.tags, **said.tags}, "tags")
        if "mlflow.runName" in said.tags:
            tracked.name = said.tags["mlflow.runName"][:256]
        changed += ["tags", "name"]
    if changed:
        tracked.save(update_fields=changed)
    if said.metrics:
        _add(tracked, said.metrics)


@transaction.atomic
def delete_tag(run: Run, tracked_id: str, name: str) -> None:
    tracked = _own(run, tracked_id)
    if name not in tracked.tags:
        raise Refused("RESOURCE_DOES_NOT_EXIST", f"The run has no tag “{name}”.")
    del tracked.tags[name]
    tracked.save(update_fields=["tags"])


def series_of(metric: TrackedMetric) -> Series:
    """Returns all points of a metric in the order in which they came."""
    points, ends = _unpacked(metric.kept), _unpacked(metric.extremes)
    newest = points[-1] if points else None
    series = Series(points, metric.stride, metric.seen, newest, *(ends or (None, None)))
    for each in _unpacked(metric.recent):
        series.add(each)
    return series


def parsed_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise absent(text) from None


def absent(text: str) -> Refused:
    return Refused("RESOURCE_DOES_NOT_EXIST", f"There is no run “{text[:40]}” that this token may see.")


def _own(run: Run, tracked_id: str) -> TrackedRun:
    """Returns the locked row. A token writes to what its own run recorded, and to nothing else."""
    rows = TrackedRun.objects.select_for_update(of=("self",), no_key=True)
    tracked = rows.select_related("experiment", "run__cluster").filter(pk=parsed_id(tracked_id)).first()
    if tracked is None or tracked.experiment.appcode_id != run.cluster.appcode_id:
        raise absent(tracked_id)
    if tracked.run_id != run.pk:
        sentence = f"Run “{tracked.name}” was recorded by {tracked.run}: only that run writes to it."
        raise Refused("PERMISSION_DENIED", sentence)
    return tracked


def _fits(values: Mapping[str, str], what: str) -> dict[str, str]:
    if len(orjson.dumps(values)) > MAX_JSON:
        raise Refused("RESOURCE_LIMIT_EXCEEDED", f"All {what} of a run have at most {MAX_JSON // 1024} KiB.")
    return dict(values)


def _add(tracked: TrackedRun, metrics: Sequence[Metric]) -> None:
    said: dict[str, list[Metric]] = {}
    for each in metrics:
        said.setdefault(each.name, []).append(each)
    rows = {row.name: row for row in tracked.metrics.filter(name__in=said).defer("kept")}
    new = said.keys() - rows.keys()
    if new and TrackedMetric.objects.filter(tracked__run=tracked.run_id).count() + len(new) > MAX_METRICS:
        raise Refused(
            "RESOURCE_LIMIT_EXCEEDED", f"This run of the portal would have more than {MAX_METRICS:,} metrics."
        )
    for name in new:
        rows[name] = TrackedMetric(tracked=tracked, name=name, last_step=-(2**62), last_at=-(2**62), last=0.0)
    for name, several in said.items():
        _note(rows[name], several)
    full = [row for row in rows.values() if len(row.recent) > MOST_RECENT * _POINT.size]
    kept = dict(TrackedMetric.objects.filter(pk__in=[row.pk for row in full if row.pk]).values_list("pk", "kept"))
    for row in full:
        row.kept = kept.get(row.pk, b"")
        _merge(row)
    TrackedMetric.objects.bulk_create([rows[name] for name in new])
    merged = {row.name for row in full}
    small = [row for name, row in rows.items() if name not in new | merged]
    update_rows(small, ["last_step", "last_at", "last", "recent"])
    update_rows(
        [row for row in full if row.name not in new],
        ["last_step", "last_at", "last", "recent", "kept", "stride", "seen", "extremes"],
    )


def _note(row: TrackedMetric, several: Sequence[Metric]) -> None:
    recent = bytes(row.recent)
    known = {recent[at : at + _POINT.size] for at in range(0, len(recent), _POINT.size)}
    for each in several:
        packed = _POINT.pack(each.step, each.at / 1000, each.value)
        if packed in known:  # The client sent a request again whose answer was lost.
            continue
        recent += packed
        if (each.step, each.at) >= (row.last_step, row.last_at):
            row.last_step, row.last_at, row.last = each.step, each.at, each.value
    row.recent = recent


def _merge(row: TrackedMetric) -> None:
    """Moves all but the newest points from `recent` to `kept`. The newest stay for `_note` to know them again."""
    series = series_of(TrackedMetric(kept=row.kept, stride=row.stride, seen=row.seen, extremes=row.extremes))
    known = {_packed(each) for each in series.points}
    recent = bytes(row.recent)
    old, row.recent = recent[: -LEAST_RECENT * _POINT.size], recent[-LEAST_RECENT * _POINT.size :]
    for at in range(0, len(old), _POINT.size):
        if (packed := old[at : at + _POINT.size]) not in known:
            series.add(Point(*_POINT.unpack(packed)))
    row.kept, row.extremes = b"".join(map(_packed, series.points)), b"".join(map(_packed, series.extremes))
    row.stride, row.seen = series.stride, series.seen


def _packed(point: Point) -> bytes:
    return _POINT.pack(point.step, point.wall_time, point.value)


def _unpacked(data: bytes | memoryview) -> list[Point]:
    return [Point(*each) for each in _POINT.iter_unpack(bytes(data))]
