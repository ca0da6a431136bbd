"""Fits now, waits, or never can: the sentence and the decision, and that they agree with arithmetic."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from clusters.admission import Quota, judge_capacity, judge_quota, worst
from clusters.clouds.base import Capacity, Node, Waiting


def node(gpus=8, free=8, model="A100", simulated=False):
    return Node("n1", model, gpus, free, 64_000, 1 << 18, simulated)


def test_more_than_the_quota_never_fits_and_says_what_to_do():
    verdict = judge_quota(9, Quota("ops", 8, 0))
    assert verdict.fits == "never"
    assert "raise the quota" in verdict.message


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
