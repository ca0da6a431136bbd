"""S3 servers whose answer never ends: a byte now and then, or endless data. A socket timeout does not notice them.

The answers begin like real S3; only their pace differs. The limits are set low, and no test measures time: without a limit these
answers never end, and the test would time out.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from datastores.drivers import driver_for, patience, s3_client
from datastores.drivers.base import Driver, DriverError
from portal.web.limits import LOOKS, TRANSFERS
from tests import ports
from tests.kube.certificates import Authority

pytestmark = pytest.mark.timeout(240)


# The head of an answer with a body that never ends.
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: 100000000000\r\n\r\n"
MISSING = OK.replace(b"200 OK", b"404 Not Found")


class Trickling:
    """Sends `start` and then `piece` every `pause` seconds until the client disconnects."""

    def __init__(self, start: bytes, piece: bytes, pause: float, tls: ssl.SSLContext | None = None) -> None:
        self._answer = start, piece, pause
        self._tls = tls
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", ports.free()))
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                # Do not wait for a client that neither reads nor disconnects.
                connection.settimeout(5)
                self._threads.append(threading.Thread(target=self._give, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _give(self, connection: socket.socket) -> None:
        start, piece, pause = self._answer
        with contextlib.suppress(OSError), connection:
            taken = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            with taken:
                taken.recv(65536)
                taken.sendall(start)
                while not self._over.wait(pause):
                    taken.sendall(piece)

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()


@pytest.fixture
def trickling() -> Iterator[Callable[..., Trickling]]:
    with contextlib.ExitStack() as stack:

        def start(*args: Any, **more: Any) -> Trickling:
            server = Trickling(*args, **more)
            stack.callback(server.close)
            return server

        yield start


def driver_of(url: str) -> Driver:
    return driver_for("s3", {"server": url, "access_key": "KEY", "bucket": "data"}, "secret")


ASKS: dict[str, Callable[[Driver], object]] = {
    "test": lambda driver: driver.test(),
    "list": lambda driver: driver.list(""),
    "walk": lambda driver: list(driver.walk("")),
    "open": lambda driver: b"".join(driver.open("file").chunks),
    "read a part": lambda driver: driver.read_range("file", 0, 1000),
}


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("start", [OK, MISSING, b"HTTP/1.1 200 O"], ids=["body", "error", "head"])
def test_a_byte_now_and_then_is_no_answer(
    trickling: Callable[..., Trickling], monkeypatch: pytest.MonkeyPatch, ask: str, start: bytes
) -> None:
    monkeypatch.setattr(patience, "ANSWER_SECONDS", 0.5)
    driver = driver_of(trickling(start, b"x", 0.05).url)
    with pytest.raises(DriverError, match=r"does not answer in time|broke"):
        ASKS[ask](driver)


def test_by_tls_neither(trickling: Callable[..., Trickling], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    authority = Authority(tmp_path, "127.0.0.1")
    certificate, key = authority.issue("s3", file="s3")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.path))
    s3_client.client_for.cache_clear()
    monkeypatch.setattr(patience, "ANSWER_SECONDS", 0.5)
    with pytest.raises(DriverError, match="does not answer in time"):
        driver_of(trickling(OK, b"x", 0.05, tls).url).list("")
    s3_client.client_for.cache_clear()


@pytest.mark.parametrize("ask", ["list", "open"])
def test_nobody_holds_more_than_an_answer_has(
    trickling: Callable[..., Trickling], monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    monkeypatch.setattr(patience, "ANSWER_BYTES", 2**20)
    driver = driver_of(trickling(MISSING if ask == "open" else OK, b" " * 65536, 0).url)
    with pytest.raises(DriverError, match="answers with more than"):
        ASKS[ask](driver)


def test_a_large_file_takes_longer_than_an_answer_and_comes_whole(
    trickling: Callable[..., Trickling], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "ANSWER_SECONDS", 5)
    monkeypatch.setattr(patience, "SLOWEST", 1024)
    content = driver_of(trickling(OK, b"x" * 4096, 0.05).url).open("file")
    # By then 6 s have passed, more than ANSWER_SECONDS.
    read = itertools.accumulate(map(len, content.chunks))
    assert any(size > 120 * 4096 for size in read)


def test_everything_that_one_page_asks_ends_together(trickling: Callable[..., Trickling]) -> None:
    driver = driver_of(trickling(OK, b"x", 0.05).url)
    with patience.within(0.5), pytest.raises(DriverError, match="does not answer in time"):
        driver.list("")


def test_an_end_that_is_read_for_ever_ends(trickling: Callable[..., Trickling]) -> None:
    """botocore reads the empty line after "100 Continue" even if the connection has ended."""
    listener = socket.create_server(("127.0.0.1", ports.free()))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 100 Continue\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    with listener, pytest.raises(DriverError):
        driver_of(f"http://127.0.0.1:{listener.getsockname()[1]}").upload("file", open("/dev/zero", "rb"), 1000)  # noqa: SIM115
    thread.join()


def test_a_page_of_a_slow_server_gives_its_place_back(
    client: Any, people: Any, store: Any, trickling: Callable[..., Trickling], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "ANSWER_SECONDS", 2)
    url = trickling(OK, b"x", 0.05).url
    type(store).objects.update(spec=store.spec | {"server": url})
    client.force_login(people.alice)
    for _ in range(LOOKS.each + 1):
        assert "does not answer in time" in client.get("/datastores/ops-demo/data").content.decode()
    for _ in range(TRANSFERS.each + 1):
        response = client.get("/datastores/ops-demo/data/file?path=x")
        assert response.status_code == 200
        with pytest.raises(DriverError, match="does not answer in time"):
            b"".join(response.streaming_content)


def test_servers_that_wait_never_take_every_thread(client: Any, people: Any, store: Any) -> None:
    client.force_login(people.alice)
    taken = [LOOKS.enter(people.alice.pk) for _ in range(LOOKS.each)]
    taken += [TRANSFERS.enter(people.alice.pk) for _ in range(TRANSFERS.each)]
    try:
        assert "Two pages of yours wait for a slow server" in client.get("/datastores/ops-demo/data").content.decode()
        response = client.put("/uploads/ops-demo/data?path=x", b"x", content_type="application/octet-stream")
        assert (response.status_code, "Two files of yours" in response.json()["detail"]) == (503, True)
        assert client.get("/datastores/ops-demo/data/file?path=x").status_code == 302
    finally:
        for place in taken:
            place.release()
