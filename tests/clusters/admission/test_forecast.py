"""Forecasts (`clusters/admission/forecast.py`), against the simulated cloud of the bench, which has code of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.admission.foretelling import scene_of
from bench.admission.traces import Trace, eights, generated, mixed
from bench.admission.virtual import Cloud
from bench.admission.virtual import Run as Simulated
from clusters.admission.decision import Ask
from clusters.admission.forecast import (
    FOR_EVER,
    GRACE,
    LEAST,
    MOST_LOST,
    PROTECTED,
    TICK,
    TO_BEGIN,
    TO_END,
    History,
    Kind,
    Length,
    Living,
    Scene,
    drawn,
    forecast,
    starts,
)
from clusters.admission.order import Share
from clusters.admission.packing import Shape, Sizes, asking
from clusters.admission.pool import Node
from clusters.runs.placing import known, rights, room

WEEK = 7 * 86_400


def lasts(cloud: Cloud) -> dict[str, int]:
    """How long its runs really last from their start."""
    held = (run for each in cloud.appcodes.values() for run in each.holding.values())
    return {run.name: run.left for run in [*held, *cloud.waiting.values()]}


def test_a_replay_has_the_times_of_the_product():
    assert {level: room.dt.timedelta(seconds=each) for level, each in PROTECTED.items()} == rights.PROTECTED
    assert (room.TO_BEGIN.seconds, known.TO_END.seconds) == (TO_BEGIN, TO_END)
    assert rights.MOST_LOST == MOST_LOST


@pytest.mark.parametrize("nodes", [eights(10), mixed(40)], ids=["equal", "mixed"])
def test_with_known_run_times_a_replay_is_what_happens(nodes, monkeypatch):
    """With shares, classes, holes and taking back; to the second. The simulated cloud counts all of that by itself."""
    trace = generated("", 1, 180, nodes, 1.3)
    cloud = Cloud(trace)
    for job in trace.jobs:
        cloud.submit(job)
    cloud.advance(trace.jobs[-1].at)
    scene = scene_of(cloud)
    assert len(scene.asks) > 10
    found = starts(scene, lasts(cloud), FOR_EVER, lambda _: TICK)
    happened: dict[str, int] = {}
    start = cloud._start

    def note(run: Simulated, layout) -> None:
        start(run, layout)
        happened.setdefault(run.name, cloud.now)

    monkeypatch.setattr(cloud, "_start", note)
    # The next pass is a minute later, as in the replay.
    cloud._at(cloud.now + 1, "free", next(iter(cloud.waiting.values())))
    cloud.advance()
    assert found == {ask.run: happened[ask.run] for ask in scene.asks}


# One node of 8 GPUs, of one appcode: the run that is there, and those that wait.
TASKS = {gpus: (asking("w", 1, gpus, "", 1000, 1000),) for gpus in range(1, 9)}
WHOLE = Shape(8, 64_000, 64_000)


def small(holds: int, waiting: list[int], at: int = 600_000, age: int = 3600) -> Scene:
    sizes = Sizes(holds, 1000, 1000)
    node = Node("n", WHOLE, WHOLE.less(sizes), ends=None)
    asks = tuple(Ask(str(number), "a", TASKS[gpus]) for number, gpus in enumerate(waiting, start=2))
    living = Living(Ask("1", "a", TASKS[holds]), {"n": sizes}, at - age)
    return Scene(at, (node,), asks, {"a": Share(100, holds, limit=100)}, (living,))


LENGTHS = st.lists(st.integers(60, 90_000), min_size=1, max_size=9).map(sorted)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.lists(st.integers(1, 8), min_size=1, max_size=5), LENGTHS, st.integers(0, 99))
def test_forecasts_are_equal_for_an_equal_seed_in_order_and_never_before_there_is_room(holds, waiting, lasted, seed):
    scene = small(holds, waiting)
    age = scene.at - scene.living[0].since
    lengths = {ask.run: Length(lasted) for ask in scene.asks}
    lengths["1"] = Length([age + each for each in lasted], age)
    found = forecast(scene, drawn(lengths, seed, 8), WEEK)
    assert found == forecast(scene, drawn(lengths, seed, 8), WEEK)
    assert all(scene.at < each.p50 <= each.p90 <= scene.at + WEEK for each in found.values())
    if waiting[0] > 8 - holds and "2" in found:
        assert found["2"].p50 >= scene.at + lasted[0], "the one that is there lasts so long at least"
    # Of one size, nobody starts before an earlier one.
    if len(set(waiting)) == 1:
        several = [found[ask.run].p50 for ask in scene.asks if ask.run in found]
        assert several == sorted(several)


def test_a_run_that_is_being_taken_off_leaves_soon_and_one_that_never_ends_does_not():
    scene = small(8, [8])
    lengths = {"1": Length(()), "2": Length((60,))}
    assert forecast(scene, drawn(lengths, 1, 4), WEEK) == {}
    [living] = scene.living
    leaving = replace(scene, living=(replace(living, is_ending=True),))
    assert forecast(leaving, drawn(lengths, 1, 4), WEEK)["2"].p90 <= scene.at + GRACE + TICK


def test_run_times_are_those_of_the_most_alike_runs_that_lasted_longer():
    own, other = Kind(1, ("a", "pytorch"), 8, 3600), Kind(2, ("a", "pytorch"), 8, 3600)
    history = History([*((own, 100 + each) for each in range(LEAST)), *((other, 10) for _ in range(50))])
    assert history.count == 50 + LEAST
    assert list(history.lasted(own, 0)) == list(range(100, 100 + LEAST))
    assert set(history.lasted(replace(own, cluster=3), 0)) == {10, *range(100, 100 + LEAST)}, "of its framework"
    assert list(history.lasted(Kind(3, "none", 8, 3600), 99)) == list(range(100, 100 + LEAST)), (
        "of its size, and longer"
    )
    assert history.lasted(own, 100) == (), "too few are known that lasted so long"
    assert Length(history.lasted(own, 100), 100, 3600).at(0.1) == 3600
    assert Length((50, 5000), 40, 3600).at(0.9) == 3600
    assert {Length((5, 50)).at(share) for share in (0.0, 0.49)} == {5}


def test_nine_of_ten_runs_have_started_when_it_was_likely(capsys):
    """In the simulated cloud, of queues that are told once: run times have a heavy tail, and are known from other runs alone."""
    found = [each for seed in range(10) for each in _told_once(generated("", seed, 45, eights(2), 3.0), seed)]
    within, near = (sum(each[place] for each in found) / len(found) for place in (0, 1))
    with capsys.disabled():
        print(f" p90 covers {within:.1%} of {len(found)} starts, p50 is within 10 min of {near:.1%}", end="")
    assert len(found) >= 200
    assert 0.85 <= within <= 0.97


def _told_once(trace: Trace, seed: int) -> list[tuple[bool, bool]]:
    """Whether the runs that wait start by the likely time, and whether near the probable one."""
    jobs = [replace(job, appcode="a00", priority_class="normal") for job in trace.jobs]
    cloud = Cloud(replace(trace, jobs=jobs, terms={"a00": replace(trace.terms["a00"], quota=10**6, limit=10**6)}))
    for job in jobs:
        cloud.submit(job)
    cloud.advance(jobs[-1].at)
    ended = generated("", 1000 + seed, 1000, trace.nodes, 1.0).jobs
    history = History((Kind(0, 0, job.gpus, job.limit), job.seconds) for job in ended)

    def length(run: Simulated, age: int = 0) -> Length:
        return Length(history.lasted(Kind(1, 1, run.gpus, run.job.limit), age), age, run.job.limit)

    scene = scene_of(cloud)
    lengths = {run.name: length(run) for run in cloud.waiting.values()}
    lengths |= {each.ask.run: length(cloud.holder(each.ask.run), scene.at - each.since) for each in scene.living}
    likely = forecast(scene, drawn(lengths, 1, 8), 4 * WEEK)
    cloud.advance()
    began = {int(run): trace.jobs[int(run)].at + cloud.seen.waits[int(run)] for run in likely}
    return [(began[int(run)] <= each.p90, abs(began[int(run)] - each.p50) <= 600) for run, each in likely.items()]
