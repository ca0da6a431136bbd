"""What a cloud does, method by method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from clusters.clouds.drivers.base.plan import Plan, RunRef, SourceKind, VolumeRef, VolumeSource
from clusters.clouds.drivers.base.seen import Batch, Capacity, LogChunk, Measurements, Output, Seen


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


@runtime_checkable
class ServesEndpoints(Protocol):
    """A cloud that leads the gateway to what tasks serve."""

    def endpoint(self, run: RunRef, name: str) -> str:
        """Where the gateway reaches endpoint `name` of a run that was applied: `host:port`, or `unix:` and the path of a socket.

        The program may not listen there yet. Raises CloudRefused for an endpoint that the run does not have.
        """


class Cloud(Protocol):
    """`drivers.base` says what repeated and absent mean; `CloudError` from any call means: try again later."""

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
