"""Runs commands inside pods over the API server's websocket, which has a channel for each stream.

Frames are read one at a time on demand, so output of any size passes through; the client library's reader would buffer all that
the program writes. Version 5 of the protocol is required to close a standard input.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import certifi
import orjson
from kubernetes.stream import ws_client
from urllib3.util import wait_for_read
from websocket import ABNF, WebSocket, WebSocketBadStatusException, WebSocketException, create_connection

from clusters.clouds.drivers.base import CloudError, Output
from clusters.clouds.drivers.kubernetes.api.client import Client, path_of
from clusters.clouds.drivers.kubernetes.logs import CONTAINER, Pod

CUT_OFF = "The command was cut off."
CONNECT_SECONDS = 15.0
# Seconds to send or receive a frame that has begun.
FRAME_SECONDS = 120.0
PIECE = 1 << 15
PROTOCOLS = [ws_client.V5_CHANNEL_PROTOCOL, ws_client.V4_CHANNEL_PROTOCOL]
# Messages of container runtimes for programs that cannot start, with the exit code of a shell.
NOT_STARTED = {"executable file not found": 127, "no such file or directory": 127, "permission denied": 126}


def execute(client: Client, pod: Pod, argv: Sequence[str], *, stdin: bool, tty: bool) -> PodSession:
    metadata = pod["metadata"]
    query: list[tuple[str, str]] = [("command", word) for word in argv]
    # A terminal has one output stream.
    wanted = {"stdin": stdin or tty, "stdout": True, "stderr": not tty, "tty": tty}
    query += [("container", CONTAINER), *((name, "true" if on else "false") for name, on in wanted.items())]
    path = f"{path_of('Pod', metadata['namespace'], metadata['name'])}/exec"
    try:
        return PodSession(_connect(client, f"{path}?{urlencode(query)}"), stdin=stdin)
    except WebSocketBadStatusException as error:
        raise CloudError(f"The command cannot be run: {_said(error)}") from error
    except (WebSocketException, OSError) as error:
        raise CloudError(f"The command cannot be run: {error}") from error


def _connect(client: Client, path: str) -> WebSocket:
    configuration = client.api.configuration
    tls: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if client.tls:
        tls = {"context": client.tls, "cert_reqs": client.tls.verify_mode}
    elif configuration.verify_ssl:
        tls = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": configuration.ssl_ca_cert or certifi.where()}
        if configuration.assert_hostname is not None:
            tls["check_hostname"] = configuration.assert_hostname
    found = {
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    tls |= {name: value for name, value in found.items() if value}
    token = configuration.auth_settings().get("BearerToken")
    options: dict[str, Any] = {"header": [f"Authorization: {token['value']}"] if token else []}
    url = "ws" + configuration.host.removeprefix("http") + path
    if configuration.proxy or configuration.proxy_headers:
        options = ws_client.websocket_proxycare(options, configuration, url, {})  # type: ignore[no-untyped-call]
    connection = create_connection(
        url, timeout=CONNECT_SECONDS, sslopt=tls, subprotocols=PROTOCOLS, enable_multithread=True, **options
    )
    connection.settimeout(FRAME_SECONDS)
    return connection


def _said(error: WebSocketBadStatusException) -> str:
    try:
        return str(orjson.loads(error.resp_body or b"")["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"the API server answers {error.status_code}."


class PodSession:
    """One command. Closing does not end a command without a terminal, as with kubectl: the API cannot."""

    exit_code: int | None = None

    def __init__(self, connection: WebSocket, *, stdin: bool) -> None:
        self._connection = connection
        if stdin and connection.subprotocol != ws_client.V5_CHANNEL_PROTOCOL:
            connection.close()
            raise CloudError("This Kubernetes is too old to pass the end of a standard input on.")

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            self._send(ws_client.STDIN_CHANNEL, data[start : start + PIECE])

    def end_input(self) -> None:
        self._send(ws_client.CLOSE_CHANNEL, bytes([ws_client.STDIN_CHANNEL]))

    def resize(self, columns: int, rows: int) -> None:
        self._send(ws_client.RESIZE_CHANNEL, orjson.dumps({"Width": columns, "Height": rows}))

    def receive(self, seconds: float) -> Output | None:
        end = time.monotonic() + seconds
        while self.exit_code is None:
            if not self._readable(max(0.0, end - time.monotonic())):
                return None
            channel, data = self._frame()
            if channel == ws_client.ERROR_CHANNEL:
                return self._end(data)
            if data and channel in (ws_client.STDOUT_CHANNEL, ws_client.STDERR_CHANNEL):
                return Output("stdout" if channel == ws_client.STDOUT_CHANNEL else "stderr", data)
        return None

    def close(self) -> None:
        self._connection.close(timeout=1)

    def _readable(self, seconds: float) -> bool:
        connection = self._connection.sock
        if connection is None:
            raise CloudError(CUT_OFF)
        if isinstance(connection, ssl.SSLSocket) and connection.pending():
            return True
        return wait_for_read(connection, timeout=seconds)

    def _frame(self) -> tuple[int, bytes]:
        try:
            code, frame = self._connection.recv_data_frame(control_frame=True)
        except (WebSocketException, OSError) as error:
            raise CloudError(CUT_OFF) from error
        if code == ABNF.OPCODE_CLOSE:
            raise CloudError(CUT_OFF)
        data = bytes(frame.data) if frame else b""
        return (data[0], data[1:]) if code == ABNF.OPCODE_BINARY and data else (-1, b"")

    def _send(self, channel: int, data: bytes) -> None:
        try:
            self._connection.send_binary(bytes([channel]) + data)
        except (WebSocketException, OSError) as error:
            raise CloudError(CUT_OFF) from error

    def _end(self, data: bytes) -> Output | None:
        """Parses the final status: {"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "2"}]}}."""
        try:
            told = orjson.loads(data)
            message = str(told.get("message") or "The command cannot be run.")
            codes = [
                int(cause["message"])
                for cause in (told.get("details") or {}).get("causes") or []
                if cause.get("reason") == "ExitCode"
            ]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            # A proxy in between may end the stream with its own message.
            said = data[:300].decode(errors="replace").strip()
            raise CloudError(f"{CUT_OFF} {said}".strip()) from error
        if codes:
            self.exit_code = codes[0]
            return None
        if told.get("status") == "Success":
            self.exit_code = 0
            return None
        for words, code in NOT_STARTED.items():
            if words in message:
                self.exit_code = code
                return Output("stderr", f"{message}\n".encode())
        raise CloudError(message)
