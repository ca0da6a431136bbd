"""Samples what the tasks of a cloud do, every 10 s: a thread of the process that follows the cloud, for as long as it does.

One call to the cloud and one statement store all tasks, however many there are. What rates start from is in memory, and in the
rows for the next process. A cloud that fails leaves a gap, and its reason in the controller's log.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, connection, connections, transaction

from clusters.clouds.drivers.base import Cloud, CloudError, GpuNow, Sample, SamplesTasks
from clusters.clouds.models import CloudState
from clusters.machine import series
from clusters.machine.models import MachineSeries
from clusters.machine.rates import QUANTITIES, Step, idle_since, step
from clusters.runs.models import Run, Task

log = logging.getLogger(__name__)

BLOCK = series.SPANS[series.STEP]
# Seconds after which a task that is not sampled any more is forgotten.
FORGOTTEN = 600.0
# Seconds for which the end of a tick is waited for.
ENDED = 5.0
UNSAMPLED = "Clouds of this kind do not tell what tasks do."
STORE = """
INSERT INTO clusters_machineseries AS s (run_id, role, index, attempt, at, state, begin, recent)
SELECT * FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::int[], %s::timestamptz[], %s::jsonb[], %s::timestamptz[],
    %s::bytea[])
ON CONFLICT (run_id, role, index, attempt) DO UPDATE SET at = excluded.at, state = excluded.state, begin = excluded.begin,
    recent = CASE WHEN s.begin = excluded.begin THEN s.recent || excluded.recent ELSE excluded.recent END
"""
FLUSH = """
WITH full_ones AS (SELECT id, begin, recent FROM clusters_machineseries WHERE begin < %s FOR NO KEY UPDATE),
moved AS (
    INSERT INTO clusters_machineblock (series_id, step, begin, data)
    SELECT id, %s, begin, recent FROM full_ones WHERE recent <> ''
)
UPDATE clusters_machineseries s SET begin = NULL, recent = '' FROM full_ones WHERE s.id = full_ones.id
"""
Key = tuple[int, str, int, int]


@dataclass
class Known:
    """What is known of one series: when it began and its last sample, since when which GPU is idle, and of each quantity for how
    many seconds it is known, the sum of value × seconds, and the largest value."""

    key: Key
    since: float = 0.0
    sample: Sample | None = None
    idle: dict[str, float] = field(default_factory=dict)
    totals: list[list[float | None]] = field(default_factory=lambda: [[0.0, 0.0, None] for _ in QUANTITIES])

    @classmethod
    def stored(cls, row: MachineSeries) -> Known:
        state = row.state
        said = dict(state.get("sample") or {})
        said["gpus"] = tuple(GpuNow(**gpu) for gpu in said.get("gpus", ()))
        sample = Sample(**said) if "uid" in said else None
        key = row.run_id, row.role, row.index, row.attempt
        return cls(key, state["since"], sample, state["idle"], state["totals"])

    def add(self, done: Step) -> None:
        for total, value in zip(self.totals, done.values, strict=True):
            if not math.isnan(value):
                total[0] = (total[0] or 0.0) + done.seconds
                total[1] = (total[1] or 0.0) + done.seconds * value
                total[2] = value if total[2] is None else max(total[2], value)

    def state(self, now: Step) -> str:
        values = [None if math.isnan(value) else value for value in now.values]
        sample = dataclasses.asdict(self.sample) if self.sample else None
        found = {"since": self.since, "sample": sample, "now": values, "idle": self.idle, "totals": self.totals}
        return json.dumps(found)


@dataclass(frozen=True)
class Line:
    """One series' part of a statement."""

    known: Known
    at: float
    state: str
    record: bytes


class Sampler:
    """The samples of one cloud. Used by one thread."""

    def __init__(self, source: Cloud) -> None:
        self.source = source
        self._known: dict[str, Known] = {}
        self._runs: dict[int, Known] = {}
        self._notes: Mapping[str, str] | None = None

    def tick(self, now: float) -> int:
        """Samples all tasks once; returns how many. Raises CloudError and DatabaseError."""
        if not isinstance(self.source, SamplesTasks):
            self._tell({"cpu": UNSAMPLED})
            return 0
        told = self.source.samples()
        self._learn([sample.uid for sample in told.items])
        begin = int(now // BLOCK) * BLOCK
        lines, done = list[Line](), defaultdict[int, list[Step]](list)
        for sample in told.items:
            known = self._known.get(sample.uid)
            # A cloud may tell the same twice, and times that a block cannot hold.
            if known is None or (known.sample and sample.at <= known.sample.at) or abs(now - sample.at) > BLOCK:
                continue
            what = step(known.sample, sample)
            known.idle = idle_since(known.idle, sample, what.seconds)
            known.sample, known.since = sample, known.since or sample.at
            at = max(sample.at, begin)
            if what.seconds:
                known.add(what)
                done[known.key[0]].append(what)
            lines.append(Line(known, at, known.state(what), series.fine(at - begin, what) if what.seconds else b""))
        lines += [self._together(run, steps, now, begin) for run, steps in done.items() if run in self._runs]
        store(lines, begin)
        self._tell(told.notes)
        self._forget(now)
        return len(told.items)

    def _together(self, run: int, steps: Sequence[Step], now: float, begin: int) -> Line:
        known = self._runs[run]
        known.sample, known.since = Sample("", now), known.since or now
        values = [[each.values[n] for each in steps if not math.isnan(each.values[n])] for n in range(len(QUANTITIES))]
        mean = Step(
            sum(each.seconds for each in steps) / len(steps),
            tuple(sum(some) / len(some) if some else math.nan for some in values),
        )
        known.add(mean)
        return Line(known, now, known.state(mean), series.whole(now - begin, steps))

    def _learn(self, uids: Collection[str]) -> None:
        """Reads what is known of tasks that were not sampled before. No query without such."""
        new = [uid for uid in uids if uid not in self._known]
        if not new:
            return
        keys = {
            uid: (run, role, index, attempt)
            for uid, run, role, index, attempt in Task.objects.filter(uid__in=new, run__gone=False).values_list(
                "uid", "run", "role", "index", "attempt"
            )
        }
        runs = {run for run, *_ in keys.values()}
        stored = {
            (row.run_id, row.role, row.index, row.attempt): Known.stored(row)
            for row in MachineSeries.objects.filter(run__in=runs).defer("recent")
        }
        for uid, key in keys.items():
            known = stored.get(key) or Known(key)
            # A run that began anew has the same attempts with other pods.
            self._known[uid] = known if known.sample and known.sample.uid == uid else replace_sample(known)
        for run, roles in Run.objects.filter(pk__in=runs - self._runs.keys()).values_list("pk", "roles"):
            if sum(role["count"] for role in roles.values()) > 1:
                key = (run, "", 0, 0)
                self._runs[run] = stored.get(key) or Known(key)

    def _forget(self, now: float) -> None:
        old = [uid for uid, each in self._known.items() if each.sample and now - each.sample.at > FORGOTTEN]
        for uid in old:
            del self._known[uid]
        for run in self._runs.keys() - {each.key[0] for each in self._known.values()}:
            del self._runs[run]

    def _tell(self, notes: Mapping[str, str]) -> None:
        """Writes what is not measured here, if that has changed."""
        if notes != self._notes:
            CloudState.objects.filter(name=self.source.name).update(unmeasured=dict(notes))
            self._notes = notes


def replace_sample(known: Known) -> Known:
    """Returns what is known of a task without the sample that it would go on from."""
    return dataclasses.replace(known, sample=None, idle={})


def store(lines: Sequence[Line], begin: int) -> None:
    """Adds the records of one moment, all of them of the block that begins at `begin`."""
    if not lines:
        return
    start = dt.datetime.fromtimestamp(begin, dt.UTC)
    columns: list[list[Any]] = [
        *map(list, zip(*(line.known.key for line in lines), strict=True)),
        [dt.datetime.fromtimestamp(line.at, dt.UTC) for line in lines],
        [line.state for line in lines],
        [start] * len(lines),
        [line.record for line in lines],
    ]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(FLUSH, [start, series.STEP])
        cursor.execute(STORE, columns)


@contextmanager
def sampling(source: Cloud) -> Iterator[None]:
    """Samples the cloud while the block runs, in a thread with a connection of its own."""
    stopped = threading.Event()
    thread = threading.Thread(target=_sample, args=(source, stopped), name=f"sample-{source.name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        # A silent cloud must not keep the next leader waiting.
        thread.join(ENDED)


def _sample(source: Cloud, stopped: threading.Event) -> None:
    sampler, said = Sampler(source), ""
    while not stopped.wait(series.STEP - time.time() % series.STEP):
        try:
            sampler.tick(time.time())
            said = ""
        except (CloudError, DatabaseError) as error:
            if str(error) != said:
                said = str(error)
                log.warning("%s: what its tasks do is not known now: %s", source.name, error)
            connections.close_all()
        except Exception:
            # A mistake with one answer must not end the samples until the next start; it is logged with its trace.
            log.exception("%s: what its tasks do is not known now", source.name)
            connections.close_all()
    connections.close_all()
