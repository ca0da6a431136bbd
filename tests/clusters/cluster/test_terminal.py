"""Terminals in tasks: the WebSocket of a real web server, on a real agent."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import settings as portal_settings
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close, Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from clusters.cluster import actions
from clusters.cluster.api import terminal as terminal_api
from portal.actions import tokens as tokens_actions
from portal.models import ApiToken, Event, Membership
from portal.up import services
from portal.up.services import Service
from portal.web.websocket import MAX_MESSAGE, WebSocket
from tests.api.client import api_of
from tests.running import ROOT, eventually
from tests.terminal import database_environment

PATIENCE = 60.0
TERMINAL = "/appcodes/ops-demo/clusters/demo/runs/1/tasks/master/0/terminal"
# Shorter intervals than in production, so that tests don't wait.
QUICK = """
import clusters.cluster.api.terminal as terminal
terminal.CHECK_SECONDS = 0.5
terminal.PING_SECONDS = 0.5
"""


class Web:
    """A separate web server, as the gateway sees it."""

    def __init__(self, folder: Path, more: str = QUICK) -> None:
        self.folder, self.port = folder, services.free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        # portal.wsgi with the shorter intervals.
        (folder / "quick.py").write_text(f"from portal.wsgi import application\n{more}")

    def service(self) -> Service:
        env = {
            **database_environment(), "PORTAL_WEB_PORT": str(self.port), "PORTAL_ORIGIN": self.origin, "WEB_CONCURRENCY": "1",
            "PYTHONPATH": f"{self.folder}:{ROOT}",
        }  # fmt: skip
        argv = (sys.executable, "-m", "gunicorn", "--config", "portal/gunicorn.conf.py", "quick")
        return Service("web", argv, ready=services.http_ready(self.port), env=env, with_group=True)

    def open(self, headers: dict[str, str], origin: str | None = None, path: str = TERMINAL) -> Terminal:
        url = f"ws://127.0.0.1:{self.port}/api/v1{path}"
        return Terminal(connect(url, additional_headers=headers, origin=origin))


class Terminal:
    def __init__(self, opening: Any) -> None:
        self._opening = opening
        self.connection: ClientConnection = opening.__enter__()
        self.shown = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._opening.__exit__(None, None, None)

    def resize(self, columns: int, rows: int) -> None:
        self.connection.send(json.dumps({"resize": {"columns": columns, "rows": rows}}))

    def type(self, text: str) -> None:
        self.connection.send(text.encode())

    def until(self, text: bytes) -> bytes:
        """Waits for `text`; returns the output before it."""
        end = time.monotonic() + PATIENCE
        while text not in self.shown:
            message = self.connection.recv(timeout=max(0.0, end - time.monotonic()))
            assert isinstance(message, bytes), message
            self.shown += message
        before, _, self.shown = self.shown.partition(text)
        return before

    def end(self) -> Any:
        """The portal's last message; None if the connection ended without one."""
        told = None
        try:
            while True:
                message = self.connection.recv(timeout=PATIENCE)
                if isinstance(message, str):
                    told = json.loads(message)
        except ConnectionClosed:
            return told


@pytest.fixture
def cluster(loop, people, manifest):
    cluster = actions.create_cluster(manifest("demo", "echo up; exec sleep 600"), acting_user=people.bob)
    loop.until_phase(cluster, "Running")
    yield cluster
    actions.disable(cluster, acting_user=people.bob)
    loop.until_phase(cluster, "Stopped")


@pytest.fixture
def web(tmp_path, cluster):
    web = Web(tmp_path)
    with services.running([web.service()], tmp_path, os.environ):
        yield web


def token(user) -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens_actions.make_token('terminal', 10, acting_user=user)[1]}"}


def session(user) -> dict[str, str]:
    client = Client()
    client.force_login(user)
    return {
        "Cookie": f"{portal_settings.SESSION_COOKIE_NAME}={client.cookies[portal_settings.SESSION_COOKIE_NAME].value}"
    }


def events() -> list[tuple[str, str, str]]:
    found = Event.objects.filter(verb__startswith="task.terminal").order_by("pk")
    return [(each.verb, each.actor_name, each.message) for each in found]


def until_closed() -> str:
    """Waits for the event; returns its message."""
    end = time.monotonic() + PATIENCE
    while not (found := Event.objects.filter(verb="task.terminal_closed")):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found.get().message


@pytest.mark.django_db(transaction=True)
class TestShell:
    def test_a_shell_and_its_size_and_its_end(self, web, people):
        secret = "sesame4711"
        with web.open(token(people.bob)) as terminal:
            terminal.resize(91, 33)
            terminal.type(
                f"echo $((6*7)) {secret}; until stty size | grep -qx '33 91'; do sleep 0.1; done; echo si''zed\r"
            )
            assert b"42 sesame4711\r\n" in terminal.until(b"sized\r\n")
            terminal.resize(120, 40)
            terminal.type("until stty size | grep -qx '40 120'; do sleep 0.1; done; echo ag''ain\r")
            terminal.until(b"again\r\n")
            terminal.type("sh -c 'echo asl''eep; exec sleep 1000'; echo ended with $?\r")
            terminal.until(b"asleep\r\n")
            terminal.type("\x03")
            terminal.type("\rexit 7\r")
            assert terminal.end() == {"exit": {"code": 7}}
            assert terminal.connection.close_code == 1000
        assert re.fullmatch(
            r"The terminal in master-0 was closed after 0:0\d:\d\d\. The shell ended with code 7\.", until_closed()
        )
        assert events()[0] == ("task.terminal_opened", "bob", "A terminal was opened in master-0.")
        assert secret not in str(list(Event.objects.values()))
        assert secret not in "".join(log.read_text() for log in web.folder.glob("*.log"))

    def test_much_output_comes_whole_and_no_faster_than_it_can_be_read(self, web, people):
        with web.open(token(people.bob)) as terminal:
            began = time.monotonic()
            terminal.type("stty -echo; head -c 6000000 /dev/zero | tr '\\0' x; echo; echo do''ne\r")
            assert terminal.until(b"done\r\n").count(b"x") >= 6_000_000
            assert time.monotonic() - began > 1.5

    def test_a_client_that_goes_takes_its_shell_along(self, web, people):
        mark = f"{time.time_ns() % 10**9 + 10**9}"
        terminal = web.open(token(people.bob))
        terminal.type(f"echo st''arted; sleep {mark}\r")
        terminal.until(b"started\r\n")
        assert eventually(lambda: [each for each in psutil.process_iter() if mark in _line(each)])
        asleep = [each for each in psutil.process_iter() if mark in _line(each)]
        # No close frame, as when a laptop is shut or the network fails.
        terminal.connection.socket.shutdown(socket.SHUT_RDWR)
        assert psutil.wait_procs(asleep, timeout=PATIENCE)[1] == []
        assert until_closed().endswith("The connection was lost.")

    def test_a_web_server_that_stops_says_that_one_may_connect_again(self, tmp_path, cluster, people):
        web = Web(tmp_path)
        with services.running([web.service()], tmp_path, os.environ):
            terminal = web.open(token(people.bob))
            terminal.type("echo st''arted\r")
            terminal.until(b"started\r\n")
            told: list[Any] = []
            listener = threading.Thread(target=lambda: told.append(terminal.end()))
            listener.start()
        listener.join(PATIENCE)
        assert (told, terminal.connection.close_code) == ([None], 1012)
        assert until_closed().endswith("The web server was stopped.")

    def test_what_is_no_message_of_a_terminal_ends_it_with_a_sentence(self, web, people):
        for wrong in (
            "{}",
            "no json",
            '{"resize": {"columns": 0, "rows": 4}}',
            '{"resize": {"columns": 80, "rows": 4}, "x": 1}',
        ):
            with web.open(token(people.bob)) as terminal:
                terminal.connection.send(wrong)
                assert terminal.end()["error"].startswith("A text message is ")
        with web.open(token(people.bob)) as terminal:
            terminal.connection.send(b"x" * (MAX_MESSAGE + 1))
            assert terminal.end() is None
            assert terminal.connection.close_code == 1009

    def test_the_example_of_the_documentation(self, web, people):
        [program] = re.findall(
            r"^```python\n(.*?)^```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL | re.MULTILINE
        )
        url = f"ws://127.0.0.1:{web.port}/api/v1{TERMINAL}"
        main, side = os.openpty()
        argv = [sys.executable, "-c", program, url, token(people.bob)["Authorization"].removeprefix("Bearer ")]
        with subprocess.Popen(argv, stdin=side, stdout=side, stderr=side, start_new_session=True) as process:
            os.close(side)
            shown = b""
            while b"$ " not in shown:
                shown += os.read(main, 4096)
            os.write(main, b"echo $((6*7)); exit 3\r")
            while b'{"exit":{"code":3}}' not in shown:
                shown += os.read(main, 4096)
            assert b"42\r\n" in shown
            assert process.wait(PATIENCE) == 0
        os.close(main)


@pytest.mark.django_db(transaction=True)
class TestWhoMay:
    def status(self, web: Web, *args: Any, **more: Any) -> int:
        with pytest.raises(InvalidStatus) as refused:
            web.open(*args, **more)
        return refused.value.response.status_code

    def test_operators_by_token_or_by_the_session_of_a_page_of_ours(self, web, people):
        assert self.status(web, {}) == 401
        assert self.status(web, token(people.mallory)) == 404
        assert self.status(web, token(people.victor)) == 403
        assert self.status(web, session(people.bob), "https://evil.example") == 403
        assert self.status(web, session(people.bob), f"http://127.0.0.1:{web.port + 1}") == 403
        assert self.status(web, session(people.bob)) == 403
        assert events() == []
        with web.open(session(people.bob), web.origin) as terminal:
            terminal.type("exit\r")
            assert terminal.end() == {"exit": {"code": 0}}
        with web.open(token(people.alice), "https://tools.example") as terminal:
            terminal.type("exit\r")
            assert terminal.end() == {"exit": {"code": 0}}

    def test_it_ends_when_they_sign_out(self, web, people):
        cookie = session(people.bob)
        with web.open(cookie, web.origin) as terminal:
            terminal.type("echo st''arted\r")
            terminal.until(b"started\r\n")
            client = Client(headers=cookie)
            client.cookies.load(cookie["Cookie"])
            assert client.post("/accounts/logout/").status_code == 302
            assert terminal.end() == {"error": "You have been signed out."}
        assert until_closed().endswith("You have been signed out.")

    def test_it_ends_with_the_token_and_with_the_membership_and_with_the_task(self, web, people, cluster, loop):
        with web.open(token(people.bob)) as terminal:
            ApiToken.objects.filter(user=people.bob).delete()
            assert terminal.end() == {"error": "You have been signed out."}
        with web.open(token(people.bob)) as terminal:
            Membership.objects.filter(user=people.bob).update(role="viewer")
            assert terminal.end() == {"error": "You need to be developer or owner of ops-demo to do this."}
        with web.open(token(people.alice)) as terminal:
            Membership.objects.filter(user=people.bob).update(role="developer")
            terminal.type("echo st''arted\r")
            terminal.until(b"started\r\n")
            actions.disable(cluster, acting_user=people.alice)
            loop.until_phase(cluster, "Stopped")
            assert terminal.end() is not None
        assert self.status(web, token(people.alice)) == 409

    def test_places_are_few_and_given_back(self, web, people):
        headers = token(people.bob)
        opened = [web.open(headers) for _ in range(4)]
        assert self.status(web, headers) == 503
        opened[0].__exit__()
        end = time.monotonic() + PATIENCE
        while True:
            try:
                opened[0] = web.open(headers)
                break
            except InvalidStatus:
                assert time.monotonic() < end
                time.sleep(0.05)
        for each in opened:
            each.__exit__()

    def test_the_plain_way_tells_what_keeps_it_from_being_opened(self, cluster, people, loop):
        status, answer = api_of(people.bob).get(TERMINAL)
        assert (status, answer["type"]) == (426, "urn:problem-type:portal:websocket-only")
        assert api_of(people.bob).get(TERMINAL.replace("/0/", "/7/"))[0] == 404
        actions.disable(cluster, acting_user=people.bob)
        loop.until_phase(cluster, "Stopped")
        status, answer = api_of(people.bob).get(TERMINAL)
        assert (status, answer["detail"]) == (409, "master-0 of run 1 does not run (Failed).")


def test_a_terminal_that_nobody_types_in_ends(monkeypatch):
    terminal = terminal_api.Terminal(None, None, "master", 0)  # type: ignore[arg-type]
    terminal._look(None, 0)  # type: ignore[arg-type]
    terminal.typed -= terminal_api.IDLE_SECONDS + 1
    with pytest.raises(terminal_api._Ended, match="Nothing was typed for 60 minutes"):
        terminal._look(None, 0)  # type: ignore[arg-type]


MESSAGES = st.lists(st.tuples(st.booleans(), st.lists(st.binary(max_size=40), min_size=1, max_size=3)), max_size=6)


@given(MESSAGES, st.lists(st.integers(1, 9), min_size=1, max_size=50))
def test_messages_arrive_whole_however_they_are_cut(messages, cuts):
    """The client splits them into frames, the network splits the frames, and pings come between."""
    wire, expected = b"", []
    for text, pieces in messages:
        for n, piece in enumerate(pieces):
            opcode = Opcode.CONT if n else Opcode.TEXT if text else Opcode.BINARY
            wire += Frame(opcode, piece, fin=n == len(pieces) - 1).serialize(mask=True)
            wire += Frame(Opcode.PING, b"?").serialize(mask=True)
        expected.append((text, b"".join(pieces)))
    wire += Frame(Opcode.CLOSE, Close(1000, "").serialize()).serialize(mask=True)

    class Pieces:
        left = wire
        sent = b""

        def recv(self, size: int) -> bytes:
            cut = cuts[len(self.left) % len(cuts)]
            piece, self.left = self.left[:cut], self.left[cut:]
            return piece

        def sendall(self, data: bytes) -> None:
            self.sent += data

        def shutdown(self, how: int) -> None:
            self.sent += b"shut down"

    connection = Pieces()
    assert list(WebSocket(connection).messages()) == expected  # type: ignore[arg-type]
    assert connection.sent.endswith(b"shut down")
    assert connection.sent.count(Frame(Opcode.PONG, b"?").serialize(mask=False)) == sum(
        len(each) for _, each in messages
    )


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
