"""An answer of a replica has one reading or is refused, however it is split into pieces."""

from __future__ import annotations

import pytest

from clusters.router.http1 import OURS_OF_ANSWERS, OURS_OF_REQUESTS, Answer, BadAnswer, onward

LENGTH = b"Content-Length: 2\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\r\n" + LENGTH,
        b"HTTP/1.1 200 OK\r\nA: b\rC: d\r\n" + LENGTH,
        b"HTTP/1.1 200 OK\r\nA: b\0\r\n" + LENGTH,
        b"HTTP/1.1 200 OK\nA: b\r\n" + LENGTH,
        b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n",
        b"HTTP/1.1 200 OK\r\n A: folded\r\n" + LENGTH,
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n" + LENGTH,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + LENGTH,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n",
        b"HTTP/2 200 OK\r\n" + LENGTH,
    ],
)
def test_an_answer_that_can_be_read_in_two_ways_is_none(head: bytes) -> None:
    with pytest.raises(BadAnswer):
        Answer("GET").feed(head + b"\r\nok")


def test_an_answer_is_the_same_in_whatever_pieces_it_comes() -> None:
    said = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    said += b"2\r\nab\r\n1;x\r\nc\r\n0\r\nT: t\r\n\r\n"
    for size in range(1, len(said) + 1):
        answer = Answer("POST")
        body = b"".join(answer.feed(said[at : at + size]) for at in range(0, len(said), size))
        assert (answer.status, body, answer.done, answer.keeps) == (200, b"abc", True, True)


def test_what_is_of_one_connection_and_what_the_portal_alone_says_goes_no_further() -> None:
    said = [
        (b"X-Named", b"before"), (b"connection", b"close, X-Named"), (b"Connection", b"x-other"), (b"X-OTHER", b"1"),
        (b"X_Portal_Caller", b"root"), (b"x-portal-revision", b"9"), (b"X-Port", b"kept"), (b"Upgrade", b"h2c"),
    ]  # fmt: skip
    for dropped in (OURS_OF_REQUESTS, OURS_OF_ANSWERS):
        assert onward(said, dropped) == [(b"X-Port", b"kept")]
