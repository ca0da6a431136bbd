"""The entrance of a task's endpoint: access, forwarding of bytes, and the end of a connection."""

from __future__ import annotations

import asyncio
import socket
import string
import struct
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers import entrance

PATIENCE = 10
PROOF = "8f14e45fceea167a"
PROVEN = f"X-Portal-Gateway: {PROOF}\r\n"
names = st.sampled_from(
    ["X-Portal-Gateway", "x-portal-gateway", "X_Portal_Gateway", "X-Portal-User", "Host", " X-Portal-Gateway"]
)
values = st.one_of(
    st.just(PROOF), st.sampled_from(["", PROOF[:-1], f"{PROOF}0", PROOF.upper()]), st.text(string.printable, max_size=9)
)


@given(st.lists(st.tuples(names, values.filter(lambda text: "\r" not in text)), max_size=5), st.booleans())
def test_a_head_proves_with_the_proof_and_no_other_value(headers: list[tuple[str, str]], behind: bool) -> None:
    lines = [f"{name}: {value}" for name, value in headers]
    head = "\r\n".join(["GET / HTTP/1.1", *lines]) + "\r\n\r\n" + (PROVEN if behind else "")
    said = [value.strip(" \t\n\x0b\x0c") for name, value in headers if name.lower() == "x-portal-gateway"]
    assert entrance.proves(head.encode(), PROOF) == (bool(said) and set(said) == {PROOF})
    assert not entrance.proves(head.encode(), "")


Story = Callable[[Callable[[], Awaitable[socket.socket]], socket.socket], Awaitable[None]]


def led(story: Story, *, listens: bool = True, health: str = "") -> None:
    """Runs `story` with an entrance and the program behind it; asserts that every connection has ended afterwards."""

    async def told() -> None:
        loop, leading = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        with socket.create_server(("127.0.0.1", 0)) as outside, socket.socket() as program:
            program.bind(("127.0.0.1", 0))
            if listens:
                program.listen()
            for server in (outside, program):
                server.setblocking(False)

            async def come() -> socket.socket:
                comer = socket.create_connection(outside.getsockname(), PATIENCE)
                comer.setblocking(False)
                seen, _ = await loop.sock_accept(outside)
                port = program.getsockname()[1]
                leading.append(loop.create_task(entrance.let_in(seen, port, PROOF, health)))
                return comer

            await story(come, program)
            await asyncio.gather(*leading)

    asyncio.run(asyncio.wait_for(told(), PATIENCE))


async def whole(one: socket.socket) -> bytes:
    """Reads until the other side has closed its half."""
    loop, found = asyncio.get_running_loop(), b""
    while piece := await loop.sock_recv(one, 65536):
        found += piece
    return found


def test_a_head_in_pieces_is_waited_for_and_what_comes_behind_it_goes_on_as_it_is() -> None:
    async def story(come: Callable[[], Awaitable[socket.socket]], program: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # Two pipelined requests, then bytes that are not HTTP, as on a WebSocket.
        sent = f"GET /1 HTTP/1.1\r\nHost: x\r\n{PROVEN}\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        with await come() as comer:
            for n in range(0, len(sent) - 4, 40):
                await loop.sock_sendall(comer, sent[n : min(n + 40, len(sent) - 4)])
                await asyncio.sleep(0)
            await loop.sock_sendall(comer, sent[-4:])
            seen, _ = await loop.sock_accept(program)
            with seen:
                found = b""
                while len(found) < len(sent):
                    found += await loop.sock_recv(seen, 65536)
                assert found == sent
                await loop.sock_sendall(seen, b"\x81\x05first")
                assert await loop.sock_recv(comer, 100) == b"\x81\x05first"
                await loop.sock_sendall(comer, b"\x81\x00")
                assert await loop.sock_recv(seen, 100) == b"\x81\x00"

    led(story)


def test_a_half_that_is_closed_leaves_the_other_open_and_an_end_that_is_gone_closes_both() -> None:
    async def story(come: Callable[[], Awaitable[socket.socket]], program: socket.socket) -> None:
        loop, head = asyncio.get_running_loop(), f"POST / HTTP/1.1\r\n{PROVEN}\r\n".encode()

        async def inside() -> tuple[socket.socket, socket.socket]:
            comer = await come()
            await loop.sock_sendall(comer, head)
            seen, _ = await loop.sock_accept(program)
            assert await loop.sock_recv(seen, 1000) == head
            return comer, seen

        comer, seen = await inside()
        with comer, seen:
            await loop.sock_sendall(comer, b"question")
            comer.shutdown(socket.SHUT_WR)
            assert await whole(seen) == b"question"
            await loop.sock_sendall(seen, b"answer")
            seen.shutdown(socket.SHUT_WR)
            assert await whole(comer) == b"answer"
        comer, seen = await inside()
        with seen:
            # A reset, as by a browser whose machine goes away.
            comer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            comer.close()
            assert await loop.sock_recv(seen, 100) == b""

    led(story)


REFUSED = {
    "no proof": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"403"),
    "the proof of another cluster": (b"GET / HTTP/1.1\r\nX-Portal-Gateway: e45f\r\n\r\n", b"403"),
    "the proof, and a body of which nothing is read": (b"POST / HTTP/1.1\r\n\r\n" + b"x" * 2_000_000, b"403"),
    "a proof behind the head": (f"GET / HTTP/1.1\r\n\r\n{PROVEN}\r\n".encode(), b"403"),
    "a head that is too long": (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + f"\r\n{PROVEN}\r\n".encode(), b"431"),
    "the question of the kubelet, where nobody asks it": (b"GET /.portal/ready HTTP/1.1\r\n\r\n", b"403"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_who_does_not_prove_hears_why_and_the_program_hears_nothing(why: str) -> None:
    async def story(come: Callable[[], Awaitable[socket.socket]], program: socket.socket) -> None:
        sent, status = REFUSED[why]
        with await come() as comer:
            await asyncio.get_running_loop().sock_sendall(comer, sent)
            comer.shutdown(socket.SHUT_WR)
            answer = await whole(comer)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert entrance.NOT_TAKEN.encode() not in answer
        with pytest.raises(BlockingIOError):
            program.accept()

    led(story)


def test_a_head_that_does_not_end_holds_nothing_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(come: Callable[[], Awaitable[socket.socket]], program: socket.socket) -> None:
        with await come() as silent, await come() as slow:
            await asyncio.get_running_loop().sock_sendall(slow, b"GET / HTTP/1.1\r\n")
            assert await whole(slow) == await whole(silent) == b""

    monkeypatch.setattr(entrance, "IDLE", 0.2)
    monkeypatch.setattr(entrance, "PATIENCE", 0.2)
    led(story)


def test_a_program_that_does_not_listen_has_seen_nothing_and_that_is_said() -> None:
    async def story(come: Callable[[], Awaitable[socket.socket]], program: socket.socket) -> None:
        # More than the kernel buffers: the answer arrives although the request is not fully read.
        with await come() as comer:
            sent = f"POST / HTTP/1.1\r\n{PROVEN}\r\n".encode() + b"x" * 8_000_000
            sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(comer, sent))
            answer = await whole(comer)
            await sending
        assert answer.startswith(b"HTTP/1.1 502")
        assert f"{entrance.NOT_TAKEN}: yes\r\n".encode() in answer

    led(story, listens=False)


@pytest.mark.parametrize(
    ("status", "told"), [(b"200 OK", b"200"), (b"302 Found", b"200"), (b"404 Not Found", b"503"), (b"", b"503")]
)
def test_a_kubelet_learns_whether_the_program_answers_and_nothing_else(status: bytes, told: bytes) -> None:
    async def story(come: Callable[[], Awaitable[socket.socket]], program: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with await come() as kubelet:
            await loop.sock_sendall(kubelet, b"GET /.portal/ready HTTP/1.1\r\nHost: web.apps.example.org\r\n\r\n")
            seen, _ = await loop.sock_accept(program)
            with seen:
                asked = await loop.sock_recv(seen, 1000)
                assert asked.startswith(b"GET /health HTTP/1.1\r\nHost: web.apps.example.org\r\n")
                if status:
                    await loop.sock_sendall(seen, b"HTTP/1.1 " + status + b"\r\nX-Secret: 1\r\n\r\nsecret")
            kubelet.shutdown(socket.SHUT_WR)
            answer = await whole(kubelet)
        assert answer.startswith(b"HTTP/1.1 " + told)
        assert b"ecret" not in answer

    led(story, health="/health")
