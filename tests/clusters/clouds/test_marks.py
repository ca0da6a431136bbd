"""Marks of logs: each byte has a time and a line, however the log was written; each can be found from the others. Pure."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers import marks

WRITES = st.lists(st.tuples(st.integers(-5_000, 3_000_000), st.text("ab\n", min_size=1, max_size=90)), max_size=60)


@given(WRITES, st.integers(1, 7), st.sampled_from([0, 5, 1000]))
def test_what_is_found_by_halving_is_what_is_found_by_looking_at_all(
    writes: list[tuple[int, str]], block: int, free: int
) -> None:
    marker, log, found, at = marks.Marker(), b"", b"", 1_700_000_000_000_000
    times = []
    for step, text in writes:
        at += step
        with patch.object(marks, "FREE", free):
            found += marker.add(text.encode(), at)
        log += text.encode()
        times += [at] * len(text)
    every = list(marks.each(found))
    assert [mark[marks.LINE] for mark in every] == [log[: mark[marks.OFFSET]].count(b"\n") for mark in every]
    assert all(every == sorted(every, key=lambda mark: mark[column]) for column in range(3))
    seconds = sum(max(0, step) for step, _ in writes) / marks.EVERY_US
    assert len(every) <= free + 1 + len(log) / marks.EVERY_BYTES + seconds
    latest = 0
    for offset, time in enumerate(times):
        latest = max(latest, time)
        assert 0 <= latest - marks.at(found, offset) < (marks.CLOSE_US if free > len(writes) else marks.EVERY_US)

    def read(start: int, count: int) -> bytes:
        return found[start * marks.SIZE : (start + count) * marks.SIZE]

    with patch.object(marks, "BLOCK", block):
        for column in range(3):
            for most in {value + more for mark in every for value in [mark[column]] for more in (-1, 0, 1)}:
                smaller = [item for item in enumerate(every) if item[1][column] <= most]
                assert marks.last(read, len(every), column, most) == (smaller[-1] if smaller else None)
        for start in range(0, len(log), 7):
            part = marks.between(read, len(every), start, start + 20)
            assert [marks.at(part, n) for n in range(start, min(start + 20, len(log)))] == [
                marks.at(found, n) for n in range(start, min(start + 20, len(log)))
            ]
