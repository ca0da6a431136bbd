"""REST: a command inside a running task, its output as it is written.

The answer is a line of JSON for each piece of output (base64, because programs write bytes) and a last line with the exit
code, or with an error when there is none. Every ended stream ends its command, where the cloud can do that.
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
from drf_spectacular.utils import OpenApiExample, extend_schema
from pydantic import AfterValidator, Field
from rest_framework.request import Request
from rest_framework.views import APIView

from clusters.access import run_for
from clusters.actions import note_command
from clusters.api.logs import PlainText
from clusters.clouds.drivers.base import NO_COMMANDS, CloudError, RunsCommands, Session
from clusters.clouds.registry import cloud_of, run_ref
from clusters.frameworks import ROLES, starting
from clusters.models import Run
from portal.access import OPERATE, require
from portal.api.problems import Unavailable
from portal.api.streams import AnyAccept
from portal.api.views import person
from portal.errors import Conflict
from portal.limits import STREAMS, Place, is_gone
from portal.manifests import Strict, parse
from portal.models import User

log = logging.getLogger(__name__)

SECONDS = 900
MAX_OUTPUT = 256 * 2**20
# A Kubernetes API server takes arguments as a part of an address.
MAX_WORDS, MAX_ARGUMENTS = 256, 16 * 1024
# Whether somebody still reads is looked at so often; a line now and then tells them, and proxies, that all is well.
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

    @extend_schema(
        operation_id="tasks_exec",
        summary="Run a command inside a running task",
        description="For developers and owners. The answer has a line for each piece of output, "
        '`{"stream":"stdout","data":"base64"}` (`data` is empty now and then while nothing is written), and a last line '
        '`{"exit_code":0}`, or `{"error":"…"}` when there is no exit code. '
        f"It ends after {SECONDS // 60} minutes or {MAX_OUTPUT // 2**20} MiB. The name of the program, the number of its "
        "arguments and who ran it are recorded as an event; arguments, input and output are not.",
        request=Command,
        responses={(200, "application/x-ndjson"): str},
        examples=[OpenApiExample("GPUs", request_only=True, value={"argv": ["nvidia-smi", "-L"]})],
    )
    def post(self, request: Request, code: str, name: str, run: int, role: str, index: int) -> StreamingHttpResponse:
        row = operable(person(request), code, name, run, role, index)
        # The body comes straight from whoever sends it, at their pace, so there is a place before it is read.
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
        # For proxies that would otherwise collect a stream before they pass it on.
        response["X-Accel-Buffering"] = "no"
        return response


def operable(user: User, code: str, name: str, number: int, role: str, index: int) -> Run:
    """The run, in whose task somebody may run commands. Raises Http404 or PermissionDenied."""
    row = run_for(user, code, name, number)
    if role not in ROLES or index >= row.spec["roles"].get(role, {}).get("count", 0):
        raise Http404(f"Run {number} of {name} has no task {role}-{index}.")
    require(user, row.cluster.appcode, OPERATE)
    return row


def require_running(row: Run, role: str, index: int) -> None:
    """Raises Conflict."""
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
    """An iterable of lines for a streaming response, which calls `close` whatever happens."""

    def __init__(self, session: Session, stdin: str | None, *, is_gone: Callable[[], bool], place: Place) -> None:
        self.session, self.is_gone, self.place = session, is_gone, place
        self._sender: threading.Thread | None = None
        if stdin is not None:
            # Beside the reader: a command may write more than fits on the way before it has read everything.
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
        # It has ended or does not read any more; the reader is told how it ended.
        log.debug("input was not taken: %s", error)
