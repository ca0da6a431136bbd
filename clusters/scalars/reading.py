"""Reads the scalars of a run from the event files and tables of metrics in its output datastore and from what it recorded by
MLflow's client, or else from the log of the leading task; where no task leads, from the logs of the first tasks.

A running run stores its output every few seconds, so charts follow it. The cache keeps what was read of a file, by run and
path, so following a long training reads only what was added, and what a run that is gone has printed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import islice, zip_longest
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from django.core.cache import cache
from django.db.models import Max

from clusters.catalog.folders import output_folder
from clusters.clouds.bulkhead import lane
from clusters.clouds.drivers.base import CloudError
from clusters.frameworks import FRAMEWORKS
from clusters.logs.read import RunLogs
from clusters.manifest.cluster import ClusterSpec
from clusters.runs.models import Run
from clusters.scalars import wandb
from clusters.scalars.crashes import MAX_CRASHES, Crash, End, Stretch, crashes, how, stretches_of, told_in
from clusters.scalars.events import Curve, Progress, Scalars, Series, Shown, is_event_file, read
from clusters.scalars.files import is_shown
from clusters.scalars.media import Media
from clusters.scalars.pace import LEAST_TASKS, Straggler, pace, steps_told, stragglers
from clusters.scalars.printed import scalars_of_log
from clusters.scalars.tables import MAX_TABLE, MAX_TABLES, is_table, series_of
from clusters.tracking.reading import curves_of
from datastores.actions import open_store
from datastores.drivers.base import Driver, DriverError, Entry, NotPossible
from datastores.models import Datastore

T = TypeVar("T", Straggler, Crash)

REMEMBER_SECONDS = 3600
# Output files searched for event files; there may be many checkpoints.
MAX_ENTRIES = 20_000
# Bytes read of a log at a time.
MAX_LOG = 2 * 1024 * 1024
# Independent tasks have curves of their own. This many share the space of one.
MAX_TASKS = 16
# Tasks whose pace is measured, bytes read of the end of each log, and logs read concurrently.
MAX_PACED, PACE_BYTES, AT_ONCE = 200, 16 * 1024, 8
# Limits when searching the leading task's log for steps: bytes of its beginning and of its end, and attempts.
MAX_DIARY, MAX_ATTEMPTS = 512 * 1024, 20
# How often a loop continues with long event files.
PARTS = 20
# Seconds for which stragglers and crashes of a run are cached.
SAME = 15


def scalars_of(run: Run) -> Scalars:
    """Raises DriverError if its datastore cannot be read or is gone, CloudError if its log cannot be read."""
    found = recorded(run)
    if not found.curves and found.is_complete:
        found = _printed_beside(found, run)
    return _since_start(found, run)


def _since_start(found: Scalars, run: Run) -> Scalars:
    return replace(found, started=run.started_at.timestamp() if run.started_at else 0.0)


def recorded(run: Run) -> Scalars:
    """The scalars that it wrote as files into its output, and those that it recorded by MLflow's client."""
    found = stored(run) if run.spec["output"] else Scalars((), 0)
    return replace(found, curves=found.curves + tracked) if (tracked := curves_of(run)) else found


def all_scalars(run: Run) -> Scalars:
    """The same for loops, which read long files to their end. Not inside a transaction. Raises DriverError and CloudError."""
    # Outside the cloud's lane: the files are on a server of the appcode, so no call to the cloud has to wait for it.
    for _ in range(PARTS):
        if (found := recorded(run)).is_complete:
            break
    if not found.curves:
        with lane(run.cloud):
            found = _printed_beside(found, run)
    return found


def _printed_beside(found: Scalars, run: Run) -> Scalars:
    """What it prints, with what its files have beside numbers."""
    return replace(printed(run), media=found.media, parameters=found.parameters)


class Stored(NamedTuple):
    """What is in an output: the progress of its event files by path, its other files that may be shown, and the histograms and
    captions of images by path that W&B wrote offline."""

    scalars: Scalars
    progress: dict[str, Progress]
    files: Sequence[Entry] = ()
    histograms: Sequence[Shown] = ()
    captions: Mapping[str, str] = MappingProxyType({})


def stored(run: Run) -> Scalars:
    """The scalars in its event files and tables; none if only nodes see these, as on a volume."""
    return read_stored(run).scalars


def output_of(run: Run) -> tuple[Datastore, str]:
    """Where the run writes to."""
    stores = Datastore.objects.select_related("appcode").filter(appcode=run.cluster.appcode, name=run.spec["output"])
    if (store := stores.first()) is None:
        raise DriverError(f"The datastore “{run.spec['output']}” does not exist any more.")
    return store, output_folder(run.spec["outputPath"], name=run.cluster.name, run=run.number)


def read_stored(run: Run, until: float = 0.0) -> Stored:
    """More than one page's worth is read until time.monotonic() reaches `until`."""
    store, folder = output_of(run)
    driver = open_store(store)
    try:
        files, tables, others = _files(driver, folder)
    except NotPossible:
        return Stored(Scalars((), 0), {})
    keys = {file.path: f"records.{run.pk}.{store.pk}.{_digest(file.path)}" for file in files}
    kept = cache.get_many(keys.values())
    remembered = {path: Progress.from_json(kept[key]) for path, key in keys.items() if key in kept}
    before = {path: each.state for path, each in remembered.items()}
    try:
        scalars, progress = read(files, driver.read_range, remembered)
        while not scalars.is_complete and time.monotonic() < until:
            scalars, progress = read(files, driver.read_range, remembered)
        told = _of_tables(tables, driver, f"told.{run.pk}.{store.pk}")
        long = tuple(
            f"Only the first {MAX_TABLE >> 20} MiB of {each.path} are read." for each in tables if each.size > MAX_TABLE
        )
        files_read = scalars.files + len(tables)
        found = replace(
            scalars, curves=scalars.curves + told.curves, files=files_read, notes=scalars.notes + long,
            parameters=told.parameters, media=scalars.media + len(others) + len(told.histograms),
        )  # fmt: skip
        return Stored(found, progress, others, told.histograms, told.captions)
    finally:
        changed = [path for path, each in remembered.items() if before.get(path) != each.state]
        if changed:
            cache.set_many({keys[path]: remembered[path].to_json() for path in changed}, REMEMBER_SECONDS)


def printed(run: Run) -> Scalars:
    """The scalars that the first task of its first role prints; of independent tasks, each under its own name."""
    spec = ClusterSpec.stored(run.spec)
    framework = FRAMEWORKS[spec.framework]
    role = next(iter(each for each in framework.roles if each.name in spec.active_roles)).name
    count = min(spec.count(role), MAX_TASKS) if framework.is_independent else 1
    rows = run.tasks.filter(role=role, index__lt=count).values_list("index").annotate(last=Max("attempt"))
    logs, found = RunLogs(run), []
    for index, attempt in rows.order_by("index"):
        read_ = _scalars_of_task(logs, (role, index, attempt), MAX_LOG // count)
        name = f"{role}-{index}" if framework.is_independent else ""
        found.append(replace(read_, curves=tuple(replace(curve, folder=name) for curve in read_.curves)))
    notes = [note for each in found for note in each.notes]
    if count < spec.count(role) and framework.is_independent:
        notes.append(f"The curves of the first {count} of {spec.count(role)} {role}s.")
    return Scalars(tuple(curve for each in found for curve in each.curves), 0, tuple(notes), is_printed=True)


def printed_by(run: Run, role: str, indexes: Iterable[int]) -> dict[int, Scalars]:
    """The scalars that some independent tasks print, by index. Together they have the space of one task."""
    wanted = list(indexes)
    rows = run.tasks.filter(role=role, index__in=wanted).values_list("index").annotate(last=Max("attempt"))
    logs = RunLogs(run)
    return {
        index: _since_start(_scalars_of_task(logs, (role, index, last), MAX_LOG // len(wanted)), run)
        for index, last in rows.order_by("index")
    }


def _scalars_of_task(logs: RunLogs, of: tuple[str, int, int], most: int) -> Scalars:
    """What is at the beginning of the log of role, index and attempt. That of a run that is gone is parsed once: a long one
    takes seconds."""
    key = f"printed.{logs.run.pk}.{'-'.join(map(str, of))}.{most}"
    is_over = logs.run.is_terminal and logs.run.gone
    if is_over and (kept := cache.get(key)) is not None:
        curves, notes = kept
        return Scalars(tuple(Curve.from_json(each) for each in curves), 0, tuple(notes))
    data, marked, notes, is_whole = b"", b"", list[str](), True
    while len(data) < most:
        chunk = logs.read(*of, offset=len(data), limit=most - len(data))
        data, marked = data + chunk.data, marked + chunk.marks
        if not chunk.data:
            is_whole = chunk.complete and not chunk.absent
            break
    else:
        notes.append(f"Only the first {most >> 10:,} KiB of the log of {of[0]}-{of[1]} are read.")
    found = scalars_of_log(data, notes, marked)
    if is_over and is_whole:
        cache.set(key, ([each.to_json() for each in found.curves], notes), REMEMBER_SECONDS)
    return found


def stragglers_of(run: Run) -> list[Straggler]:
    """Tasks that now fall behind others of their role, if they print steps. Reads the ends of at most MAX_PACED logs
    concurrently and leaves out those that cannot be read now. Raises CloudError if none can."""
    if run.phase != Run.Phase.RUNNING:
        return []
    roles = [role for role, facts in run.roles.items() if facts["count"] >= LEAST_TASKS]
    living = run.tasks.filter(role__in=roles, phase="Running").order_by("role", "index", "attempt")
    tasks = {(role, index): attempt for role, index, attempt in living.values_list("role", "index", "attempt")}
    chosen = list(islice(tasks.items(), MAX_PACED))
    if len(chosen) < LEAST_TASKS:
        return []
    logs = RunLogs(run)
    logs.load()

    def read_(task: tuple[tuple[str, int], int]) -> float | None:
        (role, index), attempt = task
        try:
            chunk = logs.read(role, index, attempt, limit=PACE_BYTES, tail=PACE_BYTES)
        except CloudError:
            return None
        return pace(chunk.data, chunk.start, chunk.marks)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = list(threads.map(read_, chosen))
    return stragglers({task: each for (task, _), each in zip(chosen, found, strict=True) if each is not None})


def crashes_of(run: Run, until: float = 0.0) -> list[Crash]:
    """The newest MAX_CRASHES crashes, with the steps trained again as far as event files or the leading task's log show them;
    `until` as in `told_by`. Raises DriverError and CloudError."""
    return crashes(ends, told_by(run, until))[-MAX_CRASHES:] if (ends := ends_of(run)) else []


def ends_of(run: Run) -> list[End]:
    """Ends of tasks that were restarted. The end of a last attempt counts only if it failed."""
    again = run.tasks.filter(attempt__gt=0).values_list("role", "index").distinct()
    if not again:
        return []
    fields = ("role", "index", "attempt", "phase", "reason", "exit_code", "started_at", "finished_at")
    rows = list(run.tasks.filter(role__in={role for role, _ in again}).order_by(*fields[:3]).values_list(*fields))
    found = []
    for (role, index, attempt, phase, reason, code, _, at), after in zip_longest(rows, rows[1:]):
        is_last = after is None or (role, index) != after[:2]
        if (attempt or not is_last) and phase == "Failed" and reason != "Stopped" and at:
            back = None if is_last or not after[-2] else after[-2].timestamp()
            found.append(End(role, index, at.timestamp(), how(code, reason), back))
    return found


def told_by(run: Run, until: float = 0.0) -> list[Stretch]:
    """The steps that the program reported since the run began, for each start. Without `until` only a part of long files is
    read, and the next call reads on. With `until` (in time.monotonic()) it reads all until then; raises DriverError if that is
    not enough, and CloudError if a log is still to come."""
    if run.spec["output"]:
        scalars, files, *_ = read_stored(run, until)
        if until and not scalars.is_complete:
            raise DriverError("Its event files are too long to be read in time.")
        if found := told_in(files, run.created_at.timestamp()):
            return found
    role, last = leading(run)
    logs, points = RunLogs(run), list[tuple[int, float]]()
    for attempt in range(max(0, (last or 0) + 1 - MAX_ATTEMPTS), (last or 0) + 1):
        chunk = logs.read(role, 0, attempt, limit=MAX_DIARY, tail=MAX_DIARY)
        if until and chunk.absent and not chunk.complete:
            raise CloudError("Its log is not there yet.")
        end = steps_told(chunk.data, chunk.start, chunk.marks)
        if len(chunk.data) >= MAX_DIARY:
            chunk = logs.read(role, 0, attempt, limit=MAX_DIARY)
            # Beginning and end may overlap.
            begin = steps_told(chunk.data, chunk.start, chunk.marks)
            points += [each for each in begin if not end or each[1] < end[0][1]]
        points += end
    return stretches_of(points)


def lately(run: Run, find: Callable[[Run], list[T]], make: Callable[..., T]) -> list[T]:
    """The result of `find(run)`, cached for SAME seconds: several users may view a page, and programs poll often."""
    key = f"lately.{find.__name__}.{run.pk}"
    kept: list[dict[str, Any]] | None = cache.get(key)
    if kept is None:
        kept = [asdict(each) for each in find(run)]
        cache.set(key, kept, SAME)
    return [make(**each) for each in kept]


def leading(run: Run) -> tuple[str, int | None]:
    """The role whose first task is read, and its newest attempt; None before there is one."""
    spec = ClusterSpec.stored(run.spec)
    role = next(iter(each for each in FRAMEWORKS[spec.framework].roles if each.name in spec.active_roles)).name
    return role, run.tasks.filter(role=role, index=0).aggregate(last=Max("attempt"))["last"]


def _files(driver: Driver, folder: str) -> tuple[list[Entry], list[Entry], list[Entry]]:
    """Event files; tables of metrics in other folders: where a program writes both, they say the same; and images and tables."""
    several = list(islice(driver.walk(folder), MAX_ENTRIES))
    events = [each for each in several if is_event_file(each.path)]
    folders = {PurePosixPath(each.path).parent for each in events}
    found = [each for each in several if _is_table(each.path)]
    tables = [each for each in found if PurePosixPath(each.path).parent not in folders]
    offline = [each for each in tables if wandb.is_offline(each.path)]
    tables = [each for each in tables if not wandb.is_offline(each.path)]
    others = [each for each in several if is_shown(each.path) and not _is_table(each.path)]
    return events, [*tables[:MAX_TABLES], *offline[-wandb.MAX_FILES :]], others


def _is_table(path: str) -> bool:
    return is_table(path) or wandb.is_offline(path)


class _Told(NamedTuple):
    """What tables and W&B's files tell. `parameters`: those on which all agree that have any."""

    curves: tuple[Curve, ...]
    parameters: dict[str, str]
    histograms: list[Shown]
    captions: dict[str, str]


def _of_tables(tables: Sequence[Entry], driver: Driver, prefix: str) -> _Told:
    """A table that has not changed is not read again."""
    keys = {file.path: f"{prefix}.{_digest(file.path)}" for file in tables}
    kept = cache.get_many(keys.values())
    curves, histograms, captions = list[Curve](), list[Shown](), dict[str, str]()
    several = list[dict[str, str]]()
    for file in tables:
        folder = "" if PurePosixPath(file.path).parent.name == "" else str(PurePosixPath(file.path).parent)
        etag, *known = kept.get(keys[file.path], ("",))
        if etag != file.etag:
            known = _table(file.path, driver.read_range(file.path, 0, MAX_TABLE))
            cache.set(keys[file.path], (file.etag, *known), REMEMBER_SECONDS)
        series, parameters, media, said = known
        curves += [Curve(name, folder, tuple(Series.from_json(each).whole)) for name, each in series.items()]
        histograms += [Shown(tag, folder, tuple(few.all)) for tag, few in Media.from_json(media).histograms.items()]
        captions |= {f"{folder}/files/{path}".lstrip("/"): text for path, text in said.items()}
        several += [parameters] if parameters else []
    first, *others = several or [{}]
    parameters = {name: text for name, text in first.items() if all(each.get(name) == text for each in others)}
    return _Told(tuple(curves), parameters, histograms, captions)


def _table(path: str, data: bytes) -> list[Any]:
    """What a file tells as JSON: series, parameters, media, captions."""
    offline = wandb.contents(data) if wandb.is_offline(path) else wandb.Offline(series_of(data), {}, {}, {})
    series = {name: each.to_json() for name, each in offline.series.items()}
    return [series, offline.config, Media(offline.histograms).to_json(), offline.captions]


def _digest(path: str) -> str:
    return hashlib.blake2b(path.encode(), digest_size=12).hexdigest()
