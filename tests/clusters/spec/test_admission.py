"""Fits now, waits, or never can: the sentence and the decision, and that they agree with arithmetic."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.base import Capacity, Node, Waiting
from clusters.spec.admission import Quota, judge_capacity, judge_quota, judge_room, worst


def node(gpus=8, free=8, model="A100", simulated=False):
    return Node("n1", model, gpus, free, 64_000, 1 << 18, simulated)


def test_more_than_the_quota_never_fits_and_says_what_to_do():
    verdict = judge_quota(9, Quota("ops", 8, 0))
    assert verdict.fits == "never"
    assert "request a larger quota" in verdict.message


def test_a_run_waits_behind_older_ones_even_when_it_would_fit():
    verdict = judge_quota(1, Quota("ops", 8, 4, queue=[8]))
    assert verdict.fits == "waits"
    assert "number 2 in the queue" in verdict.message


def test_no_gpu_waits_for_nobody():
    assert judge_quota(0, Quota("ops", 0, 0, queue=[8])).fits == "now"
    assert judge_capacity({"master": (1, 0)}, {}, Capacity(())).fits == "now"


def test_a_task_larger_than_any_machine_never_fits():
    verdict = judge_capacity({"worker": (1, 16)}, {"worker": ""}, Capacity((node(), node())))
    assert verdict.fits == "never"


def test_a_model_that_nobody_has_never_fits_but_simulated_ones_stand_for_any():
    wanted = ({"worker": (1, 1)}, {"worker": "H100"})
    assert judge_capacity(*wanted, Capacity((node(),))).fits == "never"
    assert judge_capacity(*wanted, Capacity((node(simulated=True),))).fits == "now"


def test_a_queue_is_told_with_the_place_in_it():
    verdict = judge_capacity({"worker": (2, 1)}, {"worker": ""}, Capacity((node(free=8),), (Waiting(1, 4, ""),)))
    assert verdict.fits == "waits"
    assert "number 2" in verdict.message


def machine(cpu_free: int | None, memory_free: int | None = 22 * 1024) -> Capacity:
    return Capacity((Node("n1", "", 0, 0, 8000, 22 * 1024, cpu_milli_free=cpu_free, memory_mb_free=memory_free),))


@pytest.mark.parametrize(
    ("per_task", "capacity", "fits", "words"),
    [
        ((1, 4000, 8192), machine(8000), "now", ""),
        (
            (2001, 4000, 8192),
            machine(8000),
            "never",
            "It needs 8004 CPUs at one time; all machines together have 8 CPUs",
        ),
        ((1, 9000, 1024), machine(8000), "never", "No machine has 9 CPUs for one worker."),
        ((1, 1000, 32 * 1024), machine(8000), "never", "No machine has 32 GiB of memory for one worker."),
        ((3, 1000, 1024), machine(2500), "waits", "It needs 3 CPUs, and 2.5 CPUs are free."),
        ((1, 500, 4096), machine(2500, 2048), "waits", "It needs 4 GiB of memory, and 2 GiB of memory are free."),
        ((3, 1000, 1024), machine(None), "now", ""),  # a cloud that does not say what is free
        ((3, 1000, 1024), Capacity((Node("n1", "", 0, 0, 0, 0),)), "now", ""),  # or how large its machines are
    ],
)
def test_cpu_and_memory_are_judged_as_far_as_they_are_known(per_task, capacity, fits, words):
    verdict = judge_room({"worker": per_task}, capacity)
    assert verdict.fits == fits
    assert verdict.message.startswith(words)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(1, 5), max_size=3))
def test_quota_is_arithmetic(gpus, limit, held, queue):
    verdict = judge_quota(gpus, Quota("ops", limit, held, queue))
    fits_now = gpus == 0 or (gpus <= limit - held and not queue)
    assert (verdict.fits == "never") == (gpus > limit and gpus > 0)
    if verdict.fits != "never":
        assert (verdict.fits == "now") == fits_now
    assert worst(verdict, judge_quota(0, Quota("ops", 0, 0))) == verdict


def test_machines_that_take_no_tasks_are_named_with_the_reason():
    away = dataclasses.replace(node(free=0), note="It offers no disk.", takes_tasks=False)
    for gpus in (0, 1):
        verdict = judge_capacity({"worker": (1, gpus)}, {"worker": ""}, Capacity((away, away)))
        assert (verdict.fits, verdict.message) == ("waits", "No machine takes tasks now: It offers no disk.")
    verdict = judge_capacity({"worker": (1, 1)}, {"worker": ""}, Capacity((node(free=0), away)))
    assert (verdict.fits, verdict.message.partition("enough are. ")[2]) == (
        "waits",
        "1 of 2 machines take no tasks: It offers no disk.",
    )
    assert judge_capacity({"worker": (1, 1)}, {"worker": ""}, Capacity((node(free=8), away))).fits == "now"
