"""GPU usage on this machine: summed by task and minute, reported once, and never more than was sampled.

The arithmetic is tested directly. NVML itself is used if there is a GPU; elsewhere a stand-in for its library lets loading,
reading by UUID and recovery from errors run everywhere.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import sys
import time
import types
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.base import GpuUse
from clusters.clouds.drivers.local.agent import gpu_meter, gpus
from clusters.clouds.drivers.local.agent.gpu_meter import Holder, Look, Meter
from tests.clusters.clouds.local.agents import Agent

START = 1_800_000_000  # the start of a minute
REAL = gpus.find(0)


def told(one: Meter) -> list[GpuUse]:
    return list(one.since("").items)


def moment(minute: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(START + 60 * minute, dt.UTC)


def test_six_looks_make_a_minute():
    one = Meter()
    holder = Holder("pod", START - 500, ("0", "1"))
    for n in range(1, 8):
        one.note(START + 10 * n, [holder], {"0": Look(10 * n, 100 * n), "1": Look(0, 50)})
    assert told(one) == [GpuUse("pod", moment(0), 60.0, 0.175, 650)]


def test_a_task_counts_from_when_it_has_its_gpus_and_a_gpu_that_does_not_answer_is_not_measured():
    one = Meter()
    young = Holder("young", START + 40, ("0",))
    half = Holder("half", START, ("1", "2"))
    for n in range(1, 8):
        one.note(START + 10 * n, [young, half], {"0": Look(100, 1), "1": Look(50, 1)})
    # One of its two GPUs was measured, so half of the GPU time.
    assert told(one)[:2] == [GpuUse("half", moment(0), 30.0, 0.5, 1), GpuUse("young", moment(0), 20.0, 1.0, 1)]


def test_how_busy_the_gpus_of_a_task_are_is_known_while_all_of_them_say_so():
    one = Meter()
    assert one.busy(["0"], False, START) is None
    one.note(START, [], {"0": Look(0, 1), "1": Look(40, 1)})
    assert (one.busy(["0"], False, START + 1), one.busy(["0", "1"], False, START + 1)) == (0, 40)
    assert one.busy(["0", "2"], False, START + 1) is None
    assert one.busy(["0", "1"], False, START + 31) is None
    # Simulated GPUs are never busy, and a task without GPUs is never unknown.
    assert (one.busy(["0"], True, START + 99), one.busy([], False, START + 99)) == (0, 0)


def test_what_nobody_looked_at_is_not_made_up():
    one = Meter()
    holder = Holder("pod", START, ("0",))
    for at in (15, 30, 200, 230):
        one.note(START + at, [holder], {"0": Look(80, 1)})
    assert [(use.minute, use.seconds) for use in told(one)] == [(moment(0), 20.0)]
    one.note(START + 300, [], {})
    assert [(use.minute, use.seconds) for use in told(one)[1:]] == [(moment(3), 20.0)]


def test_a_clock_that_is_put_back_makes_no_time():
    one = Meter()
    holder = Holder("pod", START - 900, ("0",))
    for at in (15, 30, -300, -285, 15, 30, 45, 60, 200):
        one.note(START + at, [holder] if at < 200 else [], {"0": Look(80, 1)})
    assert all(use.seconds <= 60 for use in told(one))


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sets(st.sampled_from(["a", "b"])), st.integers(0, 100)), max_size=60),
    st.lists(st.integers(0, 8), max_size=10),
)
def test_fetched_in_any_pieces_it_is_all_there_and_fits_the_time(
    looks: list[tuple[int, set[str], int]], pieces: list[int]
):
    one, at, position, found = Meter(), float(START), "", []
    for n, (pause, uids, percent) in enumerate(looks):
        at += pause
        one.note(at, [Holder(uid, START, ("0",)) for uid in sorted(uids)], {"0": Look(percent, n)})
        if n in pieces:
            answer = one.since(position)
            assert one.since(position) == answer
            position, found = answer.position, [*found, *answer.items]
    one.note(at + 600, [], {})
    found += one.since(position).items
    assert found == told(one)
    assert len({(use.uid, use.minute) for use in found}) == len(found)
    sums: defaultdict[str, float] = defaultdict(float)
    for use in found:
        assert 0 < use.seconds <= 60
        assert 0 <= use.busy <= 1
        sums[use.uid] += use.seconds
    assert all(total <= at - START + 10 for total in sums.values())


def test_old_news_is_forgotten_and_another_agents_position_means_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_meter, "MOST_NEWS", 3)
    monkeypatch.setattr(gpu_meter, "AT_ONCE", 2)
    one = Meter()
    for n in range(1, 44):
        one.note(START + 10 * n, [Holder("pod", START, ("0",))], {"0": Look(n, 1)})
    first = one.since("somebody-else/99")
    second = one.since(first.position)
    assert [use.minute for use in (*first.items, *second.items)] == [moment(n) for n in (4, 5, 6)]
    assert one.since(second.position).items == ()
    assert one.since(f"{one.id}/rubbish") == first


class StandIn(types.ModuleType):
    """The used part of pynvml, with two GPUs of which one fails at times. Not a real GPU: see the test below."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.broken = False
        self.opened = 0

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        if self.broken:
            raise self.NVMLError("lost")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if self.broken and uuid == "GPU-1":
            raise self.NVMLError("GPU is lost")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return types.SimpleNamespace(gpu=37, memory=5)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return types.SimpleNamespace(used=3 << 30)


@pytest.mark.skipif(not REAL.simulated, reason="There is a GPU here: the test with the real one says more.")
def test_reading_goes_on_after_an_error_with_a_stand_in_for_nvml(monkeypatch: pytest.MonkeyPatch):
    library = StandIn()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    nvml, names = gpu_meter.Nvml(), {"0": "GPU-0", "1": "GPU-1"}
    assert nvml.look(names) == {"0": Look(37, 3072), "1": Look(37, 3072)}
    library.broken = True
    assert nvml.look(names) == {"0": Look(37, 3072)}
    library.broken = False
    assert set(nvml.look(names)) == {"0", "1"}
    assert library.opened == 2


@pytest.mark.skipif(not REAL.simulated, reason="There is a GPU here: the test with the real one says more.")
def test_the_agents_loop_looks_at_what_tasks_hold_with_a_stand_in_for_nvml(monkeypatch: pytest.MonkeyPatch):
    """With minutes of 1 s, and a sample every 0.05 s."""
    monkeypatch.setitem(sys.modules, "pynvml", StandIn())
    monkeypatch.setattr(gpu_meter, "PERIOD", 0.05)
    monkeypatch.setattr(gpu_meter, "MINUTE", 1)
    holders = [Holder("pod", time.time() - 9, ("0", "1"))]
    meter = Meter()

    async def until_told() -> GpuUse:
        looking = asyncio.create_task(gpu_meter.measure(meter, lambda: holders, {"0": "GPU-0", "1": "GPU-1"}))
        try:
            async with asyncio.timeout(60):
                while not meter.news:
                    await asyncio.sleep(0.05)
        finally:
            looking.cancel()
        return told(meter)[0]

    first = asyncio.run(until_told())
    assert (first.uid, first.busy, first.memory_mb) == ("pod", 0.37, 6144)
    assert 0 < first.seconds <= 1


@pytest.mark.skipif(
    REAL.simulated,
    reason="No GPU here. Where there is one: python -m pytest tests/clusters/clouds/local/test_meter.py -k real_gpu",
)
def test_a_real_gpu_says_how_busy_it_is():
    looks = gpu_meter.Nvml().look(REAL.names)
    assert set(looks) == set(REAL.names)
    assert all(0 <= look.percent <= 100 and look.memory_mb >= 0 for look in looks.values())


@pytest.mark.as_user
def test_simulated_gpus_measure_nothing_and_say_so(agent: Agent):
    answer = agent.cloud.gpu_use("")
    assert answer.items == ()
    assert answer.note == gpu_meter.SIMULATED
