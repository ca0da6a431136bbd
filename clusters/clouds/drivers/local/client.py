"""The portal's side of the local cloud: `base.Cloud` over the node agent's socket.

Every call is a short connection (a watch is a long one), so a client has no state, is thread-safe, and does not notice restarts
of the agent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, ClassVar, Self, cast

from clusters.admission.demand import ANY
from clusters.clouds.drivers.base import (
    Access,
    Batch,
    Capacity,
    Cloud,
    CloudError,
    CloudRefused,
    Gateway,
    KeepsLogs,
    KeepsVolumes,
    LogChunk,
    Measurements,
    MeasuresGpus,
    Plan,
    RunRef,
    RunsCommands,
    Samples,
    SamplesTasks,
    Seen,
    Session,
    Unanswered,
    VolumeRef,
    VolumeSource,
    WatchExpired,
)
from clusters.clouds.drivers.lines import Wanted
from clusters.clouds.drivers.local import protocol
from clusters.clouds.drivers.local.session import LocalSession

TIMEOUT = 30.0
# Seconds; the agent sends a batch at least every 5 s.
WATCH_TIMEOUT = 20.0
# Seconds between polls of a follower. A poll only costs the new bytes, so polling is as cheap as a push.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
NO_CLASSES = "This machine has no storage classes; leave it empty."

_ERRORS = {"refused": CloudRefused, "expired": WatchExpired, "error": CloudError}


class LocalCloud(Cloud, KeepsLogs, KeepsVolumes, RunsCommands, MeasuresGpus, SamplesTasks):
    """Talks to the agent that listens on `socket_path`. Any call raises CloudError without an agent."""

    kind = "local"
    title = "this machine"
    is_remote = False
    environment: ClassVar[Mapping[str, str]] = {"socket": "LOCAL_CLOUD_SOCKET"}
    software = "environment"
    mounts = frozenset({"s3", "nfs", "local", "volume"})
    streams = True
    longest_address = len("127.0.0.1:65535")
    asks_for_addresses = True
    needs_namespace = False

    def __init__(self, socket_path: str) -> None:
        self.name = self.kind
        self.socket_path = str(socket_path)

    @classmethod
    def connect(cls, access: Access) -> Self:
        return cls(access.settings["socket"])

    @classmethod
    def places_runs(cls, stored: Mapping[str, Any]) -> bool:
        return True

    @classmethod
    def why_no_environments(cls, stored: Mapping[str, Any]) -> str:
        return ""

    @classmethod
    def why_not_cached(cls, stored: Mapping[str, Any], disk_bytes: int | None) -> str:
        return ""

    @classmethod
    def gateway(cls, stored: Mapping[str, Any]) -> Gateway:
        """Returns the portal's own gateway."""
        return Gateway()

    def reserve(self, run: RunRef, counts: Mapping[str, int]) -> dict[tuple[str, int], str]:
        ports = self._call("reserve", run=run, counts=dict(counts))
        split = {key: key.rpartition("-") for key in ports}
        return {(role, int(index)): f"127.0.0.1:{ports[key]}" for key, (role, _, index) in split.items()}

    def apply(self, plan: Plan) -> None:
        if role := next((each for each in plan.roles if each.demand != ANY), None):
            raise CloudRefused(f"The flavor of its {role.role} demands what no node has here.")
        self._call("apply", plan=plan)

    @classmethod
    def judge_volume(cls, stored: Mapping[str, Any], title: str, storage_class: str, size: str) -> Mapping[str, str]:
        """Accepts any size, because a volume is a folder and only the disk limits it."""
        return {"storage_class": NO_CLASSES} if storage_class else {}

    @classmethod
    def volume_there(cls, volume: VolumeRef) -> str:
        return f"the folder volumes/{volume.id} of the local cloud"

    def apply_volume(self, source: VolumeSource) -> None:
        """Does nothing: the first run that mounts a volume creates it, and the size is only billed."""

    def delete_volume(self, volume: VolumeRef) -> None:
        self._call("delete_volume", volume=volume)

    def delete(self, run: RunRef, *, over: bool = False) -> None:
        self._call("delete", run=run)

    def purge(self, run: RunRef) -> None:
        self._call("purge", run=run)

    def list(self) -> Batch:
        return protocol.batch_from(self._call("list"))

    def watch(self, since: str) -> Iterator[Batch]:
        with self._request("watch", WATCH_TIMEOUT, since=since) as answer:
            while line := _line(answer):
                yield protocol.batch_from(line)

    def acknowledge(self, items: Sequence[Seen]) -> None:
        """Does nothing: the agent's journal keeps everything until `purge`."""

    def capacity(self) -> Capacity:
        return protocol.capacity_from(self._call("capacity"))

    def gpu_use(self, since: str) -> Measurements:
        return protocol.measurements_from(self._call("gpu_use", since=since))

    def samples(self) -> Samples:
        return protocol.samples_from(self._call("samples"))

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
        fields = {"run": run, "role": role, "index": index, "attempt": attempt}
        with self._request("log", TIMEOUT, **fields, wanted=Wanted(offset, limit, tail, since, line)) as answer:
            head = _line(answer)
            data, marks = _bytes(answer, head.pop("size")), _bytes(answer, head.pop("marks"))
            return LogChunk(data, marks=marks, **head)

    def follow(
        self, run: RunRef, role: str, index: int, *, attempt: int, offset: int = 0, cursor: str = ""
    ) -> Iterator[LogChunk]:
        pause = SHORTEST_PAUSE
        while True:
            chunk = self.log(run, role, index, attempt=attempt, offset=offset)
            yield chunk
            if chunk.complete:
                return
            offset = chunk.offset
            if chunk.data:
                pause = SHORTEST_PAUSE
            else:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def exec(
        self, run: RunRef, role: str, index: int, argv: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> Session:
        fields = {"run": run, "role": role, "index": index, "argv": list(argv), "stdin": stdin, "tty": tty}
        try:
            connection = protocol.connect(self.socket_path, TIMEOUT)
            try:
                connection.sendall(protocol.dumps({"op": "exec", **fields}))
                # Unbuffered, because the bytes after the line belong to the session.
                with connection.makefile("rb", buffering=0) as answer:
                    _line(cast("IO[bytes]", answer))
                return LocalSession(connection)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise _silent(error) from error

    def _call(self, op: str, **fields: Any) -> Any:
        with self._request(op, TIMEOUT, **fields) as answer:
            return _line(answer)

    @contextmanager
    def _request(self, op: str, timeout: float, **fields: Any) -> Iterator[IO[bytes]]:
        try:
            with protocol.connect(self.socket_path, timeout) as connection:
                connection.sendall(protocol.dumps({"op": op, **fields}))
                with connection.makefile("rb") as answer:
                    yield answer
        except OSError as error:
            raise _silent(error) from error


def _silent(error: OSError) -> CloudError:
    return Unanswered(f"The node agent of this machine does not answer: {error.strerror or error}.")


def _line(answer: IO[bytes]) -> Any:
    line = answer.readline()
    if not line.endswith(b"\n"):
        raise CloudError("The node agent of this machine was cut off.")
    value = json.loads(line)
    if isinstance(value, dict) and "error" in value:
        raise _ERRORS[value["kind"]](value["error"])
    return value


def _bytes(answer: IO[bytes], size: int) -> bytes:
    data = answer.read(size)
    if len(data) < size:
        raise CloudError("The node agent of this machine was cut off.")
    return data
