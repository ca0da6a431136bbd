"""Whether the quota lets a run start now: sentence and decision agree with arithmetic."""

from hypothesis import given
from hypothesis import strategies as st

from clusters.admission.judgement import worst
from clusters.catalog.admission import Held, Quota, judge_quota


def test_more_than_the_quota_never_fits_and_says_what_to_do():
    verdict = judge_quota(9, Quota("ops", 8))
    assert verdict.fits == "never"
    assert "request a larger quota" in verdict.message


def test_a_run_waits_behind_older_ones_even_when_it_would_fit():
    verdict = judge_quota(1, Quota("ops", 8, Held(4), queue=[8]))
    assert verdict.fits == "waits"
    assert "number 2 in the queue" in verdict.message


def test_no_gpu_waits_for_nobody():
    assert judge_quota(0, Quota("ops", 0, queue=[8])).fits == "now"


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(1, 5), max_size=3))
def test_quota_is_arithmetic(gpus, limit, held, queue):
    verdict = judge_quota(gpus, Quota("ops", limit, Held(held), queue))
    fits_now = gpus == 0 or held + sum(queue) + gpus <= limit
    assert (verdict.fits == "never") == (gpus > limit and gpus > 0)
    if verdict.fits != "never":
        assert (verdict.fits == "now") == fits_now
    assert worst(verdict, judge_quota(0, Quota("ops", 0))) == verdict
