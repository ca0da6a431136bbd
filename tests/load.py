"""HTTP load at a steady rate. Latency counts from when a request was due, so that a stalled server can't hide it.
Used by tests and by the benchmark."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp

# Timeout of one request, in seconds.
PATIENCE = 60.0


@dataclass(frozen=True)
class Asked:
    """One request: `due` in seconds of `time.perf_counter`, `seconds` from then to the end of the answer, and `came`: the
    HTTP status or the name of the exception."""

    due: float
    seconds: float
    came: str


class Load:
    """with Load(url, headers, body, 200) as load: … POSTs `body` `per_second` times a second until the block ends; then
    `load.asked` has all requests."""

    def __init__(self, url: str, headers: Mapping[str, str], body: bytes, per_second: float) -> None:
        self._url, self._headers, self._body, self._rate = url, dict(headers), body, per_second
        self.asked: list[Asked] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),), name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE + 10)
        assert not self._thread.is_alive()

    def came(self, since: float = 0.0, until: float = float("inf")) -> Counter[str]:
        """Counts the results of the requests due in that window."""
        return Counter(each.came for each in self.asked if since <= each.due < until)

    def seconds(self, since: float = 0.0, until: float = float("inf")) -> list[float]:
        """Latencies of the requests due in that window that were answered with 200."""
        return [each.seconds for each in self.asked if since <= each.due < until and each.came == "200"]

    async def _run(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        begin, number, flying = time.perf_counter(), 0, set[asyncio.Task[None]]()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers) as session:
            while not self._stopped.is_set():
                due = begin + number / self._rate
                if (early := due - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                task = asyncio.create_task(self._ask(session, due))
                flying.add(task)
                task.add_done_callback(flying.discard)
                number += 1
            await asyncio.gather(*flying)

    async def _ask(self, session: aiohttp.ClientSession, due: float) -> None:
        try:
            async with session.post(self._url, data=self._body) as answer:
                await answer.read()
                came = str(answer.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            came = type(error).__name__
        self.asked.append(Asked(due, time.perf_counter() - due, came))
