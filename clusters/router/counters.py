"""Per-minute counters of one router, kept until the database has them. Pure: callers pass the times.

A growing minute is written whole again and again, so a lost or repeated report changes nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clusters.router.histograms import BUCKETS, bucket

# Seconds to keep a finished minute: how long the database may be away before numbers are lost.
REMEMBERED = 15 * 60.0


class Key(NamedTuple):
    service: int
    revision: int
    minute: str
    mirrored: bool


@dataclass(slots=True)
class Minute:
    requests: int = 0
    errors: int = 0
    refused: int = 0
    rows: int = 0
    latency: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    busy: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    changed: float = 0.0
    written: int = 0


class Tally:
    def __init__(self) -> None:
        self._minutes: dict[Key, Minute] = {}
        self._at, self._label = -1.0, ""

    def note(
        self, service: int, revision: int, *, status: int | None, seconds: float, sent: int, received: int, wall: float,
        now: float, rows: int = 0, mirrored: bool = False,
    ) -> None:  # fmt: skip
        """Counts one answer. `status`: 0 if none came, None if the caller left. `rows`: rows that the model answered. `wall`:
        the time since 1970 that selects the minute."""
        if (at := wall // 60 * 60) != self._at:
            self._at, self._label = at, dt.datetime.fromtimestamp(at, dt.UTC).isoformat()
        key = Key(service, revision, self._label, mirrored)
        minute = self._minutes.get(key)
        if minute is None:
            minute = self._minutes[key] = Minute()
        minute.requests += 1
        minute.errors += status is not None and (status >= 500 or status == 0)
        minute.refused += status is not None and 400 <= status < 500
        minute.rows += rows
        minute.latency[bucket(seconds * 1000)] += 1
        minute.busy += seconds * 1000
        minute.bytes_in += sent
        minute.bytes_out += received
        minute.changed = now

    def unwritten(self) -> list[dict[str, Any]]:
        """Returns the minutes that changed since they were last written, as JSON."""
        return [
            {
                **key._asdict(), "requests": each.requests, "errors": each.errors, "refused": each.refused,
                "rows": each.rows, "latency": list(each.latency), "busy_ms": round(each.busy), "bytes_in": each.bytes_in,
                "bytes_out": each.bytes_out,
            }
            for key, each in self._minutes.items()
            if each.written != each.requests
        ]  # fmt: skip

    def written(self, rows: Collection[dict[str, Any]]) -> None:
        for row in rows:
            found = self._minutes.get(Key(row["service"], row["revision"], row["minute"], row["mirrored"]))
            if found:
                found.written = row["requests"]

    def forget(self, now: float) -> int:
        """Drops old minutes and returns how many requests in them were never written."""
        old = [key for key, each in self._minutes.items() if now - each.changed > REMEMBERED]
        return sum(each.requests - each.written for each in map(self._minutes.pop, old))
