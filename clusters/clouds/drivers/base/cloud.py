"""What a cloud is and does: what every one has (`Cloud`), and what some can besides, each a Protocol of its own.

A driver inherits from `Cloud` and from what it can do; what it cannot do it does not have, so callers ask `isinstance`, or
`issubclass` where only the kind is known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from clusters.clouds.drivers.base.plan import Access, Gateway, Mount, Plan, RunRef, SourceKind, VolumeRef, VolumeSource
from clusters.clouds.drivers.base.seen import Batch, Capacity, LogChunk, Measurements, Output, Preflight, Seen

NO_COMMANDS = "Where this runs no commands can be run inside tasks."
# With the variables that a task's program has (clusters/frameworks/variables.py). Not every image has a bash.
SHELL = (
    "/bin/sh", "-c",
    'eval "$PORTAL_ENV"; unset PORTAL_ENV; command -v bash >/dev/null 2>&1 && exec bash; exec sh',
)  # fmt: skip
Software = Literal["environment", "container"]


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
    """`drivers.base` says what repeated and absent mean; `CloudError` from any call means: try again later.

    What is of the class is true of every cloud of the kind, and is asked without making one. `stored` are the settings in a row,
    maybe of an older version: what cannot be read counts as not said.
    """

    # What rows say, and what people call it.
    kind: ClassVar[str]
    title: ClassVar[str]
    # False for the portal's own machine: a part of the portal, which nobody registers. It is the one of its kind, called like it,
    # and the default where administrators chose none; its tasks reach the addresses of this machine.
    is_remote: ClassVar[bool]
    # Settings of the portal itself by which it is reached, by the name that `Access.settings` has for each. Without them it is
    # not there.
    environment: ClassVar[Mapping[str, str]] = {}
    # Settings that cannot be changed while something of ours is there, with what a refusal says of the old value before "2 runs".
    fixed_settings: ClassVar[Mapping[str, str]] = {}
    # Which of an image its tasks use.
    software: ClassVar[Software]
    # The kinds of sources that its tasks can mount; `apply` refuses a plan with any other.
    mounts: ClassVar[frozenset[SourceKind]]
    # Whether tasks there read what lies in S3 by themselves (`Mount.stream_key`).
    streams: ClassVar[bool] = False
    # How many characters an address from `reserve` has at most, and whether `reserve` asks the cloud for it.
    longest_address: ClassVar[int]
    asks_for_addresses: ClassVar[bool]
    # Whether a run needs the namespace of a business line; otherwise one without gets "default".
    needs_namespace: ClassVar[bool]

    name: str

    @classmethod
    @abstractmethod
    def connect(cls, access: Access) -> Self:
        """The cloud that a row describes; asks nobody. Raises CloudError when what is stored cannot be understood."""

    @classmethod
    def is_reserved(cls, namespace: str) -> bool:
        """Whether a cloud of the kind has this namespace for itself, so that no run of ours may be there."""
        return False

    @classmethod
    def closed_networks(cls, stored: Mapping[str, Any]) -> Iterable[str]:
        """Networks that administrators closed to tasks: webhooks do not lead there either."""
        return ()

    @classmethod
    def why_closed(cls, stored: Mapping[str, Any], server: str) -> str:
        """Why tasks do not reach an S3 server by its address, as far as can be told without asking anybody, or ""."""
        return ""

    @classmethod
    def why_no_environments(cls, stored: Mapping[str, Any]) -> str:
        """Why its tasks cannot start from an `Environment`, or ""."""
        return "They are not made there."

    @classmethod
    def why_not_cached(cls, stored: Mapping[str, Any], disk_bytes: int | None) -> str:
        """Why what lies in S3 is not copied there once for several runs (`Mount.cached`), or ""; it takes so many bytes of a
        disk, None where what has to lie there is not known before."""
        return "It keeps no copies."

    @classmethod
    def asked(
        cls, stored: Mapping[str, Any], mounts: Sequence[Mount], cpu_milli: int, memory_mb: int, serves: bool
    ) -> tuple[int, int]:
        """How much CPU (thousandths of a core) and memory (MiB) a task of that size takes of its machine, with what copies,
        serves and stores the data of `mounts` beside it, and what lets people in where it `serves` something. Keys and addresses
        in the mounts do not matter."""
        return cpu_milli, memory_mb

    @classmethod
    def gateway(cls, stored: Mapping[str, Any]) -> Gateway | None:
        """What leads people to the endpoints of a plan, each of which is told of by `EndpointSeen`; None where nothing does."""
        return None

    @classmethod
    def leads_fronts(cls, stored: Mapping[str, Any]) -> bool:
        """Whether fronts of services reach an endpoint without origin at the address that `EndpointSeen` tells."""
        return cls.gateway(stored) is not None

    @abstractmethod
    def reserve(self, run: RunRef, counts: Mapping[str, int]) -> dict[tuple[str, int], str]:
        """`host:port` for every (role, index); the same answer every time until the run is deleted."""

    @abstractmethod
    def apply(self, plan: Plan) -> None:
        """Makes the run exist as planned and returns at once. Raises CloudRefused for what can never run here.

        Volumes that it mounts are made when they are not there. After `delete(run)` an apply of the same run does nothing:
        a run never comes back to life.
        """

    @abstractmethod
    def delete(self, run: RunRef, *, over: bool = False) -> None:
        """Asks for the end of everything but the logs and returns at once; `RunGone` comes by the watch when it is done.
        `over`, a hint: all of its tasks that were seen have ended by themselves, so none needs to be asked first.

        Deleting a run that the cloud has never seen also leads to RunGone.
        """

    @abstractmethod
    def list(self) -> Batch:
        """Every run and task that the cloud knows, and the position to watch from."""

    @abstractmethod
    def watch(self, since: str) -> Iterator[Batch]:
        """News after `since`, at least one (maybe empty) batch every 10 s, and an empty one soon after the last of some news:
        only then is it worth while to ask what is free. Ends or raises CloudError when cut off; raises WatchExpired when
        `since` is too old."""

    @abstractmethod
    def acknowledge(self, items: Sequence[Seen]) -> None:
        """`items` are written down for good, so the cloud may let go of what it kept for them alone. It returns at once and
        never fails; what was not acknowledged is told again by the next listing."""

    @abstractmethod
    def capacity(self) -> Capacity: ...

    @abstractmethod
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
        since: int | None = None,
        line: int | None = None,
        before: str = "",
    ) -> LogChunk:
        """At most `limit` bytes of the log of one attempt: from `offset`; or about the last `tail` bytes, which may not be
        placed; or from the first line that is not older than `since` (µs since 1970); or from line `line` (from 0); or, of a log
        whose chunk was not placed, what ends where that begins, `before` being its `first`. `complete` is True when the task has
        ended and nothing is left to read. An absent log is empty and complete; an offset, line or time behind the end is the
        end."""

    @abstractmethod
    def follow(
        self, run: RunRef, role: str, index: int, *, attempt: int, offset: int = 0, cursor: str = ""
    ) -> Iterator[LogChunk]:
        """The log from `offset` as it comes: a (maybe empty) chunk as soon as it is open, and one every 10 s. From then on all of
        it comes, whatever becomes of the task. It ends after a chunk that is complete; close it to end it earlier."""


@runtime_checkable
class KeepsLogs(Protocol):
    """Logs stay until `purge`. Elsewhere they go with their pods, unless somebody copies them in time."""

    @abstractmethod
    def purge(self, run: RunRef) -> None:
        """Removes the logs too. Only after RunGone."""


@runtime_checkable
class RunsCommands(Protocol):
    """Runs commands inside running tasks."""

    @abstractmethod
    def exec(
        self, run: RunRef, role: str, index: int, argv: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> Session:
        """Starts a command inside the running task, as its user, with its environment. Without `stdin` it reads nothing; with
        `tty` it has a terminal, and whatever it reads is typed there."""


@runtime_checkable
class MeasuresGpus(Protocol):
    """Knows how busy GPUs are."""

    @abstractmethod
    def gpu_use(self, since: str) -> Measurements:
        """How busy GPUs were, in minutes that are over, after position `since` ("" for the beginning of what is still known). A
        minute may be told twice; a cloud that was not asked for long may have forgotten some."""


@runtime_checkable
class KeepsVolumes(Protocol):
    """Has volumes that outlive runs; a driver that does names "volume" among its `mounts`."""

    @classmethod
    @abstractmethod
    def judge_volume(cls, stored: Mapping[str, Any], title: str, storage_class: str, size: str) -> Mapping[str, str]:
        """Sentences on what is wrong with a volume that somebody wants on the cloud `title`, by the field of VolumeSource."""

    @classmethod
    @abstractmethod
    def volume_there(cls, volume: VolumeRef) -> str:
        """What administrators of the cloud find it as, in the middle of a sentence."""

    @abstractmethod
    def apply_volume(self, source: VolumeSource) -> None:
        """Makes the volume, or lets it grow to its size, and returns at once; `folder` does not matter. Raises CloudRefused
        for what can never be, with the reason in the cloud's own words."""

    @abstractmethod
    def delete_volume(self, volume: VolumeRef) -> None:
        """Asks for the end of the volume with all that is in it; it goes when no task mounts it any more."""


@runtime_checkable
class GivesUpNodes(Protocol):
    """Can be told that a machine that does not answer is off and stays off."""

    @abstractmethod
    def give_up_node(self, name: str) -> None:
        """Lets the tasks of a silent machine start elsewhere; may be repeated. Raises CloudRefused, with the reason, for one that
        answers or is not there, and where the portal may not."""


@runtime_checkable
class Inspected(Protocol):
    """Can be asked who it is and whether all is well, before something runs there."""

    @abstractmethod
    def identity(self) -> str:
        """Tells this installation from all others, as long as it lives; "" when that may not be seen."""

    @abstractmethod
    def preflight(self, namespaces: Collection[str]) -> Preflight:
        """Tries everything that the portal needs there, for runs in these namespaces too. Takes some seconds at most."""

    def misnamed(self, namespaces: Collection[str]) -> Mapping[str, str]:
        """Sentences on what its settings name and it does not have, by the field of the settings: for runs in these namespaces.
        What may not be looked up is left out."""
        return {}

    @abstractmethod
    def foreign(self, namespaces: Collection[str]) -> dict[str, str]:
        """Those of them that exist and are not this portal's, with what to do about each."""
