"""The database has every counted request once, or it is reported lost, even if writes are repeated, late or missing."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusters.router.counters import REMEMBERED, Tally

# Seconds by which the wall clock has jumped.
notes = st.tuples(
    st.just("note"), st.integers(1, 2), st.sampled_from([0, 200, 404, 500, None]), st.sampled_from([0, 60, -300, 300])
)
steps = st.lists(
    notes | st.tuples(st.sampled_from(["ask", "written", "lost", "forget"])) | st.tuples(st.just("wait"), st.floats(0, 1200)),
    max_size=40,
)  # fmt: skip


@given(steps)
def test_each_answer_is_counted_once(steps: list[Any]) -> None:
    tally, now, count, forgotten, errors = Tally(), 0.0, 0, 0, 0
    asked: list[list[dict[str, Any]]] = []
    database: dict[tuple[Any, ...], dict[str, Any]] = {}

    def write(rows: list[dict[str, Any]]) -> None:
        """Like rows.MINUTES: the counters of a minute never decrease."""
        for row in rows:
            key = (row["service"], row["revision"], row["minute"], row["mirrored"])
            if key not in database or database[key]["requests"] <= row["requests"]:
                database[key] = row

    for step in steps:
        match step:
            case ("note", revision, status, jump):
                tally.note(7, revision, status=status, seconds=0.01, sent=1, received=2, wall=1e9 + now + jump, now=now)
                count += 1
                errors += status in (0, 500)
            case ("ask",):
                asked.append(tally.unwritten())
            case ("written",) if asked:
                write(asked[0])
                tally.written(asked.pop(0))
            case ("lost",) if asked:
                # It was written, but the confirmation was lost.
                write(asked.pop(0))
            case ("forget",):
                forgotten += tally.forget(now)
            case ("wait", seconds):
                now += seconds
    rows = tally.unwritten()
    write(rows)
    tally.written(rows)
    assert tally.unwritten() == []
    known = sum(each["requests"] for each in database.values())
    assert known <= count <= known + forgotten
    if not forgotten:
        assert sum(each["errors"] for each in database.values()) == errors
        assert all(sum(each["latency"]) == each["requests"] == each["bytes_in"] for each in database.values())
    assert tally.forget(now + REMEMBERED + 1) == 0
    assert tally.unwritten() == []
