"""REST: a shell in a running task, as a WebSocket.

Binary messages are terminal bytes in both directions. Text messages are JSON: `{"resize": …}` from the client;
`{"exit": …}` or `{"error": …}` from the portal, as its last message. A connection that ends without either was cut off.
The shell ends with its connection. Both end when the user loses the permission, which is checked repeatedly.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import orjson
from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError, connection
from django.http import Http404, StreamingHttpResponse
from drf_spectacular.utils import OpenApiResponse
from pydantic import Field, ValidationError
from rest_framework.request import Request
from rest_framework.views import APIView
from websockets.frames import CloseCode

from clusters.clouds.drivers.base import SHELL, CloudError, Session
from clusters.clouds.registry import run_ref
from clusters.cluster.actions import note_terminal, note_terminal_end
from clusters.cluster.api.exec import operable, require_running, runner_of
from clusters.frameworks import starting
from clusters.runs.models import Run
from portal.api.operations import operation
from portal.api.problems import Unavailable
from portal.api.views import person, person_still
from portal.errors import Conflict
from portal.manifests import Strict
from portal.web import websocket
from portal.web.limits import STALLED_SECONDS, STREAMS
from portal.web.websocket import WebSocket, WebSocketResponse

log = logging.getLogger(__name__)

LOST = "The connection was lost."
# A terminal holds a thread of the web server, so a forgotten one is closed.
IDLE_SECONDS = 3600
# How soon to notice that the client or web server is gone, and that the user's permission has ended.
LOOK_SECONDS, CHECK_SECONDS = 1.0, 10.0
# Well below the timeout after which a silent client counts as gone.
PING_SECONDS = STALLED_SECONDS / 3
# Seconds to go on without the database, which permission checks need and which may be restarting.
UNCHECKED_SECONDS = 60.0
# Bytes per second. Browsers buffer what they have not drawn, so the shell has to wait beyond this.
MAX_RATE = 2 * 2**20


class Size(Strict):
    columns: int = Field(ge=1, le=1000)
    rows: int = Field(ge=1, le=1000)


class Control(Strict):
    """A client's message about its terminal."""

    resize: Size


class TaskTerminal(APIView):
    @operation(
        "tasks_terminal",
        {101: OpenApiResponse(description="The WebSocket is open.")},
        description="For developers and owners. Binary messages are the bytes of the terminal, in both directions; text messages "
        'are JSON: send `{"resize": {"columns": 120, "rows": 40}}` first and whenever the size changes; the last one that comes '
        'is `{"exit": {"code": 0}}` when the shell has ended, or `{"error": "…"}`. A connection that ends with neither was cut '
        "off, and its shell with it: connect again for a new one. A browser that is signed in may connect from pages of the "
        f"portal only. A terminal ends when nothing was typed for {IDLE_SECONDS // 60} minutes, and within seconds when its "
        "task ends or its user signs out or is no developer any more. Events say who opened it and how long it was open; "
        "nothing says what was typed. A GET that asks for no WebSocket is told what keeps it from being opened, or 426.",
    )
    def get(self, request: Request, code: str, name: str, run: int, role: str, index: int) -> StreamingHttpResponse:
        """Open a terminal in a running task (WebSocket)"""
        row = operable(person(request), code, name, run, role, index)
        require_running(row, role, index)
        try:
            runner_of(row)
        except CloudError as error:
            raise Unavailable(str(error)) from error
        place = STREAMS.enter(person(request).pk)
        try:
            terminal = Terminal(request, row, role, index)
            http = request._request
            return WebSocketResponse(http, terminal.talk, place.release, by_cookie=request.auth is None)
        except BaseException:
            place.release()
            raise


class Terminal:
    """One shell and its user."""

    def __init__(self, request: Request, row: Run, role: str, index: int) -> None:
        self.request, self.row, self.role, self.index = request, row, role, index
        self.checked = self.allowed = self.pinged = self.typed = time.monotonic()
        self.second, self.sent = 0.0, 0
        # Set by the listener when the client is gone; `trouble` is the reason unless the client closed the window.
        self.left = threading.Event()
        self.trouble = ""

    def talk(self, client: WebSocket) -> None:
        user, began = person(self.request), time.monotonic()
        note_terminal(self.row, self.role, self.index, acting_user=user)
        how = "The portal failed."
        try:
            how = self._talk(client)
        finally:
            seconds = round(time.monotonic() - began)
            note_terminal_end(self.row, self.role, self.index, seconds, how, acting_user=user)

    def _talk(self, client: WebSocket) -> str:
        """Runs the session. Returns a sentence on how it ended, which the client also gets unless it left."""
        listener: threading.Thread | None = None
        last: dict[str, Any] = {}
        code = CloseCode.NORMAL_CLOSURE
        with contextlib.ExitStack() as stack:
            try:
                session = runner_of(self.row).exec(
                    run_ref(self.row), self.role, self.index, starting.beside(SHELL), tty=True
                )
                stack.enter_context(contextlib.closing(session))
                listener = threading.Thread(target=self._listen, args=(client, session), daemon=True)
                listener.start()
                how = self._show(client, session)
                if session.exit_code is not None:
                    last, how = {"exit": {"code": session.exit_code}}, f"The shell ended with code {session.exit_code}."
            except _Restarts:
                how, code = "The web server was stopped.", CloseCode.SERVICE_RESTART
            except (CloudError, Conflict, _Ended) as error:
                last, how = {"error": str(error)}, str(error)
            except OSError:
                how = LOST
            with contextlib.suppress(OSError):
                if last:
                    client.send(orjson.dumps(last), text=True)
                client.close(code)
            if listener:
                listener.join(websocket.CLOSE_SECONDS)
        return how

    def _show(self, client: WebSocket, session: Session) -> str:
        """Sends the shell's output to the client until either ends. Returns why, "" for the shell."""
        while session.exit_code is None:
            output = session.receive(LOOK_SECONDS)
            if output is not None:
                client.send(output.data)
            if self.left.is_set():
                if self.trouble:
                    raise _Ended(self.trouble)
                return "Its window was closed."
            self._look(client, len(output.data) if output else 0)
        return ""

    def _look(self, client: WebSocket, size: int) -> None:
        """Periodic checks, pings and the rate limit. Raises _Ended or _Restarts."""
        now = time.monotonic()
        if websocket.is_stopping():
            raise _Restarts
        if now - self.typed > IDLE_SECONDS:
            raise _Ended(f"Nothing was typed for {IDLE_SECONDS // 60} minutes.")
        if now - self.checked > CHECK_SECONDS:
            self._check(now)
            self.checked = time.monotonic()
        if now - self.pinged > PING_SECONDS:
            client.ping()
            self.pinged = now
        if now - self.second > 1:
            self.second, self.sent = now, 0
        self.sent += size
        if self.sent > MAX_RATE:
            self.left.wait(self.second + 1 - now)

    def _check(self, now: float) -> None:
        """Repeats the permission checks of the start. Raises _Ended."""
        row = self.row
        try:
            user = person_still(self.request)
            if user is None:
                raise _Ended("You have been signed out.")
            row = operable(user, row.cluster.appcode.code, row.cluster.name, row.number, self.role, self.index)
            require_running(row, self.role, self.index)
        except (Http404, PermissionDenied, Conflict) as error:
            raise _Ended(str(error)) from error
        except (OperationalError, InterfaceError) as error:
            log.warning("a terminal goes on unchecked: %s", error)
            connection.close()
            if now - self.allowed > UNCHECKED_SECONDS:
                raise _Ended("The database does not answer.") from error
        else:
            self.allowed = now

    def _listen(self, client: WebSocket, session: Session) -> None:
        try:
            for text, message in client.messages():
                if text:
                    size = Control.model_validate_json(message).resize
                    session.resize(size.columns, size.rows)
                elif message:
                    self.typed = time.monotonic()
                    session.send(message)
        except ValidationError:
            self.trouble = 'A text message is {"resize": {"columns": 80, "rows": 24}}, with numbers from 1 to 1000.'
        except CloudError as error:
            self.trouble = str(error)
        except OSError as error:
            log.debug("a terminal's client is gone: %s", error)
            self.trouble = LOST
        finally:
            self.left.set()


class _Ended(Exception):
    """Ends the terminal with a sentence for the client."""


class _Restarts(Exception):
    """Ends the terminal for a restart; the client may connect again."""
