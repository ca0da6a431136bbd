"""The contract between the portal and whatever runs its tasks: frozen values in, frozen values out, no database.

A cloud is told the whole plan of a run and is asked to make it so; it reports what it sees, and never decides what a run
means. All calls may block on the network, so no caller holds a transaction. All calls may be repeated: applying the same
plan twice, or deleting what is already gone, does nothing. Two clouds exist: `kubernetes` and `local` (this machine).

Environment values and TF_CONFIG are written once per role, in Kubernetes' own syntax: `$(NAME)` is replaced by the value
of another variable of the same task, `$$(` is a literal `$(`, and TASK_INDEX is always defined. So one object per role
is enough on Kubernetes, and the local cloud calls `expand` below to read the same text the same way. What all tasks of a run
have in common is written once per run, and referred to in the same way.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

TaskPhase = Literal["Pending", "Running", "Succeeded", "Failed"]
RestartPolicy = Literal["OnFailure", "Always"]
StorageState = Literal["none", "fetching", "ready", "storing", "stored", "failed"]
SourceKind = Literal["s3", "nfs", "local", "volume"]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]


class CloudError(Exception):
    """The cloud cannot do this now; repeat later. The text is shown to people. `after` is how many seconds the cloud asked
    to wait, None when it did not say."""

    after: float | None = None


class Unanswered(CloudError):
    """Nobody was there: no connection could be made, or it was lost or silent for too long before an answer came."""


class CloudRefused(CloudError):
    """The cloud will never do this as asked; repeating is useless. The text says what to change."""


class NotOurs(CloudRefused):
    """The place that a run was to have belongs to somebody else. Nothing of the run is there, and nothing was changed."""


class WatchExpired(CloudError):
    """The position is older than what the cloud remembers (HTTP 410): list again and compare."""


@dataclass(frozen=True)
class RunRef:
    """Names one run everywhere. `id` is unique for ever; the rest is for people, paths and labels."""

    id: int
    namespace: str
    appcode: str
    cluster: str
    number: int


@dataclass(frozen=True)
class S3Source:
    """A folder of a bucket. `prefix` has no leading and no trailing slash; empty means the whole bucket."""

    kind: ClassVar[SourceKind] = "s3"

    endpoint: str
    bucket: str
    prefix: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str = "us-east-1"


@dataclass(frozen=True)
class NfsSource:
    """A folder of an NFS export, mounted by the node. `path` already includes the folder of the run.

    `root` is the folder that exists and `path` lies inside it; "" when they are the same.
    """

    kind: ClassVar[SourceKind] = "nfs"

    server: str
    path: str
    root: str = ""


@dataclass(frozen=True)
class LocalSource:
    """A folder of this machine that an administrator allowed. `root` is the allowed folder and `path` lies inside it.

    The cloud resolves symbolic links at the start and refuses a path that leaves `root`.
    """

    kind: ClassVar[SourceKind] = "local"

    root: str
    path: str


@dataclass(frozen=True)
class VolumeRef:
    """Names one volume everywhere. `id` is unique for ever; the rest is for people, names and labels."""

    id: int
    namespace: str
    appcode: str
    datastore: str


@dataclass(frozen=True)
class VolumeSource:
    """A folder of a volume with a size, which the cloud keeps from the first run that mounts it until `delete_volume`.

    `storage_class` is the cloud's own word for how it is made ("" for its default), `size` a Kubernetes quantity. A
    ReadWriteOnce volume is mounted by one task at a time. `folder` lies in it and is made when it is not there.
    """

    kind: ClassVar[SourceKind] = "volume"

    volume: VolumeRef
    storage_class: str
    size: str
    access_mode: AccessMode
    folder: str = ""


Source = S3Source | NfsSource | LocalSource | VolumeSource


@dataclass(frozen=True)
class Mount:
    """A datastore at a path inside every task. Input is read-only and fetched before the start.

    For output, what already lies there is fetched first too (resuming); during the run changed files are stored every few
    seconds, and once more when the last task has ended, whether it succeeded, failed or was stopped.
    """

    mount_path: str
    read_only: bool
    source: Source


@dataclass(frozen=True)
class ImageRef:
    """Where the program's software comes from: a container image, or a virtual environment and a program folder here.

    `container` is a reference for Kubernetes ("" when there is none). `environment` is the path of a virtual environment
    and `program` of a folder mounted read-only at /elearn/program, where commands start ("" when there is none).
    """

    name: str
    container: str
    environment: str
    program: str


@dataclass(frozen=True)
class RolePlan:
    """All tasks of one role; they differ only in TASK_INDEX (0 … count-1).

    `argv` is run exactly as it stands, without a shell of ours. `gpu_model` is "" for any. `restart`: OnFailure starts a
    failed task again up to `retries` times and leaves a succeeded one alone; Always keeps every task alive, with back-off,
    until the run is deleted.
    """

    role: str
    count: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cpu_milli: int
    memory_mb: int
    gpus: int
    gpu_model: str
    restart: RestartPolicy
    retries: int


@dataclass(frozen=True)
class Plan:
    """Everything a cloud needs to run one run. `grace_seconds` lie between SIGTERM and SIGKILL.

    `shared` are variables of every task, exactly as they stand; the `env` of a role may refer to them and has none of the same
    name. What grows with the number of tasks belongs here: a cloud keeps it once, not with every task.
    """

    run: RunRef
    image: ImageRef
    roles: tuple[RolePlan, ...]
    mounts: tuple[Mount, ...]
    grace_seconds: int = 10
    shared: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSeen:
    """One seen state of one pod. Times are UTC; `gpus` are the device ids (or names) that this pod holds.

    `uid` is new for every attempt; `attempt` counts from 0 for each (role, index). `reason` is a CamelCase word: for Pending
    Unschedulable (waits for GPUs), WaitingForResources (for CPU, memory or disk), PullingImage, MountingVolume,
    FetchingInput, BackOff, Starting; for Running BackOff (its
    program ended and is started again in the same pod), NodeLost (its machine does not answer); for Failed Error, OOMKilled,
    Disrupted, Lost, Stopped. `message` is a sentence for people. `scheduled_at` is when GPUs were assigned, `began_at` when
    the first container of the pod ran, be it to fetch its data (metering starts), `started_at` when its program did,
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
    """How far the data of a run is: fetching input, ready, storing output, stored (final), failed (retried by the cloud).

    `warning` is a sentence on data that is there and hardly what people meant: input without any file.
    """

    run_id: int
    state: StorageState
    message: str = ""
    warning: str = ""


@dataclass(frozen=True)
class RunGone:
    """Nothing of the run is left but its logs: every process has ended, GPUs are free, output is stored or given up.

    `stored` is False when the output could not be stored; `message` then says why and where the files still lie.
    """

    run_id: int
    stored: bool = True
    message: str = ""


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


Seen = TaskSeen | StorageSeen | RunGone | RunBlocked | RunFound | RunChanged


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

    `over` when it is a pod that holds nothing any more and of which nothing else tells: since `finished_at`, where that is known.
    """

    raw: str
    reason: str
    uid: str = ""
    run_id: int | None = None
    over: bool = False
    finished_at: dt.datetime | None = None


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

    `cpu_milli` and `memory_mb` are what tasks may have of it, `…_free` what no run holds or waits for, None where the cloud does
    not say.
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


@dataclass(frozen=True)
class Waiting:
    """A run that waits for GPUs (or CPU or memory, then of 0 GPUs), in the order in which the cloud will start them."""

    run_id: int
    gpus: int
    gpu_model: str


@dataclass(frozen=True)
class Capacity:
    nodes: tuple[Node, ...]
    queue: tuple[Waiting, ...] = ()


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
    """

    data: bytes
    offset: int
    complete: bool
    cursor: str = ""
    absent: bool = False


@dataclass(frozen=True)
class Output:
    """What a command inside a task wrote. With a terminal everything is stdout."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class Session(Protocol):
    """A command that runs inside a task. One thread may send while another receives; CloudError from any call means that it
    was cut off. Closing a session ends its command where the cloud can do that, and may be repeated."""

    # Set when the command has ended and all of its output was received; 128 and the number for one ended by a signal.
    exit_code: int | None

    def send(self, data: bytes) -> None:
        """Bytes for its standard input, or typed on its terminal."""

    def end_input(self) -> None:
        """Its standard input is at its end; for commands without a terminal."""

    def resize(self, columns: int, rows: int) -> None:
        """The size of its terminal."""

    def receive(self, seconds: float) -> Output | None:
        """What it wrote next; None when there was nothing for so long, or when it has ended."""

    def close(self) -> None: ...


class Cloud(Protocol):
    """See the module's docstring for what repeated and absent mean; `CloudError` from any call means: try again later."""

    name: str
    # Whether logs stay until `purge`. Otherwise they go with their pods, unless somebody copies them in time.
    keeps_logs: bool
    # The kinds of sources that its tasks can mount; `apply` refuses a plan with any other.
    mounts: frozenset[SourceKind]
    # How many characters an address from `reserve` has at most.
    longest_address: int

    def reserve(self, run: RunRef, counts: Mapping[str, int]) -> dict[tuple[str, int], str]:
        """`host:port` for every (role, index); the same answer every time until the run is deleted."""

    def apply(self, plan: Plan) -> None:
        """Makes the run exist as planned and returns at once. Raises CloudRefused for what can never run here.

        Volumes that it mounts are made when they are not there. After `delete(run)` an apply of the same run does nothing:
        a run never comes back to life.
        """

    def delete(self, run: RunRef) -> None:
        """Asks for the end of everything but the logs and returns at once; `RunGone` comes by the watch when it is done.

        Deleting a run that the cloud has never seen also leads to RunGone.
        """

    def purge(self, run: RunRef) -> None:
        """Removes the logs too. Only after RunGone."""

    def apply_volume(self, source: VolumeSource) -> None:
        """Makes the volume, or lets it grow to its size, and returns at once; `folder` does not matter. Raises CloudRefused
        for what can never be, with the reason in the cloud's own words."""

    def delete_volume(self, volume: VolumeRef) -> None:
        """Asks for the end of the volume with all that is in it; it goes when no task mounts it any more."""

    def list(self) -> Batch:
        """Every run and task that the cloud knows, and the position to watch from."""

    def watch(self, since: str) -> Iterator[Batch]:
        """News after `since`, at least one (maybe empty) batch every 10 s, and an empty one soon after the last of some news:
        only then is it worth while to ask what is free. Ends or raises CloudError when cut off; raises WatchExpired when
        `since` is too old."""

    def acknowledge(self, items: Sequence[Seen]) -> None:
        """`items` are written down for good, so the cloud may let go of what it kept for them alone. It returns at once and
        never fails; what was not acknowledged is told again by the next listing."""

    def capacity(self) -> Capacity: ...

    def gpu_use(self, since: str) -> Measurements:
        """How busy GPUs were, in minutes that are over, after position `since` ("" for the beginning of what is still known). A
        minute may be told twice; a cloud that was not asked for long may have forgotten some."""

    def log(
        self,
        run: RunRef,
        role: str,
        index: int,
        *,
        attempt: int,
        offset: int = 0,
        limit: int = 262_144,
        tail: int | None = None,
        cursor: str = "",
    ) -> LogChunk:
        """At most `limit` bytes of the log of one attempt, from `offset`, or the last `tail` bytes. `complete` is True when
        the task has ended and nothing is left to read. An absent log is empty and complete; an offset behind the end is the
        end."""

    def follow(
        self, run: RunRef, role: str, index: int, *, attempt: int, offset: int = 0, cursor: str = ""
    ) -> Iterator[LogChunk]:
        """The log from `offset` as it comes: a (maybe empty) chunk as soon as it is open, and one every 10 s. From then on all of
        it comes, whatever becomes of the task. It ends after a chunk that is complete; close it to end it earlier."""

    def exec(
        self, run: RunRef, role: str, index: int, argv: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> Session:
        """Starts a command inside the running task, as its user, with its environment. Without `stdin` it reads nothing; with
        `tty` it has a terminal, and whatever it reads is typed there."""


_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Kubernetes' own rule for `$(NAME)`: unknown names stay as they are, and `$$` is one dollar sign.

    Source: k8s.io/kubernetes/third_party/forked/golang/expansion.
    """
    return _REFERENCE.sub(lambda m: "$" if m[0] == "$$" else values.get(m[1], m[0]), text)


def literal(text: str) -> str:
    """`text` such that `expand` gives it back unchanged, whatever is in it."""
    return text.replace("$", "$$")
