"""When runs that wait for places will probably start: computed each minute for the clouds on which some wait, and kept as rows.

The idea: one row for each run does everything. It has the newest forecast, and the first: later ones are compared with it, and
once the run has started, the next forecasts of the cloud are judged by it. Only the task writes here. Who got places since is
read from the runs, so the pass that gives them knows nothing of forecasts, and a lost or repeated task changes nothing.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db import transaction
from django.db.models import F, OuterRef, Q, Subquery, TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.utils import timezone

from clusters.admission.codes import Values
from clusters.admission.decision import Ask, Snapshot, ordered
from clusters.admission.forecast import History, Kind, Length, Likely, Living, Scene, drawn, forecast
from clusters.admission.foretold import FIRST, LAST, QUEUE, UNKNOWN, Foretold, foretold, has_slipped
from clusters.admission.foretold import REPLAYS as FEWEST_REPLAYS
from clusters.admission.packing import Sizes, Tasks
from clusters.clouds.registry import all_placing, places_runs
from clusters.runs.models import Forecast, Run, Task
from clusters.runs.placing import room
from clusters.runs.placing.known import TO_END, Known, amounts, capacity_of, read, whole_of
from clusters.runs.placing.places import HELD, every_wait
from clusters.runs.placing.rights import rights
from portal.db.advisory_lock import Lock, advisory_lock

# Only the first that wait get a forecast, and on large clouds fewer, from so many replays of at most a week, in so many seconds
# of processor time: other tasks of the worker wait meanwhile.
PLACES, REPLAYS, SECONDS = (500, 100, 20), 32, 20.0
# Forecasts of a cloud rest so many times as long as they took.
REST = 5
HORIZON = dt.timedelta(days=7)
# Run times are known from so many runs that were created last and have ended, of so many of all clouds.
ENDED, LOOKED_AT = 5000, 100_000
NOTHING = Sizes()
# Runs that hold something on their cloud, or places there.
_HOLDS = Q(gone=False) & (Q(placed_at__isnull=False) | Q(applied_at__isnull=False))
_ASKED = (Cast("resources", TextField()), Cast("roles", TextField()), KT("spec__roles"))
_KIND = ("cluster_id", "cluster__appcode", KT("spec__framework"), "gpus", KT("spec__timeLimit"))
_FIRST = ("first_at", "first_p50", "first_p90", "first_gpus", "first_newest")


def clouds() -> list[str]:
    """Clouds on which runs wait for places. Two queries at most."""
    found = set(every_wait().order_by().values_list("cloud", flat=True).distinct())
    return sorted(found & all_placing()) if found else []


def renew(cloud: str) -> None:
    """Computes all forecasts of a cloud anew. Another worker may be at it already."""
    with advisory_lock(Lock.FORECASTS, cloud) as is_mine:
        if is_mine and places_runs(cloud):
            _renew(cloud)


def _renew(cloud: str) -> None:
    at = timezone.now()
    last = Forecast.objects.filter(cloud=cloud).order_by("-as_of").values_list("as_of", "values").first()
    if last and at < last[0] + REST * dt.timedelta(seconds=last[1].get("spent", 0)):
        return
    begin = time.thread_time()
    starts, kept = _judged(cloud)
    known = read(cloud, capacity_of(cloud), new=False)
    if not known.waiting:
        return
    scene, lengths, count = _read(cloud, known, at)
    order = [ask.run for ask, _ in ordered(Snapshot(scene.nodes, scene.asks, scene.shares))]
    for places in PLACES:
        first = frozenset(order[:places])
        scene = replace(scene, asks=tuple(ask for ask in scene.asks if ask.run in first))
        likely, replays = _replayed(scene, lengths)
        if replays >= FEWEST_REPLAYS:
            break
    spent = int(time.thread_time() - begin)
    values = {"runs": count, "replays": replays, "starts": starts, "kept": kept, "spent": spent}
    _write(cloud, scene, likely, values, at)


def _replayed(scene: Scene, lengths: Mapping[str, Length]) -> tuple[dict[str, Likely], int]:
    """The forecasts, and of how many replays; too few if the first shows that more would take too long."""
    replays = 0

    def in_time() -> Iterator[Mapping[str, int]]:
        nonlocal replays
        begin = time.thread_time()
        # Always the same seed: so a forecast changes only if something else does.
        for each in drawn(lengths, 0, REPLAYS):
            replays += 1
            yield each
            spent = time.thread_time() - begin
            if spent > SECONDS or (replays == 1 and spent * FEWEST_REPLAYS > SECONDS):
                return

    return forecast(scene, in_time(), int(HORIZON.total_seconds())), replays


@transaction.atomic
def _judged(cloud: str) -> tuple[int, int]:
    """Notes which runs have started since, and forgets those that will not, and old ones. Returns how many starts are known, and
    how many of these were by the time that was likely."""
    here = Forecast.objects.filter(cloud=cloud)
    placed = Run.objects.filter(pk=OuterRef("pk")).values("placed_at")
    waits = here.filter(started_at=None)
    waits.filter(run__placed_at__isnull=False).update(started_at=Subquery(placed))
    waits.filter(Q(run__gone=True) | Q(run__desired=Run.Desired.ENDED) | ~Q(run__verdict="")).delete()
    # A forecast that came with the places foretold nothing.
    here.filter(Q(first_p90=None) | Q(started_at__lte=F("first_at")), started_at__isnull=False).delete()
    started = here.filter(started_at__isnull=False).order_by("-started_at", "-pk")
    here.filter(pk__in=started.values("pk")[LAST:]).delete()
    rows = list(started.values_list("started_at", "first_p90")[:LAST])
    return len(rows), sum(1 for begun, likely in rows if begun and likely and begun <= likely)


def _read(cloud: str, known: Known, at: dt.datetime) -> tuple[Scene, dict[str, Length], int]:
    """The cloud as it is, how long its runs may last, and from how many runs that is known. Eleven queries."""
    now = int(at.timestamp())
    held = _held(cloud, known)
    taken: dict[str, Sizes] = {}
    for nodes in held.values():
        for node, sizes in nodes.items():
            taken[node] = taken.get(node, NOTHING) + sizes
    # What was promised is taken: a replay binds tasks at once.
    seen = room.snapshot(replace(known, promises=(), taken=taken), at)
    here = rights(known.waiting, at)
    history, count = _history(cloud, known.waiting[-1].run)
    lengths = _lengths(history, [int(ask.run) for ask in seen.asks])
    living = []
    for run, length in _living(cloud, held, {each.run for each in known.waiting}, history, at):
        living.append(run)
        lengths[run.ask.run] = length
    return Scene(now, seen.nodes, seen.asks, here.shares, tuple(living), known.windows), lengths, count


def _held(cloud: str, known: Known) -> dict[int, dict[str, Sizes]]:
    """What runs hold on each node, or will where they have places. One query."""
    tasks = Task.objects.filter(run__cloud=cloud, run__gone=False, phase__in=["Pending", "Running"]).exclude(node="")
    found: dict[int, dict[str, Sizes]] = {}
    for run, node, sizes in amounts(tasks, "run", "node"):
        here = found.setdefault(run, {})
        here[node] = here.get(node, NOTHING) + sizes
    for promise in known.promises:
        left, mine = promise.lacks, found.setdefault(promise.run, {})
        for node, places in sorted(promise.open.items()):
            if count := min(left, places):
                left -= count
                mine[node] = mine.get(node, NOTHING) + Sizes.of_tasks(promise.tasks, count)
    return found


def _history(cloud: str, newest: int) -> tuple[History, int]:
    """How long runs held their places. One query."""
    rows = Run.objects.filter(
        cloud=cloud, pk__gt=newest - LOOKED_AT, placed_at__isnull=False, finished_at__isnull=False
    )
    times = rows.order_by("-pk").values_list(*_KIND, "placed_at", "finished_at")[:ENDED]
    found = History((_kind(*of), _seconds(end - begin)) for *of, begin, end in times)
    return found, found.count


def _lengths(history: History, waiting: Sequence[int]) -> dict[str, Length]:
    """Of runs that wait. One query."""
    found = {}
    for pk, *of in Run.objects.filter(pk__in=waiting).values_list("pk", *_KIND):
        kind = _kind(*of)
        found[str(pk)] = Length(history.lasted(kind, 0), 0, kind.limit)
    return found


def _living(
    cloud: str, held: Mapping[int, Mapping[str, Sizes]], waiting: set[int], history: History, at: dt.datetime
) -> Iterator[tuple[Living, Length]]:
    """Runs that hold something, and how long they may last. One query."""
    rows = Run.objects.filter(_HOLDS, cloud=cloud).order_by("pk").values_list(
        "pk", "priority_class", "placed_at", "created_at", "deadline", "desired", "verdict", "given_back_at",
        *_ASKED, *_KIND,
    )  # fmt: skip
    asked: dict[tuple[str, ...], tuple[Tasks, ...]] = {}
    for pk, priority, placed_at, created_at, deadline, desired, verdict, given_back_at, *rest in rows:
        if pk in waiting:
            continue
        texts, kind = (rest[0], rest[1], rest[2]), _kind(*rest[3:])
        if texts not in asked:
            asked[texts] = whole_of(texts)
        since, appcode = placed_at or created_at, str(rest[4])
        until = deadline or (since + room.TO_BEGIN + dt.timedelta(seconds=kind.limit) if kind.limit else None)
        is_over = desired == Run.Desired.ENDED or bool(verdict)
        ask = Ask(str(pk), appcode, asked[texts], priority_class=priority, ends=room.ends_at(at, kind.limit))
        yield (
            Living(
                ask, held.get(pk, {}), int(since.timestamp()), int((until + TO_END).timestamp()) if until else None,
                is_over or given_back_at is not None, returns=not is_over,
            ),
            Length(history.lasted(kind, age := _seconds(at - since)), age, _seconds(until - since) if until else None),
        )  # fmt: skip


def _kind(cluster: int, appcode: int, framework: str | None, gpus: int, limit: str | None) -> Kind:
    return Kind(cluster, (appcode, framework), gpus, int(limit) if limit else None)


def _seconds(span: dt.timedelta) -> int:
    return max(0, int(span.total_seconds()))


@transaction.atomic
def _write(cloud: str, scene: Scene, likely: Mapping[str, Likely], values: Values, at: dt.datetime) -> None:
    runs = [int(ask.run) for ask in scene.asks]
    old = {row.pk: row for row in Forecast.objects.filter(pk__in=runs)}
    gpus = sum(node.whole.gpus for node in scene.nodes if node.ready)
    newest = max([*runs, *(int(each.ask.run) for each in scene.living)])
    rows = []
    # Still there, and still without places.
    for pk in Run.objects.filter(pk__in=runs, placed_at=None).values_list("pk", flat=True):
        row = old.get(pk) or Forecast(pk=pk)
        found = likely.get(str(pk))
        row.cloud, row.as_of, row.values = cloud, at, dict(values)
        row.p50, row.p90 = (_moment(found.p50), _moment(found.p90)) if found else (None, None)
        if row.first_at is None and found:
            row.first_at, row.first_p50, row.first_p90 = at, row.p50, row.p90
            row.first_gpus, row.first_newest = gpus, newest
        rows.append(row)
    _explain(rows, scene, gpus)
    fields = ["cloud", "p50", "p90", "as_of", "values", *_FIRST]
    Forecast.objects.bulk_create(rows, update_conflicts=True, unique_fields=["run"], update_fields=fields)


def _explain(rows: Sequence[Forecast], scene: Scene, gpus: int) -> None:
    """Adds why some are later than they were told first: runs that came since and go before, or GPUs that are there no more."""
    late = [
        row for row in rows if row.first_at and row.first_p90 and row.p90 and has_slipped(row.first_at, row.first_p90, row.p90)
    ]  # fmt: skip
    if not late:
        return
    order = [ask for ask, _ in ordered(Snapshot(scene.nodes, scene.asks, scene.shares))]
    place = {int(ask.run): number for number, ask in enumerate(order)}
    for row in late:
        mine = order[place[row.pk]]
        before = [*order[: place[row.pk]], *(each.ask for each in scene.living)]
        came = [ask.appcode == mine.appcode for ask in before if int(ask.run) > row.first_newest]
        fewer = max(0, row.first_gpus - gpus)
        row.values |= {"late": 1, "own": sum(came), "others": len(came) - sum(came), "fewer": fewer}


def _moment(seconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


# What is read.


def forecasts_of(runs: Iterable[Run], now: dt.datetime | None = None) -> dict[int, Foretold]:
    """What is told of when these runs start, for those that wait. One query if some wait for places, however many there are."""
    now, found, held = now or timezone.now(), dict[int, Foretold](), list[int]()
    for run in runs:
        if run.is_terminal or run.placed_at or run.desired != Run.Desired.RUNNING or run.refusal:
            continue
        if run.wait_reason in HELD:
            held.append(run.pk)
            found[run.pk] = Foretold(why=UNKNOWN)
        elif run.wait_reason:
            found[run.pk] = Foretold(why=FIRST)
        elif run.admitted_at and run.phase == Run.Phase.QUEUED:
            found[run.pk] = Foretold(why=QUEUE)
    if held:
        for row in Forecast.objects.filter(pk__in=held):
            found[row.pk] = foretold(row.p50, row.p90, row.as_of, row.values, now)
    return found


def errors() -> dict[str, float]:
    """By cloud, how many seconds the last starts were away from when they were probable, on average. One query."""
    rows: Any = Forecast.objects.filter(started_at__isnull=False, first_p50__isnull=False)
    several: dict[str, list[float]] = {}
    for cloud, begun, probable in rows.values_list("cloud", "started_at", "first_p50"):
        several.setdefault(cloud, []).append(abs((begun - probable).total_seconds()))
    return {cloud: sum(found) / len(found) for cloud, found in sorted(several.items())}
