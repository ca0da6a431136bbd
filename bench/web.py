"""Requests at a steady rate, timed from when they were due: a server that stalls cannot hide it by delaying the next ones."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit


class Client:
    """Keeps one connection per thread to a server. Raises RuntimeError with the response text for a status of 400 or more."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._prefix = parts.path
        self._headers = dict(headers or {})
        self._local = threading.local()

    def send(self, method: str, path: str, body: object = None) -> bytes:
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        data = None if body is None else json.dumps(body).encode()
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection(*self._address, timeout=30)
        try:
            connection.request(method, self._prefix + path, data, headers)
            answer = connection.getresponse()
            text: bytes = answer.read()
        except (OSError, http.client.HTTPException):
            self._local.connection = None
            raise
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:500].decode(errors='replace')}")
        return text

    def json(self, method: str, path: str, body: object = None) -> Any:
        return json.loads(self.send(method, path, body))


def steadily(per_second: float, jobs: Sequence[Callable[[], object]]) -> list[float]:
    """Starts a job every 1/`per_second` s, however long jobs take. Returns the seconds from each job's due time to its end."""
    begin = time.perf_counter() + 0.1

    def do(n: int, job: Callable[[], object]) -> float:
        job()
        return time.perf_counter() - due(n)

    def due(n: int) -> float:
        return begin + n / per_second

    with ThreadPoolExecutor(32) as pool:
        pending = []
        for n, job in enumerate(jobs):
            time.sleep(max(0.0, due(n) - time.perf_counter()))
            pending.append(pool.submit(do, n, job))
        return [each.result() for each in pending]


def at_once(threads: int, jobs: Sequence[Callable[[], object]]) -> None:
    """Runs all jobs on `threads` threads, each as soon as a thread is free."""
    with ThreadPoolExecutor(threads) as pool:
        for each in [pool.submit(job) for job in jobs]:
            each.result()


def one_by_one(times: int, job: Callable[[], object]) -> list[float]:
    """Runs `job` `times` times, one after the other. Returns the seconds of each."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        job()
        found.append(time.perf_counter() - begin)
    return found
