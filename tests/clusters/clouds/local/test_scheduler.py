"""For any requests: no GPU, CPU or MiB is given twice, no run starts partially, and none waits forever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.local.agent import scheduler
from clusters.clouds.drivers.local.agent.scheduler import Ask, Ended, Room, Slot

MODELS = ["A100", "T4"]
slots = st.lists(st.sampled_from(MODELS), max_size=8).map(
    lambda models: tuple(Slot(str(number), model) for number, model in enumerate(models))
)


rooms = st.builds(Room, st.integers(0, 8), st.integers(0, 8))


@st.composite
def queues(draw: st.DrawFn) -> list[Ask]:
    sizes = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([*MODELS, ""])), max_size=4)
    return [
        Ask(run, tuple((("worker", index), count, model) for index, (count, model) in enumerate(needs)), room)
        for run, (needs, room) in enumerate(draw(st.lists(st.tuples(sizes, rooms), max_size=6)))
    ]


@given(slots, rooms, queues())
def test_nothing_is_given_twice_and_every_gpu_is_of_the_model_asked_for(
    free: tuple[Slot, ...], room: Room, queue: list[Ask]
) -> None:
    placed = scheduler.place(free, room, queue)
    assert room.holds(sum((ask.room for ask in queue if ask.run_id in placed), Room()))
    models = {slot.id: slot.model for slot in free}
    given_ids = [gpu for given in placed.values() for gpus in given.values() for gpu in gpus]
    assert len(given_ids) == len(set(given_ids))
    for ask in queue:
        for key, count, model in ask.needs if ask.run_id in placed else ():
            gpus = placed[ask.run_id][key]
            assert len(gpus) == count
            assert all(model in ("", models[gpu]) for gpu in gpus)


@given(slots, rooms, queues())
def test_the_first_that_fits_at_all_is_never_passed_by(free: tuple[Slot, ...], room: Room, queue: list[Ask]) -> None:
    placed = scheduler.place(free, room, queue)
    if queue:
        fits = scheduler.fit(free, queue[0]) is not None and room.holds(queue[0].room)
        assert fits == (queue[0].run_id in placed)


@given(slots, rooms, queues())
def test_who_comes_later_changes_nothing_for_who_came_before(
    free: tuple[Slot, ...], room: Room, queue: list[Ask]
) -> None:
    everybody = scheduler.place(free, room, queue)
    for length in range(len(queue)):
        some = scheduler.place(free, room, queue[:length])
        assert some == {run: given for run, given in everybody.items() if run < length}


@given(slots, rooms, queues())
def test_who_passes_takes_nothing_that_the_first_could_use(
    free: tuple[Slot, ...], room: Room, queue: list[Ask]
) -> None:
    placed = scheduler.place(free, room, queue)
    if queue and queue[0].run_id not in placed:
        first = queue[0]
        taken = sum((ask.room for ask in queue if ask.run_id in placed), Room())
        left = room.without(taken)
        assert min(left.cpu_milli, first.room.cpu_milli) == min(room.cpu_milli, first.room.cpu_milli)
        assert min(left.memory_mb, first.room.memory_mb) == min(room.memory_mb, first.room.memory_mb)
        gone = {gpu for given in placed.values() for gpus in given.values() for gpu in gpus}
        assert not any(slot.suits(model) for slot in free if slot.id in gone for model in first.models)


@given(slots, rooms, queues())
def test_with_runs_that_end_everybody_possible_is_started(
    machine: tuple[Slot, ...], room: Room, queue: list[Ask]
) -> None:
    waiting = [ask for ask in queue if not scheduler.refusal(machine, room, ask)]
    needs = {ask.run_id: ask.room for ask in waiting}
    held: dict[int, scheduler.Given] = {}
    for _ in range(2 * len(waiting) + 1):
        free = room.without(sum((needs[run] for run in held), Room()))
        held |= scheduler.place(scheduler.free_slots(machine, held), free, waiting)
        waiting = [ask for ask in waiting if ask.run_id not in held]
        if held:
            del held[min(held)]
    assert waiting == []


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


def test_waiting_and_refusing_are_said_in_sentences() -> None:
    machine, room = [Slot(str(number), "T4") for number in range(8)], Room(8000, 22 * 1024)
    ask = Ask(1, ((("worker", 0), 3, ""),), Room(3000, 6 * 1024))

    def says(free: int, cpu_milli: int, memory_mb: int) -> str:
        return scheduler.explain(ask, machine[:free], machine, Room(cpu_milli, memory_mb), room, 1)

    assert says(1, 8000, 22_528) == "Waits for 3 GPUs: 1 of 8 free; second in the queue."
    assert says(8, 2500, 22_528) == "Waits for 3 CPUs: 2.5 of 8 free; second in the queue."
    assert says(8, 8000, 2048) == "Waits for 6 GiB of memory: 2 of 22 free; second in the queue."
    assert says(1, 2000, 22_528) == "Waits for 3 GPUs (1 of 8 free) and 3 CPUs (2 of 8 free); second in the queue."
    assert says(8, 8000, 22_528) == "Waits for 3 GPUs: 8 of 8 free; second in the queue."
    turn = "Waits for its turn: earlier runs wait for more than is free; second in the queue."
    assert scheduler.explain(Ask(1, ()), machine, machine, room, room, 1) == turn
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
    assert scheduler.place(machine, Room(), [Ask(1, ((("worker", 0), 1, "H200"),))]) == {1: {("worker", 0): ("0",)}}
