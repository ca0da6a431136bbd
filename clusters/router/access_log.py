"""Access log of the router: one line per request, without query and token."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import dataclass

from aiohttp import web


@dataclass(slots=True)
class Said:
    """Fields of an access log line that are not in the request."""

    service: str = "-"
    caller: str = "-"
    replica: int = 0


class AccessLog:
    """Written in batches, once a second."""

    def __init__(self, form: str) -> None:
        self._json = form == "json"
        self._file = sys.stdout if self._json else sys.stderr
        self._lines: list[str] = []

    def add(self, request: web.BaseRequest, status: int, seconds: float, said: Said) -> None:
        path = request.raw_path.partition("?")[0][:200].encode("ascii", "backslashreplace").decode()
        text = f"{status} {request.method} {said.service}{path} {seconds * 1000:.1f} ms"
        self._lines.append(f"{text} caller={said.caller!r} replica={said.replica}")
        if len(self._lines) >= 5000:
            self.flush()

    def flush(self) -> None:
        if not self._lines:
            return
        at = time.strftime("%Y-%m-%dT%H:%M:%S+0000" if self._json else "%Y-%m-%d %H:%M:%S", time.gmtime())
        if self._json:
            frame = {"time": at, "level": "INFO", "logger": "router.access"}
            written = [json.dumps({**frame, "message": line}) for line in self._lines]
        else:
            written = [f"{at} INFO router.access {line}" for line in self._lines]
        self._lines = []
        with contextlib.suppress(OSError):
            self._file.write("\n".join(written) + "\n")
            self._file.flush()
