"""For any requests: no GPU is given twice, no run starts partially, and tasks restart as often as was asked."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.local.agent import scheduler
from clusters.clouds.drivers.local.agent.scheduler import Ask, Ended, Room, Slot

MODELS = ["A100", "T4"]
slots = st.lists(st.sampled_from(MODELS), max_size=8).map(
    lambda models: tuple(Slot(str(number), model) for number, model in enumerate(models))
)
sizes = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([*MODELS, ""])), max_size=4)


@given(slots, sizes)
def test_a_run_gets_every_gpu_of_the_model_asked_for_and_none_twice_exactly_when_there_are_enough(
    free: tuple[Slot, ...], needs: list[tuple[int, str]]
) -> None:
    ask = Ask(1, tuple((("worker", index), count, model) for index, (count, model) in enumerate(needs)))
    found = scheduler.fit(free, ask)
    have = Counter(slot.model for slot in free)
    assert (found is not None) == (len(free) >= ask.gpus and all(have[m] >= ask.models.get(m, 0) for m in MODELS))
    if found is not None:
        given_ids = [gpu for gpus in found.values() for gpu in gpus]
        assert len(given_ids) == len(set(given_ids))
        models = {slot.id: slot.model for slot in free}
        for key, count, model in ask.needs:
            assert len(found[key]) == count
            assert all(model in ("", models[gpu]) for gpu in found[key])


all_ends = st.lists(st.builds(Ended, st.booleans(), st.booleans(), st.floats(0, 1000), st.booleans()), max_size=20)


@given(all_ends, st.none() | st.integers(0, 10))
def test_a_task_is_tried_exactly_as_often_as_asked(ends: list[Ended], retries: int | None) -> None:
    failed = [end for end in ends if not end.succeeded and not end.disrupted]
    enough = any(end.own for end in failed) or len(failed) > 1 if retries is None else len(failed) > retries
    delay = scheduler.next_attempt(ends, "OnFailure", retries)
    if ends and ends[-1].succeeded:
        assert delay is None
    elif not ends or ends[-1].disrupted:
        assert delay is not None
    else:
        assert (delay is None) == enough
    always = scheduler.next_attempt(ends, "Always", retries)
    assert always is not None
    assert 0 <= always <= scheduler.LONGEST_DELAY


def test_delays_grow_and_start_anew_after_a_steady_attempt() -> None:
    crash, steady = Ended(False, False, 1.0), Ended(False, False, 3600.0)
    delays = [scheduler.next_attempt([crash] * count, "Always", 0) for count in (1, 2, 3, 4, 30)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 300.0]
    assert scheduler.next_attempt([crash] * 9 + [steady], "Always", 0) == 1.0
    assert scheduler.next_attempt([Ended(False, True, 5.0)], "OnFailure", 0) == 0.0


def test_refusing_is_said_in_sentences() -> None:
    machine, room = [Slot(str(number), "T4") for number in range(8)], Room(8000, 22 * 1024)
    ask = Ask(1, ((("worker", 0), 3, ""),), Room(3000, 6 * 1024))
    assert scheduler.refusal(machine, room, ask) == ""
    assert (
        scheduler.refusal(machine, room, Ask(1, ((("worker", 0), 9, ""),)))
        == "The run needs 9 GPUs at once and this machine has 8 GPUs."
    )
    assert (
        scheduler.refusal(machine, room, Ask(1, ((("worker", 0), 1, "A100"),)))
        == "The run needs 1 × A100 at once and this machine has 8 × T4."
    )
    large = "The run needs 8004 CPUs at once, and this machine has 8 CPUs for tasks. Choose fewer tasks or a smaller flavor."
    assert scheduler.refusal(machine, room, Ask(1, (), Room(8_004_000, 1))) == large
    assert "needs 32 GiB of memory at once" in scheduler.refusal(machine, room, Ask(1, (), Room(1, 32 * 1024)))


def test_simulated_gpus_are_of_any_model() -> None:
    machine = [Slot("0", "simulated", simulated=True)]
    assert scheduler.fit(machine, Ask(1, ((("worker", 0), 1, "H200"),))) == {("worker", 0): ("0",)}
