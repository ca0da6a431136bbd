"""From sightings of one pod to the time for which it held its resources: pure functions and frozen values.

A segment is a function of the *set* of sightings of its pod. So repeated or reordered sightings, restarts of the
watcher or two watchers at once cannot change the bill, and a replay of the stored observations gives the same segments.
Times are UTC. Both ends are cut to whole seconds in the same way, so a GPU handed from one pod to the next within a
second is counted once, and parts of a segment add up to the whole.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import orjson

from billing.money import CLASSES

TERMINAL = frozenset({"Succeeded", "Failed"})
# Tolerated clock skew: a node's clock may run ahead of ours by this much, since durations are still right. Times
# further in the future are impossible.
MAX_SKEW = dt.timedelta(minutes=15)
PHASE_ORDER = {"Pending": 0, "Running": 1, "Failed": 2, "Succeeded": 3}

# Flags of a segment, in the order in which they are stored.
START_CLAMPED = "start-clamped"
END_CLAMPED = "end-clamped"
END_MISSING = "end-missing"
END_ESTIMATED = "end-estimated"
AMOUNTS_CHANGED = "amounts-changed"
FLAGS = (START_CLAMPED, END_CLAMPED, END_MISSING, END_ESTIMATED, AMOUNTS_CHANGED)


@dataclass(frozen=True)
class Resources:
    """What one pod holds: whole GPUs of a model ("" is any), thousandths of a core, MiB of memory and of storage.
    `gpu_class`: that of its GPUs, one of `money.CLASSES`, or ""."""

    gpus: int = 0
    gpu_model: str = ""
    cpu_milli: int = 0
    memory_mb: int = 0
    storage_mb: int = 0
    gpu_class: str = ""

    @property
    def cores(self) -> float:
        return self.cpu_milli / 1000

    @property
    def memory_bytes(self) -> int:
        return self.memory_mb * 1024 * 1024


@dataclass(frozen=True)
class PodState:
    """One sighting of one pod, as reported by its cloud.

    `scheduled_at` is when its resources were reserved, `started_at` when its program first ran (after its image and
    data were fetched), `finished_at` when its last container had ended; `phase` is Kubernetes'. `consumer` is the
    caller's key for what the pod belongs to ("run 17"). `labels` are names that survive deletion: pages group by
    "cluster", "run", "role" and "index", a pod with "serves" exists only for the other pods of its consumer, and the
    "class" of its GPUs may be spare or urgent.
    `seen_at` is when the portal saw it; `record.record` sets it. Volumes and buckets are metered in the same way: they
    hold `storage_mb` from creation to deletion, and a change of size begins a new uid.
    """

    uid: str
    cloud: str
    appcode_id: int
    consumer: str
    labels: Mapping[str, str | int]
    phase: str
    gpus: int = 0
    gpu_model: str = ""
    cpu_milli: int = 0
    memory_mb: int = 0
    scheduled_at: dt.datetime | None = None
    started_at: dt.datetime | None = None
    finished_at: dt.datetime | None = None
    estimated: bool = False
    seen_at: dt.datetime | None = None
    storage_mb: int = 0

    @property
    def resources(self) -> Resources:
        return Resources(
            self.gpus, self.gpu_model, self.cpu_milli, self.memory_mb, self.storage_mb, gpu_class(self.labels)
        )

    @property
    def digest(self) -> str:
        """64 hexadecimal digits, equal for equal states whenever they were seen."""
        times = [
            moment if moment is None or moment.tzinfo is dt.UTC else moment.astimezone(dt.UTC)
            for moment in (self.scheduled_at, self.started_at, self.finished_at)
        ]
        amounts = [self.gpus, self.gpu_model, self.cpu_milli, self.memory_mb]
        # Storage was added later; states without it must keep their digest.
        amounts += [self.storage_mb] if self.storage_mb else []
        labels = dict(self.labels)
        parts = [
            self.uid, self.cloud, self.appcode_id, self.consumer, labels, self.phase, *amounts, *times, self.estimated,
        ]  # fmt: skip
        return hashlib.sha256(_canonical(parts)).hexdigest()


def _canonical(parts: list[object]) -> bytes:
    """JSON with sorted keys, without spaces, in ASCII. For ASCII-only values orjson gives the same text ten times as fast."""
    try:
        text = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        text = b"\x7f"
    if text.isascii() and b"\x7f" not in text:
        return text
    said = [part.isoformat() if isinstance(part, dt.datetime) else part for part in parts]
    return json.dumps(said, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Segment:
    """[started, ended) in whole seconds for which pod `uid` held `resources`; `ended` is None while it still does."""

    uid: str
    appcode_id: int
    consumer: str
    labels: Mapping[str, str | int]
    resources: Resources
    started: dt.datetime
    ended: dt.datetime | None = None
    flags: tuple[str, ...] = field(default=())

    def seconds(self, now: dt.datetime) -> int:
        """Whole seconds held until `now`; 0 if it has not begun."""
        until = floor(now) if self.ended is None else min(self.ended, floor(now))
        return max(0, whole_seconds(until - self.started))

    def within(self, since: dt.datetime, until: dt.datetime) -> Segment | None:
        """The part that lies in [since, until), or None. The parts of adjoining windows add up."""
        since, until = floor(since), floor(until)
        if self.started >= until or (self.ended is not None and self.ended <= since):
            return None
        ended = self.ended if self.ended is not None and self.ended <= until else until
        return replace(self, started=max(self.started, since), ended=ended)


def segment_of(states: Iterable[PodState]) -> Segment | None:
    """The segment derived from the sightings of one pod, in any order and repetition; None while it held nothing.

    It begins with the earliest `started_at`: time reserved for fetching an image or data is not billed. It ends with
    the last `finished_at` of a terminal phase, preferring observed over estimated ones; a deletion is never an end.
    Impossible times are mended and flagged: a terminal pod without an end holds nothing after its last known time; a
    time ahead of its sighting by more than MAX_SKEW becomes the sighting's; a start that far before `scheduled_at`
    becomes `scheduled_at`; an end before the start becomes the start. Raises ValueError for states of several pods.
    """
    told = list(states)
    mended = [_mended(state) for state in told]
    seen = [state for state, _ in mended]
    if len({state.uid for state in seen}) > 1:
        raise ValueError("a segment belongs to one pod")
    flags = {flag for _, found in mended for flag in found}
    holding = [state for state in seen if state.started_at]
    if not holding:
        return None
    reserved = [state.scheduled_at for state in seen if state.scheduled_at]
    running = [state.started_at for state in holding if state.started_at]
    started = min(running)
    if reserved and started < min(reserved) - MAX_SKEW:
        started = min(reserved)
        flags.add(START_CLAMPED)
    if len({state.resources for state in holding}) > 1:
        flags.add(AMOUNTS_CHANGED)
    ended = None
    if terminal := [state for state in seen if state.phase in TERMINAL]:
        certain = [state.finished_at for state in terminal if state.finished_at and not state.estimated]
        estimated = [state.finished_at for state in terminal if state.finished_at and state.estimated]
        if not certain:
            flags.add(END_ESTIMATED if estimated else END_MISSING)
        ended = max(certain or estimated or reserved + running)
        if ended < started:
            ended = started
            flags.add(END_CLAMPED)
    # By the original digests, not those of mended states, so that SQL can compute the same.
    holding_as_told = [(state, original.digest) for state, original in zip(seen, told, strict=True) if state.started_at]
    last, _ = max(holding_as_told, key=lambda pair: (PHASE_ORDER.get(pair[0].phase, 0), pair[1]))
    return Segment(
        uid=last.uid,
        appcode_id=last.appcode_id,
        consumer=last.consumer,
        labels=dict(last.labels),
        resources=last.resources,
        started=started,
        ended=ended,
        flags=tuple(flag for flag in FLAGS if flag in flags),
    )


def gpu_class(labels: Mapping[str, str | int]) -> str:
    """The class of the GPUs of a pod with these labels. `split.GPU_CLASS` is the same in SQL."""
    found = labels.get("class")
    return found if isinstance(found, str) and found in CLASSES else ""


def floor(moment: dt.datetime) -> dt.datetime:
    """The whole second in UTC at or before it. Raises ValueError for a time without a zone."""
    if moment.tzinfo is None:
        raise ValueError("a time without a zone cannot be billed")
    return moment.astimezone(dt.UTC).replace(microsecond=0)


def whole_seconds(span: dt.timedelta) -> int:
    return span // dt.timedelta(seconds=1)


def _mended(state: PodState) -> tuple[PodState, set[str]]:
    """The state in whole seconds without impossible times, and the flags for what was mended."""
    flags = set()
    limit = None if state.seen_at is None else floor(state.seen_at)

    def possible(moment: dt.datetime | None, flag: str) -> dt.datetime | None:
        if moment is None:
            return None
        if limit is not None and floor(moment) > limit + MAX_SKEW:
            flags.add(flag)
            return limit
        return floor(moment)

    scheduled, started = possible(state.scheduled_at, START_CLAMPED), possible(state.started_at, START_CLAMPED)
    # Only a terminal phase has an end; a running pod may report one for a container that was restarted.
    finished = possible(state.finished_at, END_CLAMPED) if state.phase in TERMINAL else None
    return replace(state, scheduled_at=scheduled, started_at=started, finished_at=finished), flags
