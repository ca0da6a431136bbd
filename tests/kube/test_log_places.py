"""Positions in pod logs: however a log is cut and resumed, every line appears once. Pure functions."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.kubernetes.log_lines import Place, Text, nanoseconds
from clusters.clouds.drivers.kubernetes.logs import is_over


def body(lines: list[tuple[int, bytes]], since: Place | None = None) -> bytes:
    """Answers as a kubelet: whole seconds for `sinceTime`, a timestamp before every line."""
    first = since.stamp // 10**9 if since else 0
    return b"".join(stamp(at) + b" " + text + b"\n" for at, text in lines if at // 10**9 >= first)


def stamp(at: int) -> bytes:
    seconds = dt.datetime.fromtimestamp(at // 10**9, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{seconds}.{at % 10**9:09d}Z".encode()


def fed(text: Text, data: bytes, size: int) -> bytes:
    return b"".join(piece for at in range(0, len(data), size) for piece in text.feed(data[at : at + size]))


LINES = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 10**6, 5 * 10**8, 10**9, 3 * 10**9]), st.binary(max_size=30)), max_size=30
).map(
    lambda steps: [
        (1_800_000_000 * 10**9 + sum(step for step, _ in steps[: n + 1]), text.replace(b"\n", b""))
        for n, (_, text) in enumerate(steps)
    ]
)


@given(LINES, st.integers(0, 30), st.integers(1, 50))
@settings(max_examples=300)
def test_what_was_cut_anywhere_goes_on_there(lines: list[tuple[int, bytes]], cut: int, size: int) -> None:
    whole = b"".join(text + b"\n" for _, text in lines)
    before = Text(Place())
    first = fed(before, body(lines[:cut]), size)
    place = Place.read(str(before.place))
    assert place == before.place
    assert place.offset == len(first)
    after = Text(place)
    assert first + fed(after, body(lines, place), size) == whole
    assert after.place.offset == len(whole)
    assert after.place.line == len(lines)
    for number, (at, _) in enumerate(lines[cut:], cut):
        start = sum(len(text) + 1 for _, text in lines[:number])
        assert 0 <= at // 1000 - marks.at(after.marks, start) <= marks.EVERY_US


@given(LINES, st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=100)
def test_lines_that_the_node_has_thrown_away_are_only_missing(
    lines: list[tuple[int, bytes]], cut: int, thrown: int
) -> None:
    before = Text(Place())
    fed(before, body(lines[:cut]), 1000)
    left = [(at, text) for at, text in lines[min(thrown, cut) :]]
    # Lines of the same nanosecond cannot be told apart once some of them are gone.
    if any(at == before.place.stamp for at, _ in lines[cut:]) and thrown:
        return
    after = Text(before.place)
    assert fed(after, body(left, before.place), 1000) == b"".join(text + b"\n" for _, text in lines[cut:])


def test_an_unfinished_line_comes_as_it_grows() -> None:
    text = Text(Place())
    at = 1_800_000_000 * 10**9
    assert fed(text, body([(at, b"one")]) + stamp(at + 5) + b" two", 7) == b"one\ntwo"
    assert text.place == Place(at, 1, 4, 1)
    again = Text(text.place)
    assert fed(again, body([(at, b"one"), (at + 5, b"two and a half")], text.place), 7) == b"two and a half\n"
    assert again.place == Place(at + 5, 1, 19, 2)


def test_stamps_of_other_time_zones_and_streams_out_of_order() -> None:
    assert nanoseconds(b"2026-01-02T03:04:05.5+02:00") == nanoseconds(b"2026-01-02T01:04:05.500000000Z")
    assert nanoseconds(b"2026-01-02T03:04:05Z") % 10**9 == 0
    text = Text(Place())
    at = 1_800_000_000 * 10**9
    fed(text, body([(at + 5, b"b"), (at, b"a")]), 100)
    assert text.place == Place(at + 5, 1, 4, 2)


@pytest.mark.parametrize("cursor", ["", "1", "a.b.c", "1.2.3", "-1.2.3.4", "1.2.3.4e5", "٣.1.1.1", "9" * 30 + ".1.1.1"])
def test_a_cursor_of_somebody_else_is_the_beginning(cursor: str) -> None:
    assert Place.read(cursor) == Place()


def test_a_sentence_in_place_of_a_log_is_an_error() -> None:
    with pytest.raises(CloudError):
        fed(Text(Place()), b"unable to retrieve container logs for containerd://4711, which was removed\n", 100)


@pytest.mark.parametrize(
    ("phase", "restart", "deleted", "state", "over"),
    [
        ("Running", "Never", False, "running", False),
        ("Running", "Never", False, "terminated", True),  # its output is still being stored
        ("Running", "Always", False, "terminated", False),  # it will be restarted
        ("Running", "Always", True, "terminated", True),
        ("Running", "Always", True, "running", False),
        ("Failed", "Always", False, "waiting", True),
        ("Pending", "Never", False, "waiting", False),
    ],
)
def test_a_log_ends_with_its_program_and_not_with_its_pod(
    phase: str, restart: str, deleted: bool, state: str, over: bool
) -> None:
    pod = {
        "metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"} if deleted else {},
        "spec": {"restartPolicy": restart},
        "status": {"phase": phase, "containerStatuses": [{"name": "task", "state": {state: {}}}]},
    }
    assert is_over(pod) is over
