"""REST: runs a command in a running task and streams its output.

The answer is one JSON line per piece of output (base64, because programs write bytes), and a last line with the exit
code or an error. The end of the stream ends the command, where the cloud supports that.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import orjson
from django.http import Http404, StreamingHttpResponse
from drf_spectacular.utils import OpenApiExample
from pydantic import AfterValidator, Field
from rest_framework.request import Request
from rest_framework.views import APIView

from clusters.access import run_for
from clusters.clouds.drivers.base import NO_COMMANDS, CloudError, RunsCommands, Session
from clusters.clouds.registry import cloud_of, run_ref
from clusters.cluster.actions import note_command
from clusters.cluster.api.logs import PlainText
from clusters.frameworks import ROLES, starting
from clusters.runs.models import Run
from portal.access import OPERATE, require
from portal.api.operations import operation
from portal.api.problems import Unavailable
from portal.api.streams import AnyAccept
from portal.api.views import person
from portal.errors import Conflict
from portal.manifests import Strict, parse
from portal.models import User
from portal.web.limits import STREAMS, Place, is_gone

log = logging.getLogger(__name__)

SECONDS = 900
MAX_OUTPUT = 256 * 2**20
# Kubernetes API servers take arguments in the URL.
MAX_WORDS, MAX_ARGUMENTS = 256, 16 * 1024
# How often to check that the client still reads, and to send a line that keeps the client and proxies from timing out.
LOOK_SECONDS, HEARTBEAT_SECONDS = 2.0, 15.0


def _arguments(value: list[str]) -> list[str]:
    if sum(len(word.encode()) for word in value) > MAX_ARGUMENTS:
        raise ValueError(f"At most {MAX_ARGUMENTS} bytes together; longer texts go in by “stdin”.")
    if not value[0]:
        raise ValueError("The first word is the program.")
    return value


class Command(Strict):
    argv: Annotated[list[str], Field(min_length=1, max_length=MAX_WORDS), AfterValidator(_arguments)] = Field(
        description="The program and its arguments; no shell reads them."
    )
    stdin: str | None = Field(default=None, description="What it reads, up to its end; nothing when absent.")
    tty: bool = Field(default=False, description="Gives it a terminal; then everything it writes is stdout.")


class NdJson(PlainText):
    media_type = "application/x-ndjson"
    format = "ndjson"


class TaskExec(APIView):
    renderer_classes = (NdJson,)
    content_negotiation_class = AnyAccept

    @operation(
        "tasks_exec",
        {(200, "application/x-ndjson"): str},
        description="For developers and owners. The answer has a line for each piece of output, "
        '`{"stream":"stdout","data":"base64"}` (`data` is empty now and then while nothing is written), and a last line '
        '`{"exit_code":0}`, or `{"error":"…"}` when there is no exit code. '
        f"It ends after {SECONDS // 60} minutes or {MAX_OUTPUT // 2**20} MiB. The name of the program, the number of its "
        "arguments and who ran it are recorded as an event; arguments, input and output are not.",
        request=Command,
        examples=[OpenApiExample("GPUs", request_only=True, value={"argv": ["nvidia-smi", "-L"]})],
    )
    def post(self, request: Request, code: str, name: str, run: int, role: str, index: int) -> StreamingHttpResponse:
        """Run a command inside a running task"""
        row = operable(person(request), code, name, run, role, index)
        # The client sends the body at its own pace: reserve the place before reading it.
        place = STREAMS.enter(person(request).pk)
        try:
            command = parse(Command, request.data)
            require_running(row, role, index)
            cloud = runner_of(row)
            note_command(row, role, index, command.argv, acting_user=person(request))
            session = cloud.exec(
                run_ref(row),
                role,
                index,
                starting.beside(command.argv),
                stdin=command.stdin is not None,
                tty=command.tty,
            )
        except BaseException as error:
            place.release()
            if isinstance(error, CloudError):
                raise Unavailable(str(error)) from error
            raise
        stream = CommandStream(session, command.stdin, is_gone=lambda: is_gone(request), place=place)
        response = StreamingHttpResponse(stream, content_type="application/x-ndjson")
        response["Cache-Control"] = "no-store"
        # Keeps proxies from buffering the stream.
        response["X-Accel-Buffering"] = "no"
        return response


def operable(user: User, code: str, name: str, number: int, role: str, index: int) -> Run:
    """The run, if the user may run commands in this task. Raises Http404 or PermissionDenied."""
    row = run_for(user, code, name, number)
    if role not in ROLES or index >= row.spec["roles"].get(role, {}).get("count", 0):
        raise Http404(f"Run {number} of {name} has no task {role}-{index}.")
    require(user, row.cluster.appcode, OPERATE)
    return row


def require_running(row: Run, role: str, index: int) -> None:
    """Raises Conflict unless the task is running."""
    task = row.tasks.filter(role=role, index=index).order_by("-attempt").first()
    if task is None or task.phase != "Running":
        raise Conflict(f"{role}-{index} of run {row.number} does not run{f' ({task.phase})' if task else ''}.")


def runner_of(row: Run) -> RunsCommands:
    """The cloud of the run. Raises Conflict, or CloudError."""
    cloud = cloud_of(row)
    if not isinstance(cloud, RunsCommands):
        raise Conflict(NO_COMMANDS)
    return cloud


class CommandStream:
    """An iterable of lines for a streaming response, which always calls `close`."""

    def __init__(self, session: Session, stdin: str | None, *, is_gone: Callable[[], bool], place: Place) -> None:
        self.session, self.is_gone, self.place = session, is_gone, place
        self._sender: threading.Thread | None = None
        if stdin is not None:
            # In a thread: the command may fill the output buffers before it has read all input.
            self._sender = threading.Thread(target=_send, args=(session, stdin.encode()), daemon=True)

    def __iter__(self) -> Iterator[bytes]:
        if self._sender:
            self._sender.start()
        end, left = time.monotonic() + SECONDS, MAX_OUTPUT
        said = time.monotonic()
        try:
            while self.session.exit_code is None:
                wait = min(LOOK_SECONDS, end - time.monotonic())
                output = self.session.receive(wait) if wait > 0 and left > 0 else None
                if output is not None:
                    data, left = output.data[:left], left - len(output.data)
                    yield _line(stream=output.stream, data=base64.b64encode(data).decode())
                    said = time.monotonic()
                elif self.session.exit_code is None:
                    if wait <= 0 or left <= 0:
                        limit = f"{SECONDS // 60} minutes" if wait <= 0 else f"{MAX_OUTPUT // 2**20} MiB of output"
                        yield _line(error=f"Ended after {limit}.")
                        return
                    if self.is_gone():
                        return
                    if time.monotonic() - said > HEARTBEAT_SECONDS:
                        yield _line(stream="stdout", data="")
                        said = time.monotonic()
            yield _line(exit_code=self.session.exit_code)
        except CloudError as error:
            yield _line(error=str(error))

    def close(self) -> None:
        self.session.close()
        self.place.release()


def _line(**frame: Any) -> bytes:
    return orjson.dumps(frame) + b"\n"


def _send(session: Session, data: bytes) -> None:
    try:
        session.send(data)
        session.end_input()
    except CloudError as error:
        # The command has ended or closed its input; the reader gets the exit code.
        log.debug("input was not taken: %s", error)
