"""Streams of an API server or of a proxy before it, valid or not."""

from __future__ import annotations

import socket
import threading

import pytest
import urllib3
from websocket import ABNF, WebSocket

from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.kubernetes import exec as pod_exec
from clusters.clouds.drivers.kubernetes.api import client, errors


@pytest.fixture
def session():
    """Yields (session, send): `send(channel, bytes)` plays the server."""
    ours, theirs = socket.socketpair()
    connection = WebSocket()
    connection.sock, connection.connected = ours, True

    def send(channel, data):
        frame = ABNF.create_frame(bytes([channel]) + data, ABNF.OPCODE_BINARY)
        frame.mask_value = 0
        theirs.sendall(frame.format())

    yield pod_exec.PodSession(connection, stdin=False), send
    theirs.close()
    ours.close()


@pytest.mark.parametrize(
    "status",
    [
        b"<html>502 Bad Gateway</html>", b"", b"null", b"[1]", b'"text"', b'{"details": {"causes": [1]}}',
        b'{"details": {"causes": [{"reason": "ExitCode", "message": "many"}]}}', b'{"details": [1]}',
    ],
)  # fmt: skip
def test_a_command_that_is_cut_off_in_other_words_says_so(session, status):
    found, send = session
    send(1, b"some output")
    send(3, status)
    assert found.receive(5).data == b"some output"
    with pytest.raises(CloudError, match=r"^The command was cut off\."):
        found.receive(5)


def test_an_exit_code_is_what_it_was(session):
    found, send = session
    send(3, b'{"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}}')
    assert found.receive(5) is None
    assert found.exit_code == 7


@pytest.mark.parametrize("line", [b"<html>", b"[]", b'{"type": "ADDED"}', b'{"type": "ERROR", "object": "gone"}'])
def test_a_watch_that_ends_in_other_words_is_begun_again(line):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                body = b'{"type": "ADDED", "object": {}}\n' + line + b"\n"
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        events = client.events(urllib3.PoolManager().request("GET", address, preload_content=False))
        assert next(events) == {"type": "ADDED", "object": {}}
        with pytest.raises(errors.Unavailable, match="cut off by what is no event"):
            next(events)
        thread.join()
