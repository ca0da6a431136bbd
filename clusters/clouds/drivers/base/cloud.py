"""The interface of a cloud: `Cloud`, which every driver implements, and a Protocol for each optional ability.

A driver inherits from `Cloud` and from the abilities it has. Callers test for an ability with `isinstance`, or `issubclass` if
only the kind is known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from clusters.clouds.drivers.base.observations import (
    Batch,
    Capacity,
    LogChunk,
    Measurements,
    Output,
    Preflight,
    Samples,
    Seen,
)
from clusters.clouds.drivers.base.plan import Access, Gateway, Mount, Plan, RunRef, SourceKind, VolumeRef, VolumeSource

NO_COMMANDS = "Where this runs no commands can be run inside tasks."
# Starts with the variables of the task's program (clusters/frameworks/variables.py). Not every image has bash.
SHELL = (
    "/bin/sh", "-c",
    'eval "$PORTAL_ENV"; unset PORTAL_ENV; command -v bash >/dev/null 2>&1 && exec bash; exec sh',
)  # fmt: skip
Software = Literal["environment", "container"]


class Session(Protocol):
    """A command that runs inside a task. One thread may send while another receives. CloudError from any call means that the
    session broke. Closing a session ends its command where the cloud can, and is idempotent."""

    # Set when the command has ended and all of its output was received; 128 + n for signal n.
    exit_code: int | None

    def send(self, data: bytes) -> None:
        """Writes bytes to its standard input, or types them on its terminal."""

    def end_input(self) -> None:
        """Closes its standard input; for commands without a terminal."""

    def resize(self, columns: int, rows: int) -> None:
        """Sets the size of its terminal."""

    def receive(self, seconds: float) -> Output | None:
        """Returns its next output, or None after `seconds` without any or when it has ended."""

    def close(self) -> None: ...


class Cloud(Protocol):
    """See `drivers.base` for idempotence; `CloudError` from any call means: retry later.

    Class attributes and methods hold for every cloud of the kind and need no instance. `stored` are the settings in a row, which
    may have an older form: unreadable ones count as unset.
    """

    # The value in rows, and the title for people.
    kind: ClassVar[str]
    title: ClassVar[str]
    # False for the portal's own machine, which is part of the portal and not registered. It is the only cloud of its kind, named
    # after it, and the default unless administrators choose another. Its tasks can reach this machine's addresses.
    is_remote: ClassVar[bool]
    # The portal's settings that locate it, by their names in `Access.settings`. Without them the cloud does not exist.
    environment: ClassVar[Mapping[str, str]] = {}
    # Settings that cannot change while the cloud has runs or volumes, with the words of the refusal before "2 runs".
    fixed_settings: ClassVar[Mapping[str, str]] = {}
    # Which of an image its tasks use.
    software: ClassVar[Software]
    # The kinds of sources that its tasks can mount; `apply` refuses any other.
    mounts: ClassVar[frozenset[SourceKind]]
    # Whether its tasks can read S3 directly (`Mount.stream_key`).
    streams: ClassVar[bool] = False
    # Maximum length of an address from `reserve`, and whether `reserve` calls the cloud.
    longest_address: ClassVar[int]
    asks_for_addresses: ClassVar[bool]
    # Whether a run needs a business line's namespace; otherwise it falls back to "default".
    needs_namespace: ClassVar[bool]
    # Whether its nodes have labels, taints and other devices than GPUs, which flavors may demand.
    has_pools: ClassVar[bool] = False

    name: str

    @classmethod
    @abstractmethod
    def connect(cls, access: Access) -> Self:
        """Returns the cloud that a row describes, without a network call. Raises CloudError if the stored values are invalid."""

    @classmethod
    def is_reserved(cls, namespace: str) -> bool:
        """Returns whether clouds of this kind reserve the namespace, so that no run may use it."""
        return False

    @classmethod
    def closed_networks(cls, stored: Mapping[str, Any]) -> Iterable[str]:
        """Returns the networks that administrators closed to tasks; webhooks cannot reach them either."""
        return ()

    @classmethod
    def why_closed(cls, stored: Mapping[str, Any], server: str) -> str:
        """Returns why tasks cannot reach an S3 server by its address, or "". Decided without a network call."""
        return ""

    @classmethod
    def why_no_environments(cls, stored: Mapping[str, Any]) -> str:
        """Returns why its tasks cannot start from an `Environment`, or ""."""
        return "They are not made there."

    @classmethod
    def why_not_cached(cls, stored: Mapping[str, Any], disk_bytes: int | None) -> str:
        """Returns why an input in S3 cannot be copied once for several runs (`Mount.cached`), or "". `disk_bytes`: the size on
        disk, None if unknown in advance."""
        return "It keeps no copies."

    @classmethod
    def asked(
        cls, stored: Mapping[str, Any], mounts: Sequence[Mount], cpu_milli: int, memory_mb: int, serves: bool
    ) -> tuple[int, int]:
        """Returns the CPU (thousandths of a core) and memory (MiB) that a task of that size takes of its machine. Includes the
        helpers that copy, serve and store the data of `mounts`, and the entrance if the task `serves` an endpoint. Keys and
        addresses in the mounts do not matter."""
        return cpu_milli, memory_mb

    @classmethod
    def places_runs(cls, stored: Mapping[str, Any]) -> bool:
        """Returns whether the portal decides on which nodes tasks run, all tasks of a run or none."""
        return False

    @classmethod
    def gang(cls, stored: Mapping[str, Any], proved: Mapping[str, Any]) -> str:
        """Returns how it gives all tasks of a run their places at once or none any (`Plan.gang`), "" if it does not. `proved`:
        the facts of the last `Inspected.preflight`."""
        return ""

    @classmethod
    def adds_nodes(cls, stored: Mapping[str, Any]) -> bool:
        """Returns whether tasks that fit on none of today's nodes may make the cloud add some."""
        return False

    @classmethod
    def gateway(cls, stored: Mapping[str, Any]) -> Gateway | None:
        """Returns the gateway to the endpoints of a plan, or None. `EndpointSeen` reports each endpoint."""
        return None

    @classmethod
    def leads_routers(cls, stored: Mapping[str, Any]) -> bool:
        """Returns whether routers of services can reach an endpoint without origin at the address in `EndpointSeen`."""
        return cls.gateway(stored) is not None

    @abstractmethod
    def reserve(self, run: RunRef, counts: Mapping[str, int]) -> dict[tuple[str, int], str]:
        """Returns `host:port` for every (role, index), always the same until the run is deleted."""

    @abstractmethod
    def apply(self, plan: Plan) -> None:
        """Makes the run exist as planned and returns at once. Raises CloudRefused for what can never run here.

        Creates missing volumes. After `delete(run)` an apply of the same run does nothing: a run never comes back to life.
        """

    @abstractmethod
    def delete(self, run: RunRef, *, over: bool = False) -> None:
        """Requests the end of everything but the logs and returns at once; the watch reports `RunGone` when done. `over` is a
        hint that all observed tasks have ended by themselves, so none needs a signal first.

        Deleting a run that the cloud has never seen also leads to RunGone.
        """

    @abstractmethod
    def list(self) -> Batch:
        """Returns every run and task that the cloud knows, and the position to watch from."""

    @abstractmethod
    def watch(self, since: str) -> Iterator[Batch]:
        """Yields news after `since`: at least one (maybe empty) batch every 10 s, and an empty one soon after the last of some
        news, which is the moment to query free capacity. Ends or raises CloudError when disconnected; raises WatchExpired if
        `since` is too old."""

    @abstractmethod
    def acknowledge(self, items: Sequence[Seen]) -> None:
        """Confirms that `items` are stored, so the cloud may delete what it kept only for them. Returns at once and never fails.
        Unacknowledged items are in the next listing again."""

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
        """Returns at most `limit` bytes of the log of one attempt. They begin at `offset`, or about `tail` bytes before the end
        (which may not be placed), at the first line not older than `since` (µs since 1970), or at line `line` (from 0). `before`
        is the `first` of a chunk that was not placed: returns the bytes that end where that chunk begins. `complete`: the task
        has ended and nothing is left to read. A missing log is empty and complete; an offset, line or time beyond the end means
        the end."""

    @abstractmethod
    def follow(
        self, run: RunRef, role: str, index: int, *, attempt: int, offset: int = 0, cursor: str = ""
    ) -> Iterator[LogChunk]:
        """Yields the log from `offset` as it grows: a (maybe empty) chunk as soon as it is open, then at least one every 10 s.
        Once open it delivers the rest of the log, whatever happens to the task. Ends after a complete chunk; close it to stop
        earlier."""


@runtime_checkable
class KeepsLogs(Protocol):
    """Logs stay until `purge`. On other clouds they vanish with their pods unless copied in time."""

    @abstractmethod
    def purge(self, run: RunRef) -> None:
        """Deletes the logs, too. Only after RunGone."""


@runtime_checkable
class RunsCommands(Protocol):
    """Runs commands inside running tasks."""

    @abstractmethod
    def exec(
        self, run: RunRef, role: str, index: int, argv: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> Session:
        """Starts a command inside the running task, with its user and environment. Without `stdin` its input is empty; with
        `tty` it has a terminal, where input is typed."""


@runtime_checkable
class MeasuresGpus(Protocol):
    """Measures GPU utilization."""

    @abstractmethod
    def gpu_use(self, since: str) -> Measurements:
        """Returns utilization in complete minutes after position `since` ("" for the oldest known). A minute may be repeated; a
        cloud not read for long may have lost some."""


@runtime_checkable
class SamplesTasks(Protocol):
    """Knows what its tasks use of their machines."""

    @abstractmethod
    def samples(self) -> Samples:
        """Returns a sample of each running task, in few calls for any number of tasks. Called every 10 s by one thread."""


@runtime_checkable
class KeepsVolumes(Protocol):
    """Has volumes that outlive runs. Such a driver has "volume" among its `mounts`."""

    @classmethod
    @abstractmethod
    def judge_volume(cls, stored: Mapping[str, Any], title: str, storage_class: str, size: str) -> Mapping[str, str]:
        """Returns the errors of a requested volume on the cloud `title`, as sentences by field of VolumeSource."""

    @classmethod
    @abstractmethod
    def volume_there(cls, volume: VolumeRef) -> str:
        """Returns the volume's name for the cloud's administrators, for use inside a sentence."""

    @abstractmethod
    def apply_volume(self, source: VolumeSource) -> None:
        """Creates the volume, or grows it to its size, and returns at once; ignores `folder`. Raises CloudRefused for the
        impossible, with the cloud's own reason."""

    @abstractmethod
    def delete_volume(self, volume: VolumeRef) -> None:
        """Requests deletion of the volume and its data, which happens once no task mounts it."""


@runtime_checkable
class GivesUpNodes(Protocol):
    """Can declare a machine that does not answer as permanently off."""

    @abstractmethod
    def give_up_node(self, name: str) -> None:
        """Lets the tasks of a silent machine start elsewhere; idempotent. Raises CloudRefused, with the reason, if the machine
        answers or does not exist, or if the portal lacks the rights."""


@runtime_checkable
class Inspected(Protocol):
    """Can report its identity and be tested before something runs there."""

    @abstractmethod
    def identity(self) -> str:
        """Returns a lasting id of this installation; "" if the portal may not read it."""

    @abstractmethod
    def preflight(self, namespaces: Collection[str]) -> Preflight:
        """Tests everything that the portal needs there, including in these namespaces. Takes a few seconds at most."""

    def misnamed(self, namespaces: Collection[str]) -> Mapping[str, str]:
        """Returns sentences on objects that its settings name and that do not exist, by field, for runs in these namespaces.
        Skips what the portal may not read."""
        return {}

    @abstractmethod
    def foreign(self, namespaces: Collection[str]) -> dict[str, str]:
        """Returns those of the namespaces that exist and belong to others, each with what to do about it."""
