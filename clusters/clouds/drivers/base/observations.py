"""The output of a cloud: the state of runs, tasks and machines, logs and command output. Frozen values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from clusters.admission.demand import GPU
from clusters.clouds.drivers.base.plan import RunRef

TaskPhase = Literal["Pending", "Running", "Succeeded", "Failed"]
ActivityState = Literal["busy", "idle", "unknown"]
StorageState = Literal["none", "fetching", "ready", "storing", "stored", "failed", "refused"]
# The reason of a task whose environment is being made, and of one whose environment cannot be made.
MAKING, NOT_MADE = "MakingEnvironment", "EnvironmentNotMade"
# Why tasks of one run may report different inputs.
READ_OTHERS = "The input was changed while its tasks started: some of them have read other files than others."


@dataclass(frozen=True)
class TaskSeen:
    """One observed state of one pod. Times are UTC; `gpus` are the device ids (or names) that this pod holds.

    `uid` is new for every attempt; `attempt` counts from 0 for each (role, index). `reason` is a CamelCase word. Pending:
    NodeLost (its machine does not answer), Unschedulable (waits for GPUs), WaitingForResources (for CPU, memory or disk),
    PullingImage, ImageNotPulled (for too long), MountingVolume, MakingEnvironment, EnvironmentNotMade (for good), FetchingCode,
    FetchingInput, BackOff, Starting, Stopping. Running: BackOff (its program ended and is restarted in the same pod), NodeLost,
    Disrupted, Stopping, Storing. Failed: Error, EnvironmentNotMade, OOMKilled, Evicted, Disrupted, Lost, Stopped. `message` is a
    sentence for people, "" if the cloud knows no more than the exit code; lines after it are a program's own words.

    `scheduled_at`: when GPUs were assigned. `began_at`: start of billing, never before its data are fetched. `started_at`: the
    last start of its program in this pod. `finished_at`: when the last process had ended and the GPUs were free. `disrupted`: it
    ended by the cloud's fault, which does not count as a failure. `estimated`: the end was not observed. `log_tail`: the last
    lines (at most 4 KiB) of a failed task's log.
    """

    run_id: int
    role: str
    index: int
    attempt: int
    uid: str
    phase: TaskPhase
    reason: str = ""
    message: str = ""
    node: str = ""
    gpus: tuple[str, ...] = ()
    gpu_model: str = ""
    scheduled_at: dt.datetime | None = None
    began_at: dt.datetime | None = None
    started_at: dt.datetime | None = None
    finished_at: dt.datetime | None = None
    exit_code: int | None = None
    disrupted: bool = False
    estimated: bool = False
    log_tail: str = ""


@dataclass(frozen=True)
class StorageSeen:
    """The state of a run's data: fetching input, ready, storing output, stored (final), failed (the cloud retries), refused
    (final: the input differs from the requested one; see `message`).

    `warning`: a sentence on data that are probably not what people meant, such as an input without files. `digest`, `files` and
    `bytes` describe the listing of the copied input (datastores/listing.py); "" and 0 if unknown.
    """

    run_id: int
    state: StorageState
    message: str = ""
    warning: str = ""
    digest: str = ""
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class RunGone:
    """Nothing of the run is left but its logs: every process has ended, GPUs are free, output is stored or given up.

    `stored` is False if the output could not be stored; `message` then says why and where the files are. Otherwise `message`
    names who or what ended the run unasked, if the cloud knows. `life`: as in RunRef.
    """

    run_id: int
    stored: bool = True
    message: str = ""
    life: int = 0


@dataclass(frozen=True)
class EndpointSeen:
    """Endpoint `name` of a run. `ready`: from the first answer at its health path until the program ends or the run is ended.

    `address`: where the gateway of the portal's own machine reaches it (`host:port`), "" for a cloud with its own gateway."""

    run_id: int
    name: str
    ready: bool
    address: str = ""


@dataclass(frozen=True)
class ActivitySeen:
    """Whether a run works; reported on changes, only for runs with an `Endpoint.activity`. busy: `why` is a sentence. idle:
    `since` then. unknown: does not count as idle, and is the initial state."""

    run_id: int
    state: ActivityState
    since: dt.datetime
    why: str = ""


@dataclass(frozen=True)
class RunBlocked:
    """What keeps the cloud from creating (all) tasks of a run: a quota, admission, a queue. `reason` is a CamelCase word,
    `message` a sentence for people; both are empty once nothing does."""

    run_id: int
    reason: str
    message: str


@dataclass(frozen=True)
class RunFound:
    """The run is in the cloud and not being ended. Reported by every listing, and when it appears."""

    run_id: int
    run: RunRef


@dataclass(frozen=True)
class RunChanged:
    """Others changed or removed objects of the run: it must be applied again."""

    run_id: int
    message: str


@dataclass(frozen=True)
class RunDecided:
    """What orders runs in the cloud lets the run go now, or takes it back: it must be applied again."""

    run_id: int


Seen = TaskSeen | StorageSeen | EndpointSeen | ActivitySeen | RunGone | RunBlocked | RunFound | RunChanged | RunDecided


@dataclass(frozen=True)
class PlaceChanged:
    """Others changed objects of a namespace (`place`) that the cloud keeps and repairs. `message` is for administrators."""

    place: str
    message: str


@dataclass(frozen=True)
class Unreadable:
    """A report of the cloud that could not be parsed. `raw`: its text without secrets. `reason`: a sentence. `uid` and `run_id`:
    of the object, if known.

    `over`: a pod that holds nothing any more; a listing that contains it does not mean that it exists.
    """

    raw: str
    reason: str
    uid: str = ""
    run_id: int | None = None
    over: bool = False


@dataclass(frozen=True)
class Batch:
    """News, in order, and the position after them (opaque; saved in the same transaction as the news).

    An empty batch is a heartbeat: the watch is alive and `position` may have moved. `unreadable` is stored for people and does
    not block anything; `changes` are for administrators.
    """

    position: str
    items: tuple[Seen, ...]
    unreadable: tuple[Unreadable, ...] = ()
    changes: tuple[PlaceChanged, ...] = ()


@dataclass(frozen=True)
class Slices:
    """An extended resource of one node beside its GPUs: slices of GPUs, or other devices. `free` ignores whether the node takes
    tasks. `others`: held by what belongs to no run of the portal."""

    resource: str
    total: int
    free: int
    others: int = 0


@dataclass(frozen=True)
class Node:
    """One machine. `note`: a sentence for users, e.g. that memory limits are not enforced here, or why it takes no (new) tasks.

    `silent_since`: when a machine that does not answer was last heard (ISO 8601, UTC; "?" if unknown), "" for all others.
    `cpu_milli` and `memory_mb`: available to tasks; `…_free`: not held, None if the cloud does not report it. `…_others`: held
    there by what belongs to no run of the portal, rounded up; 0 where nothing else runs, or in a report of an older release.
    `gpu_tasks_only`: refuses tasks without GPUs.

    `resource`: what `gpus` counts, whole GPUs of one vendor. `labels`: sorted. `taints`: as kubectl writes them with "=" even
    without a value; it takes only tasks that tolerate these. `slices`: by name. `domains`: where it is, from wide to narrow, such
    as ("zone", "a") and ("rack", "r7"), with "" where it is in none.
    """

    name: str
    gpu_model: str
    gpus: int
    gpus_free: int
    cpu_milli: int
    memory_mb: int
    simulated: bool = False
    note: str = ""
    takes_tasks: bool = True
    cpu_milli_free: int | None = None
    memory_mb_free: int | None = None
    gpu_tasks_only: bool = False
    silent_since: str = ""
    gpus_others: int = 0
    cpu_milli_others: int = 0
    memory_mb_others: int = 0
    resource: str = GPU
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[str, ...] = ()
    slices: tuple[Slices, ...] = ()
    domains: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Capacity:
    nodes: tuple[Node, ...]

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """A number for each node, equal for those with the same resources, labels and slices apart."""
        numbers: dict[Node, int] = {}
        alike = (
            replace(node, name="", note="", silent_since="", gpus_free=0, labels=(), slices=()) for node in self.nodes
        )
        return tuple(numbers.setdefault(node, len(numbers)) for node in alike)


@dataclass(frozen=True)
class GpuUse:
    """Utilization of one pod's GPUs in the minute from `minute` (UTC). `busy`: 0 to 1, the mean over its GPUs and the measured
    `seconds`. `memory_mb`: the highest use of their memory together, None if not measured. Values are final."""

    uid: str
    minute: dt.datetime
    seconds: float
    busy: float
    memory_mb: int | None = None


@dataclass(frozen=True)
class Measurements:
    """Measurements in order, and the position after them (opaque). `note`: a sentence on why nothing is measured."""

    position: str
    items: tuple[GpuUse, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class GpuNow:
    """One GPU of a task: how busy it is (0 to 100), and its memory in use. None: it does not say."""

    id: str
    percent: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Sample:
    """What one pod had used at `at` (seconds since 1970). `cpu_seconds` and the bytes that it `received`, `sent`, `read` from
    disk and has `written` to it only grow while the pod lives; a smaller value means that counting began anew. `cores`: CPU
    as a rate, from a cloud that counts no seconds. `memory_bytes` excludes files that the kernel can drop. None: not measured.
    """

    uid: str
    at: float
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    received: int | None = None
    sent: int | None = None
    read: int | None = None
    written: int | None = None
    gpus: tuple[GpuNow, ...] = ()
    cores: float | None = None


@dataclass(frozen=True)
class Samples:
    """Samples of running pods. `notes`: sentences on what is not measured, and what an administrator can do about it: of GPUs
    under "gpu", of the network under "network", of all else under "cpu"."""

    items: tuple[Sample, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LogChunk:
    """A piece of a task's log as bytes (not necessarily UTF-8). `offset`: where to continue.

    `cursor` belongs to `offset`: passed with it, a cloud without offsets continues there without reading the log from the
    beginning. It is opaque and may be ""; one of another offset or of an earlier chunk does no harm. `absent`: there is no such
    log, not yet or no longer.

    `line`: number of lines that end before the chunk. `marks`: when its lines, and maybe some before and after, were written
    (drivers/marks.py). `placed` is False if the cloud would have to read everything before the chunk to count: then offsets and
    lines count from where reading began near the end of the log, and `first` is the cursor of the chunk's beginning, with which
    `Cloud.log` reads what precedes it."""

    data: bytes
    offset: int
    complete: bool
    cursor: str = ""
    absent: bool = False
    line: int = 0
    marks: bytes = b""
    placed: bool = True
    first: str = ""

    @property
    def start(self) -> int:
        """The offset of its first byte."""
        return self.offset - len(self.data)


@dataclass(frozen=True)
class Output:
    """Output of a command inside a task. With a terminal everything is stdout."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True)
class Preflight:
    """The result of a test: a sentence, the identity of the cloud ("" if it may not be read), and `facts` in JSON."""

    ok: bool
    message: str
    identity: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
