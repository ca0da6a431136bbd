"""Logs of a pod, and commands inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import kubernetes
import orjson
from kubernetes.stream import stream
from websocket import WebSocketException

from clusters.clouds.base import CloudError, LogChunk
from clusters.clouds.kubernetes.client import Client, Missing, Refused, path_of, pieces

CONTAINER = "task"
EXEC_SECONDS = 60
EXEC_BYTES = 1_048_576


def read_log(client: Client, pod: Mapping[str, Any], *, offset: int, limit: int, tail: int | None) -> LogChunk:
    """A piece of the log. The API has no offsets: what lies before is read and thrown away (kubelets keep 10 MiB)."""
    metadata = pod["metadata"]
    path = f"{path_of('Pod', metadata['namespace'], metadata['name'])}/log"
    over = pod["status"].get("phase") in ("Succeeded", "Failed")
    query: dict[str, Any] = {"container": CONTAINER}
    if tail is None:
        query["limitBytes"] = offset + limit
    try:
        answer = client.open(path, **query)
    except Missing:
        return LogChunk(b"", offset, True)
    except Refused:  # 400 while the container has not started
        return LogChunk(b"", offset, over)
    position, kept = 0, b""
    try:
        for piece in pieces(answer):
            kept += piece[max(0, offset - position) :] if tail is None else piece
            position += len(piece)
            if tail is not None:
                kept = kept[-tail:] if tail else b""
    finally:
        answer.close()
    if tail is not None:
        return LogChunk(kept[:limit], position - len(kept) + len(kept[:limit]), over and len(kept) <= limit)
    kept = kept[:limit]
    return LogChunk(kept, offset + len(kept), over and len(kept) < limit)


def execute(client: Client, pod: Mapping[str, Any], argv: Sequence[str]) -> tuple[int, bytes]:
    """The exit code and output (both streams as they come) of a command in the task's container."""
    metadata = pod["metadata"]
    # Of its own: `stream` changes the client that it is given while it works.
    with kubernetes.client.ApiClient(client.api.configuration) as api:
        try:
            channel = stream(
                kubernetes.client.CoreV1Api(api).connect_get_namespaced_pod_exec,
                metadata["name"],
                metadata["namespace"],
                container=CONTAINER,
                command=list(argv),
                stdin=False,
                stdout=True,
                stderr=True,
                tty=False,
                binary=True,
                _preload_content=False,
                _request_timeout=EXEC_SECONDS,
            )
            channel.run_forever(timeout=EXEC_SECONDS)
            output = bytes(channel.read_all())[:EXEC_BYTES]
            if channel.is_open():
                channel.close()
                raise CloudError(f"The command did not end within {EXEC_SECONDS} s.")
            return _exit_code(channel.read_channel(3)), output
        except (kubernetes.client.ApiException, WebSocketException, OSError) as error:
            raise CloudError(f"The command cannot be run: {getattr(error, 'reason', None) or error}") from error


def _exit_code(status: bytes | str) -> int:
    """From the status that comes last: {"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "2"}]}}."""
    if not status:
        raise CloudError("The command was cut off.")
    told = orjson.loads(status)
    if told.get("status") == "Success":
        return 0
    for cause in (told.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise CloudError(told.get("message") or "The command cannot be run.")
