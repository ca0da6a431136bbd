"""What a cloud tells: of runs and their tasks, of its machines, of logs and commands. Frozen values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from clusters.clouds.drivers.base.plan import RunRef

TaskPhase = Literal["Pending", "Running", "Succeeded", "Failed"]
ActivityState = Literal["busy", "idle", "unknown"]
StorageState = Literal["none", "fetching", "ready", "storing", "stored", "failed", "refused"]
# Why there may be several answers to what a run has read.
READ_OTHERS = "The input was changed while its tasks started: some of them have read other files than others."


@dataclass(frozen=True)
class TaskSeen:
    """One seen state of one pod. Times are UTC; `gpus` are the device ids (or names) that this pod holds.

    `uid` is new for every attempt; `attempt` counts from 0 for each (role, index). `reason` is a CamelCase word: for Pending
    NodeLost (its machine does not answer), Unschedulable (waits for GPUs), WaitingForResources (for CPU, memory or disk),
    PullingImage, ImageNotPulled (for too long), MountingVolume, MakingEnvironment, FetchingInput, BackOff, Starting; for
    Running BackOff (its program ended and is started again in the same pod), NodeLost (its machine does not answer); for
    Failed Error, OOMKilled, Disrupted, Lost, Stopped. `message` is a sentence for people, "" where the cloud knows
    no more than the exit code. `scheduled_at` is when GPUs were assigned, `began_at` from when on it is billed (never before its
    data have come), `started_at` when its program started, for the last time in this pod,
    `finished_at` when the last process had ended and its GPUs were free. `disrupted` marks an end that is the cloud's fault
    and not counted as a failure; `estimated` an end that nobody saw. `log_tail` holds the last lines (at most 4 KiB) of a
    failed task's log.
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
    """How far the data of a run is: fetching input, ready, storing output, stored (final), failed (retried by the cloud),
    refused (for good: the input is another than was asked for, which the message says).

    `warning` is a sentence on data that is there and hardly what people meant: input without any file. `digest`, `files` and
    `bytes` are those of the listing of what was copied as input (datastores/listing.py); "" and 0 where that is not known.
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

    `stored` is False when the output could not be stored; `message` then says why and where the files still lie. Otherwise it
    says who or what ended the run, where nobody had asked for that and the cloud knows.
    """

    run_id: int
    stored: bool = True
    message: str = ""


@dataclass(frozen=True)
class EndpointSeen:
    """Endpoint `name` of a run: `ready` since its program answers its health path, and until it ends or the run is to end.

    `address` is where the gateway of the portal's own machine reaches it (`host:port`), "" where the cloud has a gateway of its
    own."""

    run_id: int
    name: str
    ready: bool
    address: str = ""


@dataclass(frozen=True)
class ActivitySeen:
    """Whether a run works, told when that changes and only of runs with an endpoint that says so (`Endpoint.activity`): busy with
    `why` in a sentence, idle `since` then, or unknown, which is no idleness. Until anything is told it is unknown."""

    run_id: int
    state: ActivityState
    since: dt.datetime
    why: str = ""


@dataclass(frozen=True)
class RunBlocked:
    """What keeps the cloud from making (all) tasks of a run: a quota, admission, a queue. `reason` is a CamelCase word and
    `message` a sentence for people; both are empty when nothing does any more."""

    run_id: int
    reason: str
    message: str


@dataclass(frozen=True)
class RunFound:
    """The run is in the cloud, and nobody has asked the cloud to end it. Told by every listing, and when it appears."""

    run_id: int
    run: RunRef


@dataclass(frozen=True)
class RunChanged:
    """Somebody changed or removed what the run is made of, behind our back: to be as planned it must be applied again."""

    run_id: int
    message: str


Seen = TaskSeen | StorageSeen | EndpointSeen | ActivitySeen | RunGone | RunBlocked | RunFound | RunChanged


@dataclass(frozen=True)
class PlaceChanged:
    """Somebody changed what a cloud keeps around all runs of one place, a namespace: it puts that right itself, and
    administrators are told `message`."""

    place: str
    message: str


@dataclass(frozen=True)
class Unreadable:
    """Something that the cloud told and that could not be understood: `raw` is its text without anything secret, `reason` a
    sentence. `uid` is that of the thing and `run_id` its run, where at least these can be told.

    `over` when it is a pod that holds nothing any more: a listing that has it does not say that it is there.
    """

    raw: str
    reason: str
    uid: str = ""
    run_id: int | None = None
    over: bool = False


@dataclass(frozen=True)
class Batch:
    """News, in order, and the position after them (opaque; saved in the same transaction as the news).

    An empty batch is a heartbeat (a bookmark): the watch is alive and `position` may have moved. `unreadable` is to be kept for
    people, and holds up nothing; `changes` are for administrators.
    """

    position: str
    items: tuple[Seen, ...]
    unreadable: tuple[Unreadable, ...] = ()
    changes: tuple[PlaceChanged, ...] = ()


@dataclass(frozen=True)
class Node:
    """One machine. `note` says in a sentence what a user should know, e.g. that memory limits are not enforced here, or
    why it takes no (new) tasks.

    `silent_since`: when a machine that does not answer was last heard (ISO 8601, UTC; "?" where nobody knows),
    "" of all others.
    `cpu_milli` and `memory_mb` are what tasks may have of it, `…_free` what nobody holds (nor a run waits for, in a capacity
    that is `in_order`), None where the cloud does not say. `gpu_tasks_only`: tasks without GPUs are kept away.
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


@dataclass(frozen=True)
class Waiting:
    """A run that waits for GPUs (or CPU or memory, then of 0 GPUs), in the order in which the cloud will start them."""

    run_id: int
    gpus: int
    gpu_model: str


@dataclass(frozen=True)
class Capacity:
    """`in_order`: what waits is started strictly in the order of `queue`, and later runs take nothing that an earlier one could
    use. Elsewhere a run that fits starts, whoever waits for more."""

    nodes: tuple[Node, ...]
    queue: tuple[Waiting, ...] = ()
    in_order: bool = False


@dataclass(frozen=True)
class GpuUse:
    """How busy the GPUs of one pod were in the minute that began at `minute` (UTC): `busy` from 0 to 1, on average over its GPUs
    and over those `seconds` of the minute in which it was measured. `memory_mb` is the most of their memory, together, that was
    seen in use, None where nobody looked. What is told of a minute is final."""

    uid: str
    minute: dt.datetime
    seconds: float
    busy: float
    memory_mb: int | None = None


@dataclass(frozen=True)
class Measurements:
    """What was measured, in order, and the position after it (opaque). `note` says in a sentence why nothing is measured."""

    position: str
    items: tuple[GpuUse, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class LogChunk:
    """A piece of a task's log as bytes (UTF-8 is not promised) and the offset at which to go on.

    `cursor` belongs to `offset`: given back with it, a cloud that has no offsets of its own goes on there without reading
    everything before. It is opaque and may be ""; that of another offset or of an earlier chunk does no harm. `absent` when there
    is no such log, not yet or not any more.

    `line` is how many lines end before the chunk, and `marks` say when its lines were written (drivers/marks.py; maybe some
    before and behind it, too). A chunk is not `placed` when the cloud would have to read everything before it to count: then
    offsets and lines are counted from where it was begun at the end of the log, and `first` is the cursor of its beginning, by
    which `Cloud.log` reads what lies before."""

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
    """What a command inside a task wrote. With a terminal everything is stdout."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True)
class Preflight:
    """What came of a test: a sentence, whose cloud answered ("" when that may not be seen), and `facts` in JSON."""

    ok: bool
    message: str
    identity: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
