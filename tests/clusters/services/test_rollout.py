"""Rollouts as values: despite deaths, delays and jumps, working replicas are in the route, and there are never too many."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.services.controller.canary import Pair, Sums, why_worse
from clusters.services.controller.rollout import MOVING, decide, first_count
from clusters.services.controller.steps import (
    DRAINING,
    SERVING,
    STARTING,
    Advance,
    End,
    Gone,
    Leave,
    Lose,
    Phase,
    Replica,
    Revision,
    RouterSeen,
    Serve,
    Start,
    State,
    Want,
    Way,
    Weigh,
)

NOON = dt.datetime(2026, 5, 3, 12, 0, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
WORSE = Pair(Sums(1000, 0, 10.0), Sums(100, 50, 10.0))
ALIKE = Pair(Sums(1000, 0, 10.0), Sums(100, 0, 10.0))


@dataclass
class World:
    """A service, its cloud and one router, as values."""

    state: State
    now: dt.datetime = NOON
    measured: Pair | None = None
    heard: int = 0
    flying: dict[int, int] = field(default_factory=dict)
    count: int = 100
    log: list[Any] = field(default_factory=list)

    def turn(self) -> list[Any]:
        routers = [RouterSeen(self.now, self.heard, self.flying)]
        steps = decide(self.state, routers, self.measured, self.now)
        for step in steps:
            self.carry_out(step)
        if any(isinstance(step, Lose | Serve | Leave | Weigh) for step in steps):
            self.state = replace(self.state, route=self.state.route + 1)
        self.log += steps
        self.hold(steps)
        return steps

    def carry_out(self, step: Any) -> None:
        match step:
            case Gone(replica):
                self.state = replace(self.state, replicas=[each for each in self.state.replicas if each.id != replica])
            case Lose(replica):
                self.change(replica, state=STARTING, address="")
            case Serve(replica, address):
                self.change(replica, state=SERVING, address=address)
            case Leave(replica, until):
                self.change(replica, state=DRAINING, left_at=self.state.route + 1, drain_until=until)
            case End(replica):
                self.change(replica, ending=True)
            case Start(slot, revision):
                assert slot not in {each.slot for each in self.state.replicas}
                self.count += 1
                self.state = replace(self.state, replicas=[*self.state.replicas, Replica(self.count, slot, revision)])
            case Weigh(revision, weight, mirrored):
                self.weigh(revision, weight=weight, mirrored=mirrored)
            case Want(revision, count):
                self.weigh(revision, wanted=count)
            case Advance(_, phase, sentence, judge_at):
                way = self.state.rollout
                assert way
                way = replace(way, phase=phase, message=sentence, judge_at=judge_at)
                if phase in (*MOVING, "Gated"):
                    self.state = replace(self.state, rollout=way)
                else:
                    self.state = replace(self.state, rollout=None, last=replace(way, finished=self.now))
            case Phase(phase, message):
                self.state = replace(self.state, phase=phase, message=message)

    def change(self, replica: int, **facts: Any) -> None:
        rows = [replace(each, **facts) if each.id == replica else each for each in self.state.replicas]
        self.state = replace(self.state, replicas=rows)

    def weigh(self, revision: int, **facts: Any) -> None:
        rows = [replace(each, **facts) if each.id == revision else each for each in self.state.revisions]
        self.state = replace(self.state, revisions=rows)

    def hold(self, steps: list[Any]) -> None:
        """Asserts the invariants after every turn."""
        state, way = self.state, self.state.rollout
        weights = {each.id: each.weight for each in state.revisions}
        shadow = way.to if way and way.kind == "shadow" and way.phase in ("Starting", "Comparing") else None
        able = [each for each in state.replicas if each.up and each.revision != shadow]
        led = [each for each in state.replicas if each.state == SERVING and each.address and weights[each.revision]]
        assert all(each.up and each.address == each.answers for each in led)
        moving = way is not None and way.phase in MOVING
        if able and not state.ended and (state.wanted or moving) and state.when_full != "replace":
            assert led, "somebody can answer, and nobody is led to"
        if any(isinstance(step, Start) for step in steps):
            most = max(1, state.wanted) + 1 + len(self.warm)
            assert len(state.replicas) <= most, f"{len(state.replicas)} replicas, {most} at most"
        assert sum(weights.values()) <= 101
        assert len({each.slot for each in state.replicas}) == len(state.replicas)

    @property
    def warm(self) -> list[Replica]:
        """The previous revision's replicas, while they are kept."""
        way = self.state.rollout or self.state.last
        if not self.state.keep_warm or way is None:
            return []
        return [each for each in self.state.replicas if each.revision == way.from_]

    def settle(self, *, crashes: frozenset[int] = frozenset(), turns: int = 400) -> None:
        """From now on only revisions in `crashes` die; all other replicas start, drain and end within a second."""
        for _ in range(turns):
            for each in self.state.replicas:
                if each.ending:
                    self.change(each.id, over=True, answers="")
                elif each.revision in crashes:
                    self.change(each.id, fails="It crashed while loading.", answers="")
                elif not each.over:
                    self.change(each.id, answers=each.answers or f"127.0.0.1:{each.id}", waits="", fails="")
            self.flying, self.heard = {}, self.state.route
            last, way = self.state.last, self.state.rollout
            is_warm = last and last.finished and self.now < last.finished + self.state.keep_warm
            if not (self.turn() or way or is_warm):
                return
            self.now += 3 * SECOND


def world(*, wanted: int = 1, up: bool = True, kind: str = "rolling", **facts: Any) -> World:
    """One revision in the route, and a rollout to the next one."""
    replicas = [Replica(slot, slot, 1, SERVING, f"h:{slot}", f"h:{slot}") for slot in range(1, wanted + 1) if up]
    revisions = [Revision(1, 1, 100, wanted=wanted), Revision(2, 2)]
    way = Way(1, kind, "Starting", 2, 1, 10 if kind == "canary" else 100, began=NOON, lasts=dt.timedelta(minutes=2))
    facts = {"rollout": way, **facts}
    return World(State(wanted, revisions=revisions, replicas=replicas, **facts))


def up(found: World, replica: int) -> None:
    found.change(replica, answers=f"127.0.0.1:{replica}")


def test_one_new_replica_comes_up_and_in_the_same_turn_the_old_one_leaves() -> None:
    found = world()
    found.turn()
    assert [(each.slot, each.revision) for each in found.state.replicas] == [(1, 1), (2, 2)]
    up(found, 101)
    steps = found.turn()
    assert [type(step) for step in steps if isinstance(step, Serve | Leave | Weigh)] == [Serve, Weigh, Weigh, Leave]
    assert found.state.last
    assert found.state.last.phase == "Promoted"
    found.heard, found.flying = found.state.route, {1: 1}
    assert not found.turn()
    found.flying = {}
    assert found.turn() == [End(1)]


def test_old_replicas_are_kept_warm_and_leave_when_their_time_is_over() -> None:
    found = world(wanted=2, keep_warm=dt.timedelta(seconds=60))
    found.turn()
    up(found, 101)
    found.turn()
    assert {each.id: each.weight for each in found.state.revisions} == {1: 50, 2: 50}
    up(found, 102)
    found.turn()
    assert [each.state for each in found.state.replicas] == [SERVING] * 4
    assert {each.id: each.weight for each in found.state.revisions} == {1: 0, 2: 100}
    found.now += 59 * SECOND
    assert not found.turn()
    found.now += SECOND
    assert {step.replica for step in found.turn() if isinstance(step, Leave)} == {1, 2}


def test_a_revision_that_crashes_while_loading_fails_with_its_sentence_and_the_old_one_goes_on() -> None:
    found = world()
    found.turn()
    found.change(101, fails="ValueError: no such file")
    steps = found.turn()
    assert Advance(1, "Failed", "ValueError: no such file") in steps
    assert End(101) in steps
    assert found.state.replicas[0].state == SERVING


@pytest.mark.parametrize("kind", ["canary", "shadow"])
def test_what_is_worse_is_rolled_back_and_what_is_not_is_promoted(kind: str) -> None:
    for measured, phase, weights in ((WORSE, "RolledBack", {1: 100, 2: 0}), (ALIKE, "Promoted", {1: 0, 2: 100})):
        found = world(wanted=2, kind=kind)
        found.turn()
        up(found, 101)
        found.turn()
        is_canary = kind == "canary"
        assert {each.id: each.weight for each in found.state.revisions} == {1: 100 - 10 * is_canary, 2: 10 * is_canary}
        assert found.state.revisions[1].mirrored is not is_canary
        found.measured = measured
        found.settle(turns=60)
        assert found.state.last
        assert found.state.last.phase == phase
        assert {each.id: each.weight for each in found.state.revisions} == weights
        assert not any(each.mirrored for each in found.state.revisions)
        assert len(found.state.replicas) == 2


def test_a_canary_by_hand_waits_for_somebody() -> None:
    found = world(kind="canary")
    assert found.state.rollout
    found.state = replace(found.state, rollout=replace(found.state.rollout, by_hand=True))
    found.measured = ALIKE
    found.settle()
    assert found.state.rollout.phase == "Comparing"
    assert "somebody has to promote it" in found.state.rollout.message


def test_while_old_ones_are_kept_warm_one_gives_its_room_to_a_new_one_that_waits_for_it() -> None:
    found = world(wanted=2, keep_warm=dt.timedelta(seconds=60))
    found.turn()
    up(found, 101)
    found.turn()
    found.change(102, waits="It waits for one GPU.")
    steps = found.turn()
    assert [step.replica for step in steps if isinstance(step, Leave)] == [2]
    assert found.state.rollout
    assert found.state.rollout.message == "It waits for one GPU."


def test_where_that_was_chosen_an_old_one_ends_before_the_new_one_has_room() -> None:
    for when_full, left in (("wait", []), ("replace", [1])):
        found = world(when_full=when_full)
        found.turn()
        found.change(101, waits="It waits for one GPU.")
        assert [step.replica for step in found.turn() if isinstance(step, Leave)] == left
        found.settle(turns=20)
        assert found.state.last
        assert found.state.last.phase == "Promoted"
        assert [each.revision for each in found.state.replicas] == [2]


def test_where_no_new_one_answers_any_more_the_warm_old_ones_stand_in_until_one_does() -> None:
    found = world(keep_warm=dt.timedelta(seconds=60))
    found.turn()
    up(found, 101)
    found.turn()
    found.change(101, answers="")
    found.turn()
    assert {each.id: each.weight for each in found.state.revisions} == {1: 1, 2: 100}
    found.now += 300 * SECOND
    found.turn()
    assert found.state.replicas[0].state == SERVING
    up(found, 101)
    found.turn()
    assert [each.state for each in found.state.replicas] == [DRAINING, SERVING]


def test_of_a_rollout_that_another_one_came_before_the_replicas_that_answer_stay_until_the_next_ones_do() -> None:
    found = world(wanted=2)
    found.turn()
    up(found, 101)
    found.turn()
    found.flying, found.heard = {}, found.state.route
    found.turn()
    assert {each.id: each.weight for each in found.state.revisions} == {1: 50, 2: 50}
    by_hand(found, "deploy")
    found.turn()
    assert [(each.revision, each.state) for each in found.state.replicas if each.up] == [(1, SERVING), (2, SERVING)]
    assert {each.id: each.weight for each in found.state.revisions} == {1: 50, 2: 50, 3: 0}
    found.settle()
    assert [each.revision for each in found.state.replicas] == [3, 3]


def test_a_clock_that_jumps_back_makes_nobody_drain_for_longer() -> None:
    found = world()
    found.turn()
    up(found, 101)
    found.turn()
    found.now -= dt.timedelta(hours=3)
    found.turn()
    assert found.state.replicas[0].drain_until == found.now + 30 * SECOND
    found.now += 30 * SECOND
    assert found.turn() == [End(1)]


def test_a_first_revision_that_crashes_ends_and_says_why() -> None:
    way = Way(1, "rolling", "Starting", 1, began=NOON)
    found = World(State(2, revisions=[Revision(1, 1)], rollout=way))
    found.turn()
    assert len(found.state.replicas) == 2
    found.settle(crashes=frozenset({1}), turns=10)
    assert (found.state.phase, found.state.message) == ("Failed", "It crashed while loading.")
    assert not found.state.replicas


def test_what_sleeps_shows_that_a_new_revision_comes_up_and_sleeps_again() -> None:
    found = world(wanted=0)
    found.settle(turns=20)
    assert found.state.last
    assert found.state.last.phase == "Promoted"
    assert not found.state.replicas
    assert found.state.phase == "Sleeping"


@pytest.mark.parametrize(("wanted", "weight", "count"), [(1, 10, 1), (10, 50, 5), (10, 1, 1), (3, 34, 2)])
def test_a_canary_has_its_part_of_the_replicas(wanted: int, weight: int, count: int) -> None:
    assert first_count("canary", wanted, weight) == count


def test_too_little_is_no_reason_to_go_back() -> None:
    assert not why_worse(Pair(Sums(1000, 0, 10.0), Sums(4, 4, 10.0)))
    assert not why_worse(Pair(Sums(1000, 0, 10.0), Sums(299, 0, 900.0)))
    assert not why_worse(Pair(Sums(1000, 0, 10.0), Sums(300, 0, 25.0)))
    assert "took up to 26 ms" in why_worse(Pair(Sums(1000, 0, 10.0), Sums(300, 0, 25.5)))
    assert not why_worse(Pair(Sums(1000, 100, 10.0), Sums(100, 10, 10.0)))


EVENTS = st.one_of(
    st.tuples(st.sampled_from(["up", "die", "over", "fail", "wait", "by_hand"]), st.integers(0, 9)),
    st.tuples(st.just("clock"), st.sampled_from([-7200, -1, 1, 5, 40, 90, 200_000])),
    st.tuples(st.just("router"), st.booleans()),
    st.tuples(st.just("measured"), st.sampled_from([None, WORSE, ALIKE])),
    st.tuples(st.just("scale"), st.integers(0, 4)),
    st.tuples(st.sampled_from(["roll_back", "cancel", "promote", "deploy", "rest"]), st.none()),
)


def happen(found: World, what: str, about: Any) -> None:
    state = found.state
    living = [each for each in state.replicas if not each.over]
    if what == "clock":
        found.now += about * SECOND
    elif what == "router":
        found.heard, found.flying = (state.route, {}) if about else (found.heard, {each.id: 1 for each in living})
    elif what == "measured":
        found.measured = about
    elif what == "scale":
        found.state = replace(state, wanted=about)
    elif what == "rest":
        found.state = replace(state, resting={} if state.resting else {1: "It failed.", 2: "It failed."})
    elif about is None:
        by_hand(found, what)
    elif living:
        befall(found, what, living[about % len(living)])


def befall(found: World, what: str, one: Replica) -> None:
    """An event of a replica."""
    if what == "up" and not one.ending:
        found.change(one.id, answers=f"127.0.0.1:{one.id}", waits="", fails="")
    elif what in ("die", "over"):
        found.change(one.id, answers="", over=what == "over")
    elif what == "by_hand":
        found.change(one.id, ending=True)
    elif what in ("fail", "wait") and not one.answers:
        found.change(one.id, **{"fails" if what == "fail" else "waits": "A sentence."})


def by_hand(found: World, what: str) -> None:
    """A user's action, as actions.py writes it."""
    state, way, last = found.state, found.state.rollout, found.state.last
    if what in ("roll_back", "cancel") and way and way.from_:
        for each in state.revisions:
            found.weigh(each.id, weight=100 * (each.id == way.from_), mirrored=False)
        phase = "RolledBack" if what == "roll_back" else "Cancelled"
        found.state = replace(found.state, rollout=None, last=replace(way, phase=phase, finished=found.now))
    elif what == "roll_back" and last and last.phase == "Promoted" and not way and last.from_:
        found.weigh(last.from_, weight=100)
        found.weigh(last.to, weight=0)
        found.state = replace(found.state, last=replace(last, to=last.from_, from_=last.to, finished=found.now))
    elif what == "promote" and way and way.phase == "Comparing":
        found.state = replace(state, rollout=replace(way, phase="Shifting"))
    elif what == "deploy":
        if way and way.phase != "Shifting":
            by_hand(found, "cancel")
        rows, number = found.state.revisions, len(state.revisions) + 1
        old = max(rows, key=lambda each: (each.weight, -each.number))
        kind = ("rolling", "canary", "shadow")[number % 3]
        way = Way(number, kind, "Starting", number, old.id, 30, began=found.now)
        found.state = replace(found.state, revisions=[*rows, Revision(number, number)], rollout=way)


@given(
    st.integers(1, 3), st.sampled_from(["rolling", "canary", "shadow"]), st.sampled_from([0, 60]), st.booleans(),
    st.lists(EVENTS, max_size=40), st.booleans(),
)  # fmt: skip
def test_whatever_happens_whoever_can_answer_is_led_to_and_every_rollout_ends(
    wanted: int, kind: str, warm: int, is_full: bool, events: list[tuple[str, Any]], crash: bool
) -> None:
    when_full = "replace" if is_full else "wait"
    found = world(wanted=wanted, kind=kind, keep_warm=warm * SECOND, when_full=when_full)
    for what, about in events:
        happen(found, what, about)
        found.turn()
        for _ in range(3):
            steps = found.turn()
        assert not steps, f"not settled by itself: {steps}"
    way = found.state.rollout
    crashes = frozenset({way.to}) if way and crash else frozenset[int]()
    found.measured, found.state = None, replace(found.state, resting={})
    found.settle(crashes=crashes)
    assert found.state.rollout is None
    if way and crash:
        assert found.state.last
        assert found.state.last.phase == "Failed"
    phases = {"Sleeping"} if not found.state.wanted else {"Running"}
    assert found.state.phase in phases
    serving = [each for each in found.state.replicas if each.state == SERVING]
    assert len(serving) == len(found.state.replicas) == found.state.wanted
