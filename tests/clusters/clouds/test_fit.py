"""Whether tasks fit now: compared with all possible placements, and with the decision of this machine's agent."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from clusters.clouds.drivers.base.fit import free_rooms, judge, lay
from hypothesis import given
from hypothesis import strategies as st

from clusters.admission.packing import Tasks, asking
from clusters.clouds.drivers.base import Capacity, Node, Waiting
from clusters.clouds.drivers.local.agent import scheduler

MODELS = ("", "A100", "H100")


def node(name: str = "gpu-1", free: int = 8, model: str = "A100", **more: object) -> Node:
    facts: dict[str, Any] = {"gpus": 8, "cpu_milli": 64_000, "memory_mb": 1 << 18, **more}
    return Node(name, model, gpus_free=free, **facts)


@pytest.mark.parametrize(
    ("tasks", "nodes", "fits", "sentence"),
    [
        (
            [asking("worker", 1, 8)],
            [node("gpu-1", 4), node("gpu-2", 4)],
            "waits",
            "It needs 8 GPUs on one node; the largest free block is 4 on gpu-1.",
        ),
        (
            [asking("worker", 1, 8, "A100")],
            [node("gpu-1", 0), node("gpu-2", 8, "H100")],
            "waits",
            "It needs 8 A100 GPUs on one node; no node has any free.",
        ),
        (
            [asking("worker", 3, 4)],
            [node("gpu-1", 4), node("gpu-2", 6)],
            "waits",
            "It needs 3 × 4 GPUs, each on one node; 2 of these find room now.",
        ),
        (
            [asking("worker", 2, 1, "H100")],
            [node("gpu-1", 8), node("gpu-2", 1, "H100")],
            "waits",
            "It needs 2 GPUs; 1 of 8 H100 are free. It starts as soon as enough are.",
        ),
        (
            [asking("worker", 2, 1, "", 8000)],
            [node("gpu-1", 8, cpu_milli_free=4000), node("gpu-2", 0)],
            "waits",
            "It needs 8 CPUs on one node for one worker, and at most 4 CPUs are free. It starts as soon as enough are.",
        ),
        ([asking("worker", 1, 16)], [node(), node("gpu-2")], "never", "No machine has 16 GPUs for one worker."),
        ([asking("worker", 1, 1, "H100")], [node()], "never", "No machine has 1 H100s for one worker."),
        (
            [asking("worker", 3, 8)],
            [node(), node("gpu-2")],
            "never",
            "It needs 24 GPUs at one time; all machines together",
        ),
        (
            [asking("worker", 3, 5)],
            [node(), node("gpu-2")],
            "never",
            "1 of its tasks (worker, 5 GPUs each) find no place",
        ),
        ([asking("worker", 1, 1, "H100")], [node(simulated=True)], "now", "It needs 1 GPU, and 8 of 8 H100 are free."),
        ([asking("master", 1)], [node(free=0)], "now", "It asks for no GPU."),
        (
            [asking("master", 1, 0, "", 500)],
            [node(gpu_tasks_only=True)],
            "never",
            "No machine has 0.5 CPUs for one master.",
        ),
        ([asking("worker", 1, 1)], [], "waits", "No machine has reported in yet; it starts when one does."),
        ([asking("master", 1)], [], "now", "It asks for no GPU."),
    ],
)
def test_what_is_missing_is_said(tasks: list[Tasks], nodes: list[Node], fits: str, sentence: str) -> None:
    verdict = judge(tasks, Capacity(tuple(nodes)))
    assert (verdict.fits, verdict.message[: len(sentence)]) == (fits, sentence)


def machine(cpu_free: int | None, memory_free: int | None = 22 * 1024) -> Capacity:
    return Capacity((Node("n1", "", 0, 0, 8000, 22 * 1024, cpu_milli_free=cpu_free, memory_mb_free=memory_free),))


@pytest.mark.parametrize(
    ("asked", "capacity", "fits", "words"),
    [
        ((1, 4000, 8192), machine(8000), "now", ""),
        ((2001, 4, 8), machine(8000), "never", "It needs 8.004 CPUs at one time; all machines together have 8 CPUs"),
        ((1, 1000, 32 * 1024), machine(8000), "never", "No machine has 32 GiB of memory for one worker."),
        ((3, 1000, 1024), machine(2500), "waits", "It needs 3 CPUs, and 2.5 CPUs are free."),
        ((1, 500, 4096), machine(2500, 2048), "waits", "It needs 4 GiB of memory, and 2 GiB of memory are free."),
        ((3, 1000, 1024), machine(None), "now", ""),  # a cloud that does not report what is free
        ((3, 1000, 1024), Capacity((Node("n1", "", 0, 0, 0, 0),)), "now", ""),  # or how large its machines are
    ],
)
def test_cpu_and_memory_are_judged_as_far_as_they_are_known(
    asked: tuple[int, int, int], capacity: Capacity, fits: str, words: str
) -> None:
    count, cpu, memory = asked
    verdict = judge([asking("worker", count, 0, "", cpu, memory)], capacity)
    assert verdict.fits == fits
    assert verdict.message.startswith(words)


def test_machines_that_take_no_tasks_are_named_with_the_reason() -> None:
    away = dataclasses.replace(node("gpu-2", 0), note="It offers no disk.", takes_tasks=False)
    for gpus in (0, 1):
        verdict = judge([asking("worker", 1, gpus)], Capacity((away, away)))
        assert (verdict.fits, verdict.message) == ("waits", "No machine takes tasks now: It offers no disk.")
    verdict = judge([asking("worker", 1, 1)], Capacity((node(free=0), away)))
    assert (verdict.fits, verdict.message.partition("enough are. ")[2]) == (
        "waits",
        "1 of 2 machines take no tasks: It offers no disk.",
    )
    assert judge([asking("worker", 1, 1)], Capacity((node(), away))).fits == "now"


nodes = st.lists(
    st.builds(
        lambda model, free, cpu: node("", free, model, cpu_milli_free=cpu),
        st.sampled_from(MODELS[1:]),
        st.integers(0, 8),
        st.integers(0, 6).map(lambda cores: cores * 1000),
    ),
    min_size=1,
    max_size=3,
).map(lambda found: tuple(dataclasses.replace(each, name=f"gpu-{number}") for number, each in enumerate(found)))


def kinds(most: int, gpus: st.SearchStrategy[int], cores: st.SearchStrategy[int]) -> st.SearchStrategy[list[Tasks]]:
    one = st.builds(
        lambda n, g, model, c: asking("", n, g, model, c * 1000),
        st.integers(1, 3),
        gpus,
        st.sampled_from(MODELS),
        cores,
    )
    return st.lists(one, min_size=1, max_size=most).map(
        lambda found: [dataclasses.replace(each, role=f"role-{number}") for number, each in enumerate(found)]
    )


def any_way(tasks: list[Tasks], capacity: Capacity) -> bool:
    """True if any placement of the tasks one by one is possible."""
    one_by_one = [dataclasses.replace(each, count=1) for each in tasks for _ in range(each.count)]
    rooms = free_rooms(capacity)
    for way in itertools.product(range(len(rooms)), repeat=len(one_by_one)):
        left = list(rooms)
        for each, i in zip(one_by_one, way, strict=True):
            if left[i].holds(each) < 1:
                break
            left[i] = left[i].without(each, 1)
        else:
            return True
    return False


@given(kinds(1, st.integers(0, 8), st.integers(0, 3)), nodes)
def test_of_one_kind_a_place_is_found_exactly_when_there_is_one(tasks: list[Tasks], nodes: tuple[Node, ...]) -> None:
    capacity = Capacity(nodes)
    assert (lay(tasks, free_rooms(capacity))[1] is None) == any_way(tasks, capacity)


@given(kinds(2, st.sampled_from((0, 1, 2, 4, 8)), st.just(0)), nodes)
def test_of_flavors_of_1_2_4_and_8_gpus_of_any_model_none_is_missed(
    tasks: list[Tasks], nodes: tuple[Node, ...]
) -> None:
    alike = [dataclasses.replace(each, gpu_model="") for each in tasks]
    capacity = Capacity(nodes)
    assert (lay(alike, free_rooms(capacity))[1] is None) == any_way(alike, capacity)


@given(kinds(3, st.integers(0, 8), st.integers(0, 3)), nodes)
def test_a_place_that_is_found_is_one(tasks: list[Tasks], nodes: tuple[Node, ...]) -> None:
    rooms = {room.node: room for room in free_rooms(Capacity(nodes))}
    laid, missing, _ = lay(tasks, list(rooms.values()))
    if missing is None:
        by_role = {each.role: each for each in tasks}
        for (role, name), count in laid.items():
            assert rooms[name].holds(by_role[role]) >= count
            rooms[name] = rooms[name].without(by_role[role], count)
        assert {role: sum(n for (r, _), n in laid.items() if r == role) for role in by_role} == {
            each.role: each.count for each in tasks
        }


@given(
    st.integers(0, 8),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), max_size=3),
    st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(0, 2)),
)
def test_the_preview_and_the_agent_of_this_machine_decide_alike(
    held: int, earlier: list[tuple[int, int]], asked: tuple[int, int, int]
) -> None:
    """Whatever waits before it."""
    gpus, count, cores = asked
    slots = [scheduler.Slot(str(number), "A100") for number in range(8)]
    free, room = slots[held:], scheduler.Room(8000, 64)
    before = [
        scheduler.Ask(number, ((("master", 0), n, ""),) if n else (), scheduler.Room(c * 1000, 1))
        for number, (n, c) in enumerate(earlier)
    ]
    placed = scheduler.place(free, room, before)
    waiting = [ask for ask in before if ask.run_id not in placed]
    taken = {gpu for given in placed.values() for ids in given.values() for gpu in ids}
    left = [slot for slot in free if slot.id not in taken]
    for ask in before:
        room = room.without(ask.room)
    seen = Node("here", "A100", 8, len(left), 8000, 64, cpu_milli_free=room.cpu_milli, memory_mb_free=room.memory_mb)
    queue = tuple(Waiting(ask.run_id, ask.gpus, "") for ask in waiting)
    one = scheduler.Ask(
        9,
        tuple((("worker", number), gpus, "") for number in range(count) if gpus),
        scheduler.Room(count * cores * 1000, count),
    )
    verdict = judge([asking("worker", count, gpus, "", cores * 1000, 1)], Capacity((seen,), queue, in_order=True))
    assert (verdict.fits == "now") == (9 in scheduler.place(free, scheduler.Room(8000, 64), [*before, one]))
