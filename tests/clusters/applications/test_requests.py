"""Test requests to a model server: how long one may occupy a thread of the portal's web server."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from clusters.applications import requests
from portal.errors import Conflict


@pytest.mark.parametrize("drips", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"])
def test_an_answer_that_drips_keeps_nobody_for_longer_than_one_that_does_not_come(
    drips: bytes, monkeypatch: Any
) -> None:
    monkeypatch.setattr(requests, "PATIENCE", 1.0)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(drips)
                try:
                    while not over.wait(0.1):
                        connection.sendall(b"x")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        host, port = server.getsockname()
        run = SimpleNamespace(endpoints={"predict": {"address": f"{host}:{port}"}}, is_terminal=False, cloud="local")
        cluster: Any = SimpleNamespace(name="m", current_run=run, origins={"predict": "predict-m"}, proof="p")
        began = time.monotonic()
        try:
            with pytest.raises(Conflict, match="did not answer within"):
                requests.ask(cluster, "predict", "/", b"{}")
            assert time.monotonic() - began < 5
        finally:
            over.set()
            dripping.join()


def test_an_example_is_what_the_signature_takes() -> None:
    def tensor(name: str, dtype: str, shape: list[int | None] | None) -> dict[str, Any]:
        return {"name": name, "dtype": dtype, "shape": shape}

    digits = tensor("images", "float32", [None, 4])
    words = tensor("words", "string", [-1])
    assert requests.example_of({"inputs": [digits]}) == ({"instances": [[0.0, 0.0, 0.0, 0.0]]}, True)
    assert requests.example_of({"inputs": [tensor("ids", "int64", [2, None])]}) == ({"instances": [[0], [0]]}, True)
    both = {"images": [[0.0, 0.0, 0.0, 0.0]], "words": ["text"]}
    assert requests.example_of({"inputs": [digits, words]}) == ({"inputs": both}, True)
    for unknown in (None, {"inputs": []}, {"inputs": [tensor("x", "float32", None)]}):
        assert requests.example_of(unknown) == (requests.EXAMPLE, False)
    # A photograph is no text that anybody types.
    assert requests.example_of({"inputs": [tensor("photo", "float32", [None, 224, 224, 3])]})[1] is False
