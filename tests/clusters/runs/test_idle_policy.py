"""When an idle application is stopped: never while it works or its state is unknown, unannounced, or on stale news."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.base.activity import CPU_SHARE, NETWORK_RATE, QUIET_LOOKS, Activity, Look, after, read
from clusters.runs.idle_policy import ASK_EVERY, NOTICE, Life, step

START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
# The events of a minute: the cloud is silent or heard again; it works, idles or is unknown; a user keeps or visits it.
EVENTS = st.sampled_from([*["rests"] * 6, *["heard", "keep", "visit"] * 2, "works", "unknown", "silent"])
LIVES = st.builds(
    Life,
    signal=st.sampled_from(["work", "use"]),
    policy=st.sampled_from(["stop", "stop", "stop", "stop", "announce", "never"]),
    after=st.integers(1, 30).map(lambda minutes: minutes * MINUTE),
    running_since=st.just(START),
    deadline=st.none() | st.integers(1, 300).map(lambda minutes: START + minutes * MINUTE),
)


def happens(life: Life, event: str, now: dt.datetime) -> Life:
    changes = {
        "works": {"idle_since": None}, "unknown": {"idle_since": None}, "rests": {"idle_since": life.idle_since or now},
        "keep": {"kept_at": now, "announced_at": None}, "visit": {"used_at": now}, "silent": {"is_heard": False},
        "heard": {"is_heard": True},
    }  # fmt: skip
    return replace(life, **changes.get(event, {}))  # type: ignore[arg-type]


def carried_out(life: Life, what: str, now: dt.datetime) -> Life:
    if what in ("announce", "withdraw"):
        return replace(life, announced_at=now if what == "announce" else None)
    return replace(life, **{"announce_end": {"end_announced_at": now}, "ask": {"asked_at": now}}[what])


@given(LIVES, st.lists(EVENTS, min_size=20, max_size=200), st.lists(st.integers(1, 12), min_size=20, max_size=200))
def test_nothing_is_stopped_that_works_or_is_unknown_or_was_not_announced(
    life: Life, events: list[str], pauses: list[int]
) -> None:
    now, last_sign, stood_since = START, START, None
    for event, pause in zip(events, [*pauses, *[1] * len(events)], strict=False):
        now += pause * MINUTE
        life = happens(life, event, now)
        signs = {"keep", "visit"} if life.signal == "use" else {"keep", "works", "unknown"}
        if event in signs:
            last_sign = now
        done = []
        while (what := step(life, now)[0]) and what != "stop":
            done.append(what)
            life = carried_out(life, what, now)
            stood_since = {"announce": now, "withdraw": None}.get(what, stood_since)
        stood_since = None if event == "keep" and "announce" not in done else stood_since
        assert len(done) <= 4, done
        if what == "stop":
            assert life.policy == "stop"
            assert life.is_heard
            assert life.signal == "use" or life.idle_since is not None
            assert now - last_sign >= life.after
            assert stood_since is not None
            assert stood_since >= last_sign
            assert now - stood_since >= min(NOTICE, life.after / 2)
            return
        # Checking again at the time that `step` returns misses nothing.
        due = step(life, now)[1]
        assert due is None or due > now
        if due:
            assert step(life, due)[0], (life, due)


@given(LIVES)
def test_what_rests_is_announced_and_stopped_in_time(life: Life) -> None:
    life = replace(life, idle_since=START, policy="stop", deadline=None)
    _, announced = step(life, START)
    assert announced == START + life.after - life.notice
    life = replace(life, announced_at=announced)
    assert step(life, announced) == ("", START + life.after)
    assert step(life, START + life.after)[0] == "stop"


def test_a_portal_that_slept_announces_first() -> None:
    life = Life("work", "stop", 60 * MINUTE, START, idle_since=START)
    late = START + dt.timedelta(days=3)
    assert step(life, late)[0] == "announce"
    told = replace(life, announced_at=late)
    assert step(told, late) == ("", late + NOTICE)
    assert step(told, late + NOTICE)[0] == "stop"


def test_what_has_no_end_is_asked_about_and_what_has_one_is_not() -> None:
    endless = Life("", "never", MINUTE, START)
    assert step(endless, START) == ("", START + ASK_EVERY)
    assert step(endless, START + ASK_EVERY)[0] == "ask"
    kept = replace(endless, asked_at=START + ASK_EVERY, kept_at=START + ASK_EVERY + MINUTE)
    assert step(kept, START + ASK_EVERY + MINUTE) == ("", START + 2 * ASK_EVERY + MINUTE)
    assert step(replace(endless, deadline=START + 9 * ASK_EVERY), START + 2 * ASK_EVERY)[0] == ""


LOOKS = st.lists(
    st.none()
    | st.builds(
        Look,
        at=st.just(0.0),
        busy=st.sampled_from(["", "", "", "A cell runs."]),
        count=st.integers(0, 1),
        cpu_seconds=st.sampled_from([0.0, 0.0, 5.0]),
        network_bytes=st.sampled_from([0, 0, 10**7]),
        gpu_percent=st.sampled_from([0, 0, 0, 30, None]),
    ),
    max_size=40,
)


@given(LOOKS)
def test_idle_is_what_showed_no_work_for_several_looks_in_a_row(looks: list[Look | None]) -> None:
    known, last, quiet = Activity(), None, 0
    for at, each in enumerate(looks):
        look = each and replace(each, at=float(at))
        known = after(known, look, float(at))
        measured = look is not None and look.gpu_percent is not None
        same = last is None or (
            look is not None
            and (look.count, look.cpu_seconds, look.network_bytes) == (last.count, last.cpu_seconds, last.network_bytes)
        )
        rests = measured and look is not None and not look.busy and not look.gpu_percent and same
        quiet = quiet + 1 if rests else 0
        last = look if measured else None
        assert (known.state == "idle") == (quiet >= QUIET_LOOKS)
        assert not measured or known.state != "unknown" or 0 < quiet < QUIET_LOOKS
        if known.state == "idle":
            assert known.since == at - quiet + 1
        if not measured:
            assert known.state == "unknown"


def test_less_than_an_idle_program_needs_is_no_work() -> None:
    known = after(Activity(), Look(0.0), 0.0)
    for n in range(1, 9):
        known = after(known, Look(10.0 * n, "", 0, CPU_SHARE * 9 * n, NETWORK_RATE * 9 * n), 10.0 * n)
    assert (known.state, known.since) == ("idle", 0.0)
    assert after(known, Look(90.0, "", 0, CPU_SHARE * 9 * 8 + 1.1, NETWORK_RATE * 9 * 8), 90.0).state == "busy"


@given(
    st.binary()
    | st.recursive(st.none() | st.text() | st.floats() | st.integers(), st.lists).map(
        lambda said: json.dumps(said).encode()
    )
)
def test_a_program_that_says_something_else_is_unknown(said: bytes) -> None:
    assert read(said, 0.0, 0) is None


def test_a_program_says_as_little_as_that_it_works() -> None:
    assert read(b'{"busy": ""}', 1.0, 0) == Look(1.0)
    assert read(b'{"busy": true}', 1.0, 0) is None
    assert read(b'{"busy": "", "cpu_seconds": NaN}', 1.0, 0) is None
    assert read(b'{"busy": "", "cpu_seconds": 1e999}', 1.0, 0) is None
