"""Slices, devices, labels and taints: nothing is counted as what it is not, and reasons name what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Snapshot, advise, decide
from clusters.admission.demand import GPU, PARTS, Demand, counted, forms, keeps_away
from clusters.admission.order import Share
from clusters.admission.packing import Shape, Tasks, place
from clusters.admission.pool import Node
from clusters.admission.words import sentence

MIG, AMD = "nvidia.com/mig-1g.10gb", "amd.com/gpu"
MIXED = Shape(4, 64_000, 64_000, "H100", slices=((MIG, 14), ("rdma/hca", 2)))
SLICES = Tasks("worker", 7, 2, "", 1000, 1000, resource=MIG)
EU, US = frozenset({("zone", "eu")}), frozenset({("zone", "us")})
TAINT = "team=ml:NoSchedule"


def told(tasks: Tasks, *shapes: Shape) -> tuple[Code, str]:
    nodes = tuple(Node(f"n{number}", shape, shape) for number, shape in enumerate(shapes))
    verdict = advise(Snapshot(nodes, ()), Ask("", "", (tasks,)))
    return verdict.code, sentence(verdict)


def test_slices_and_whole_gpus_of_one_node_are_given_apart() -> None:
    assert MIXED.holds(SLICES) == 7
    assert MIXED.without(SLICES, 7) == replace(
        MIXED, cpu_milli=57_000, memory_mb=57_000, slices=((MIG, 0), ("rdma/hca", 2))
    )
    whole = Tasks("worker", 9, 1)
    assert MIXED.without(SLICES, 7).holds(whole) == 4
    assert replace(MIXED, gpus=0).holds(whole) == 0
    assert Shape(8).holds(SLICES) == 0
    both = (SLICES, replace(whole, role="master", count=4))
    assert place(both, {MIXED: ("a",)}) == {("worker", "a"): 7, ("master", "a"): 4}
    assert place((SLICES, replace(SLICES, role="master", count=1)), {MIXED: ("a",)}) is None


def test_further_devices_limit_how_many_tasks_fit() -> None:
    tasks = Tasks("worker", 4, 1, extra=(("rdma/hca", 1),))
    assert MIXED.holds(tasks) == 2
    assert MIXED.without(tasks, 2).slices == ((MIG, 14), ("rdma/hca", 0))
    code, words = told(tasks, replace(MIXED, gpus=8))
    assert (code, words[:60]) == (Code.OVER_POOL, "It needs 4 rdma/hca at one time; all machines together have ")
    code, words = told(replace(tasks, count=1, extra=(("rdma/hca", 3),)), MIXED)
    assert (code, words[:60]) == (Code.OVER_NODE, "One worker needs 3 rdma/hca on one node; the largest has 2 r")


def test_slices_of_a_run_are_no_gpus_of_its_quota() -> None:
    node = Node("a", MIXED, MIXED)
    asks = (Ask("slices", "ops", (SLICES,)), Ask("whole", "ops", (Tasks("worker", 1, 1),)))
    assert {v.code for v in decide(Snapshot((node,), asks, {"ops": Share(1)})).values()} == {Code.FITS}


@pytest.mark.parametrize(
    ("tasks", "shapes", "code", "words"),
    [
        (SLICES, (MIXED,), Code.FITS, "It needs 14 mig-1g.10gb, and 14 of 14 are free."),
        (SLICES, (Shape(8),), Code.NO_SUCH_GPU, f"No node has {MIG}, which one worker needs."),
        (Tasks("worker", 1, 4, resource=AMD), (Shape(8, resource=AMD),), Code.FITS, "It needs 4 GPUs, and 8 of 8 are free."),
        (Tasks("worker", 1, 1), (Shape(8, resource=AMD),), Code.NO_SUCH_GPU, "No node has GPUs, which one worker needs."),
        (
            Tasks("worker", 1, 1, labels=EU), (Shape(8, labels=US),), Code.NO_SUCH_GPU,
            "No node has the label zone=eu, which one worker needs.",
        ),
        (
            Tasks("worker", 1, 1, "H100", labels=EU), (Shape(8, gpu_model="A100", labels=EU),), Code.NO_SUCH_GPU,
            "No node with the label zone=eu has GPUs of the model H100, which one worker needs.",
        ),
        (
            Tasks("worker", 1, 1, labels=EU), (Shape(8, labels=EU, taints=frozenset({TAINT})), Shape(8)), Code.NO_SUCH_GPU,
            f"The nodes with the label zone=eu that could take one worker are kept for others by the taint {TAINT}, which its",
        ),
        (
            Tasks("master", 1, 0, labels=EU), (Shape(8, 1000, 1000, labels=US),), Code.OVER_NODE,
            "No node has the label zone=eu, which one master needs.",
        ),
        (
            Tasks("worker", 2, 8, labels=EU), (Shape(8, labels=EU), Shape(8)), Code.OVER_POOL,
            "",
        ),
    ],
)  # fmt: skip
def test_a_reason_names_what_is_missing(tasks: Tasks, shapes: tuple[Shape, ...], code: Code, words: str) -> None:
    found, said = told(tasks, *shapes)
    assert (found, said[: len(words)]) == (code, words)


def test_gpus_elsewhere_are_not_free_for_a_pool() -> None:
    tasks, full = Tasks("worker", 1, 8, labels=EU), Shape(8, labels=EU)
    nodes = (Node("a", full, replace(full, gpus=3)), Node("b", Shape(8), Shape(8)))
    verdict = advise(Snapshot(nodes, ()), Ask("", "", (tasks,)))
    words = "It needs 8 GPUs; 3 of 8 with the label zone=eu are free. It starts as soon as enough are free."
    assert (verdict.code, sentence(verdict)) == (Code.GPUS, words)


def test_two_kinds_of_tasks_that_share_nodes_are_counted_together() -> None:
    """Each alone would find enough."""
    shape = Shape(8, labels=EU)
    tasks = (Tasks("worker", 1, 5, labels=EU), Tasks("master", 1, 5))
    verdict = advise(Snapshot((Node("a", replace(shape, gpus=16), shape),), ()), Ask("", "", tasks))
    assert (verdict.code, verdict.values["needed"], verdict.values["free"]) == (Code.GPUS, 10, 8)


@pytest.mark.parametrize("toleration", ["team", "team=ml", "team:NoSchedule", TAINT])
def test_a_taint_is_tolerated_by_every_form_of_it(toleration: str) -> None:
    assert not keeps_away({TAINT}, {toleration})
    assert keeps_away({TAINT, "gpu=:NoExecute"}, {toleration}) == "gpu=:NoExecute"


@pytest.mark.parametrize("toleration", ["tea", "team=", "team=mls", "team:NoExecute", "team=ml:NoExecute", ""])
def test_and_by_nothing_else(toleration: str) -> None:
    assert keeps_away({TAINT}, {toleration}) == TAINT
    assert forms("gpu-tasks-only") == {"gpu-tasks-only"}


def test_slices_that_are_called_gpus_are_told_apart() -> None:
    assert counted(GPU, "NVIDIA-A100-SXM4-40GB", {}) == GPU
    assert counted(GPU, "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", {}) == PARTS
    assert counted(GPU, "Tesla-T4-SHARED", {}) == PARTS
    assert counted(GPU, "", {"cloud.google.com/gke-gpu-partition-size": "1g.5gb"}) == PARTS
    assert counted(MIG, "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", {}) == MIG


def test_who_asks_for_gpus_tolerates_the_taints_that_keep_them() -> None:
    assert Demand().tolerated() == ("nvidia.com/gpu:NoSchedule",)
    assert Demand(MIG).tolerated() == ("nvidia.com/gpu:NoSchedule", f"{MIG}:NoSchedule")
    assert Demand(AMD, tolerations=("spot",)).tolerated() == ("amd.com/gpu:NoSchedule", "spot")
