"""Decides what to do next for a service: its rows, as values → frozen steps. Pure; `loop.py` carries them out.

There is no stored plan. Each call compares the current state with the desired one and returns steps towards it, so crashes,
delays and repetitions need no special cases. Two rules come first: requests go to a revision that answers while any could, and
there are never more replicas than the wanted ones, one that starts, and those kept warm.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable
from dataclasses import replace

from clusters.services.controller.canary import Pair, why_worse
from clusters.services.controller.steps import (
    DRAINING,
    ROUTER_DEAD,
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
    Step,
    Want,
    Way,
    Weigh,
)

# Maximum wait of a rollout for room, or for replicas that neither start nor fail.
LONGEST = dt.timedelta(days=1)
MOVING = ("Starting", "Comparing", "Shifting")


def decide(state: State, routers: Iterable[RouterSeen], measured: Pair | None, now: dt.datetime) -> list[Step]:
    """The steps, in order, to be carried out in one transaction. `measured` is the comparison of a rollout. After all steps,
    and without other changes, the next call returns none."""
    turn = _Turn(state, list(routers), measured, now)
    turn.see()
    turn.judge()
    turn.aim()
    turn.move()
    turn.tell()
    return turn.steps


def first_count(kind: str, wanted: int, weight: int) -> int:
    """Replicas of the new revision that must answer before the rollout goes on: for a canary, its share of them."""
    return max(1, math.ceil(wanted * weight / 100)) if kind == "canary" else 1


class _Turn:
    def __init__(self, state: State, routers: list[RouterSeen], measured: Pair | None, now: dt.datetime) -> None:
        self.state, self.measured, self.now = state, measured, now
        self.routers = [each for each in routers if abs(now - each.seen_at) < ROUTER_DEAD]
        self.steps: list[Step] = []
        self.replicas = {each.id: each for each in state.replicas}
        self.revisions = {each.id: each for each in state.revisions}
        self.way, self.last = state.rollout, state.last
        self.active: int | None = None
        self.weights: dict[int, int] = {}
        self.mirrored: int | None = None
        # How many of each revision should be alive. Revisions that are kept warm start no new ones.
        self.targets: dict[int, int] = {}
        self.warm: set[int] = set()
        self.failed = ""

    # -- changes that were observed ------------------------------------------------------------------------------------------

    def see(self) -> None:
        for each in self.state.replicas:
            if each.over:
                self._do(Gone(each.id, each.fails or each.message), None)
                if each.fails and self.way and each.revision == self.way.to:
                    self.failed = each.fails
            elif each.state == DRAINING:
                self._drain(each)
            elif each.state == SERVING and (each.ending or not each.answers):
                self._do(Lose(each.id), replace(each, state=STARTING, address=""))
            elif each.ending:
                continue
            elif each.answers and (each.state == STARTING or each.address != each.answers):
                self._do(Serve(each.id, each.answers), replace(each, state=SERVING, address=each.answers))
            elif each.fails and self.way and each.revision == self.way.to and not each.answers:
                self.failed = each.fails

    def _drain(self, each: Replica) -> None:
        if each.ending:
            return
        longest = self.revisions[each.revision].drain
        if each.drain_until is None or each.drain_until > self.now + longest:
            # The clock has jumped: drain no longer than intended.
            until = self.now + longest
            self._do(Leave(each.id, until), replace(each, drain_until=until))
            return
        is_known = bool(self.routers) and all(router.route >= each.left_at for router in self.routers)
        flying = sum(router.flying.get(each.id, 0) for router in self.routers)
        if self.now >= each.drain_until or (is_known and not flying):
            self._do(End(each.id), replace(each, ending=True))

    def _do(self, step: Step, replica: Replica | None = None) -> None:
        self.steps.append(step)
        if replica is not None:
            self.replicas[replica.id] = replica
        elif isinstance(step, Gone):
            del self.replicas[step.replica]

    # -- the rollout ---------------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        way = self.way
        heaviest = max(self.revisions.values(), key=lambda each: (each.weight, -each.number), default=None)
        self.active = heaviest.id if heaviest and heaviest.weight else None
        if way is None:
            return
        if self.state.ended:
            self._finish("Cancelled", "The service was ended.", way.from_)
        elif way.phase in MOVING:
            if failed := self.state.refused.get(way.to) or self.failed:
                self._finish("Failed", failed, way.from_)
            else:
                self._judge(way)

    def _judge(self, way: Way) -> None:
        wanted, up = self._most, self._up(way.to)
        first = first_count(way.kind, wanted, way.weight)
        if way.phase == "Starting" and up >= (1 if way.kind == "rolling" or way.from_ is None else first):
            if way.kind == "rolling" or way.from_ is None:
                self._advance(way, "Shifting", "")
            else:
                self._advance(way, "Comparing", "", self.now + way.lasts)
        elif way.phase == "Comparing":
            self._compare(way)
        way = self.way or way
        if self.way and way.phase == "Shifting" and up >= wanted:
            self._finish("Promoted", "", way.to)
        elif self.way and way.phase in ("Starting", "Shifting"):
            waits = next((each.waits for each in self._of(way.to) if each.waits and not each.up), "")
            if way.began and self.now - way.began > LONGEST:
                self._finish("Failed", f"It was not done within a day. {waits}".strip(), way.from_)
            elif waits and waits != way.message:
                self._advance(way, way.phase, waits)

    def _compare(self, way: Way) -> None:
        worse = why_worse(self.measured) if self.measured else ""
        if worse:
            self._finish("RolledBack", worse, way.from_)
        elif way.judge_at is None or way.judge_at > self.now + way.lasts:
            self._advance(way, "Comparing", way.message, self.now + way.lasts)
        elif self.now < way.judge_at:
            return
        elif way.by_hand:
            said = "It was no worse for as long as it was to be compared; somebody has to promote it."
            if way.message != said:
                self._advance(way, "Comparing", said, way.judge_at)
        else:
            self._advance(way, "Shifting", "")

    def _advance(self, way: Way, phase: str, sentence: str, judge_at: dt.datetime | None = None) -> None:
        self.way = replace(way, phase=phase, message=sentence, judge_at=judge_at)
        self._do(Advance(way.id, phase, sentence, judge_at))

    def _finish(self, phase: str, sentence: str, active: int | None) -> None:
        assert self.way
        self._do(Advance(self.way.id, phase, sentence))
        self.last, self.way = replace(self.way, phase=phase, message=sentence, finished=self.now), None
        self.active = active

    # -- targets -------------------------------------------------------------------------------------------------------------

    def aim(self) -> None:
        way = self.way if self.way and self.way.phase in MOVING else None
        if self.state.ended:
            # Replicas that get requests may answer until they leave.
            self.weights = {each.id: each.weight for each in self.revisions.values()}
        elif way is None:
            self._aim_steady()
        elif way.from_ is None:
            self.weights[way.to], self.targets[way.to] = 100, self._most
        elif way.phase == "Shifting":
            self._aim_shifting(way, way.from_)
        else:
            self._aim_beside(way, way.from_)

    def _aim_steady(self) -> None:
        if self.active is not None:
            self.weights[self.active] = 100
            self.targets[self.active] = self.state.wanted
        last = self.last
        if (
            last is None
            or last.phase != "Promoted"
            or last.to != self.active
            or last.from_ is None
            or not last.finished
        ):
            return
        if dt.timedelta(0) <= self.now - last.finished < self.state.keep_warm:
            self.warm.add(last.from_)
            self.targets[last.from_] = self._up(last.from_)

    def _aim_beside(self, way: Way, from_: int) -> None:
        """The new revision starts, or is compared, while the old one answers."""
        first, wanted = first_count(way.kind, self._most, way.weight), self.state.wanted
        is_canary = way.kind == "canary"
        # A canary with several replicas replaces as many old ones, minus one, one after the other.
        fewer = min(first - 1, self._up(way.to)) if is_canary else 0
        share = way.weight if is_canary and way.phase == "Comparing" else 0
        self.mirrored = way.to if way.kind == "shadow" and way.phase == "Comparing" else None
        self.targets[way.to], self.weights[way.to] = first, share
        self._aim_old(way, from_, max(min(1, wanted), wanted - fewer), 100 - share)

    def _aim_shifting(self, way: Way, from_: int) -> None:
        """Each new replica that answers takes over its share."""
        up, needed = self._up(way.to), max(0, self._most - self._up(way.to))
        old = sum(self._up(each) for each in (from_, *self._others(way)))
        beside = min(old, needed)
        share = round(100 * up / (up + beside)) if up + beside else 0
        share = min(99, max(1, share)) if up and beside else share
        self.targets[way.to], self.weights[way.to] = self._most, share
        self._aim_old(way, from_, needed, 100 - share)
        is_waiting = any(each.waits and not each.up for each in self._of(way.to))
        if self.state.keep_warm and not is_waiting:
            self.warm.add(from_)
            self.targets[from_] = max(self.targets[from_], self._up(from_))

    def _aim_old(self, way: Way, from_: int, needed: int, weight: int) -> None:
        """Replicas of an earlier, cancelled rollout stay while the old revision alone has too few."""
        left = max(0, needed - self._up(from_))
        kept: dict[int, int] = {}
        for each in self._others(way):
            kept[each] = min(left, self._up(each))
            left -= kept[each]
        beside, here = sum(kept.values()), min(self._up(from_), needed)
        self.targets[from_] = needed - beside
        for each, count in kept.items():
            self.targets[each] = count
            self.weights[each] = round(weight * count / (here + beside)) if count else 0
        self.weights[from_] = weight - sum(self.weights[each] for each in kept)

    def _others(self, way: Way) -> list[int]:
        """Revisions that answer besides the rollout's two, newest first."""
        found = [each for each in self.revisions.values() if each.weight and each.id not in (way.to, way.from_)]
        return [each.id for each in sorted(found, key=lambda each: -each.number)]

    # -- steps towards the targets -------------------------------------------------------------------------------------------

    def move(self) -> None:
        self._stand_in()
        for each in self.revisions.values():
            weight, mirrored = self.weights.get(each.id, 0), each.id == self.mirrored
            if (weight, mirrored) != (each.weight, each.mirrored):
                self._do(Weigh(each.id, weight, mirrored))
            if (wanted := self.targets.get(each.id, 0)) != each.wanted:
                self._do(Want(each.id, wanted))
        for each in sorted(self.revisions.values(), key=lambda each: each.number):
            self._shrink(each)
        if self.way and self.way.phase in MOVING:
            self._make_room(self.way)
        for revision in sorted(self.targets, key=lambda each: (each != self.active, each)):
            self._grow(revision)

    def _stand_in(self) -> None:
        """If no revision with weight can answer, gives weight to one that can."""
        if self.state.ended or any(self.weights.get(each.revision, 0) and each.up for each in self.replicas.values()):
            return
        if not (self.state.wanted or self.way):
            return
        able = {each.revision for each in self.replicas.values() if each.up} - {self._shadow}
        if able:
            self.weights[max(able, key=lambda each: (each in self.warm, self.revisions[each].number))] = 1

    @property
    def _shadow(self) -> int | None:
        """A revision that only gets copies of requests."""
        is_one = self.way and self.way.kind == "shadow" and self.way.phase in ("Starting", "Comparing")
        return self.way.to if self.way and is_one else None

    def _shrink(self, revision: Revision) -> None:
        surplus = len(self._of(revision.id)) - self.targets.get(revision.id, 0)
        # Replicas that do not answer end first, then the newest.
        for each in sorted(self._of(revision.id), key=lambda each: (each.up, -each.slot))[: max(0, surplus)]:
            if not each.up:
                self._do(End(each.id), replace(each, ending=True))
            elif self._can_leave(each):
                self._leave(each)

    def _can_leave(self, each: Replica) -> bool:
        """Whether another replica answers after it, or none is needed."""
        if self.state.ended or not (self.state.wanted or self.way) or not self.weights.get(each.revision):
            return True
        others = (other for other in self.replicas.values() if other.up and other.id != each.id)
        return any(self.weights.get(other.revision) for other in others)

    def _leave(self, each: Replica) -> None:
        until = self.now + self.revisions[each.revision].drain
        self._do(Leave(each.id, until), replace(each, state=DRAINING, left_at=self.state.route + 1, drain_until=until))

    def _make_room(self, way: Way) -> None:
        """With `when_full` "replace", an old one ends if the new one has no room; the last that answers only if one is wanted."""
        if self.state.when_full != "replace" or way.from_ is None or self.state.freed:
            return
        is_waiting = any(each.waits and not each.up for each in self._of(way.to))
        leaves = any(not each.lives for each in self.replicas.values())
        old = [each for each in self._of(way.from_) if each.up]
        is_last = sum(each.up for each in self.replicas.values()) == 1
        if is_waiting and not leaves and old and (self._most == 1 or not is_last):
            self._leave(max(old, key=lambda each: each.slot))

    def _grow(self, revision: int) -> None:
        living = self._of(revision)
        missing = self.targets[revision] - len(living)
        if self.way and self.way.phase in MOVING and self.way.from_ is not None:
            if revision == self.way.to:
                # One at a time, so that a revision that does not start is not started often.
                missing = min(missing, 1) if all(each.up for each in living) else 0
            elif self.way.phase == "Shifting" or self.state.when_full == "replace":
                # Old replicas that end make room for new ones.
                missing = 0
        if revision in self.warm or revision in self.state.resting:
            missing = 0
        kept = sum(self._surplus(each) for each in self.warm)
        room = self._most + 1 + kept - len(self.replicas)
        for _ in range(max(0, min(missing, room))):
            self._start(revision)

    def _surplus(self, revision: int) -> int:
        """Number of replicas that are only alive to be kept warm."""
        way = self.way
        needed = max(0, self._most - self._up(way.to)) if way and way.phase == "Shifting" else 0
        return max(0, len(self._of(revision)) - needed)

    def _start(self, revision: int) -> None:
        slot = next(slot for slot in range(1, len(self.replicas) + 2) if slot not in self._slots)
        made = Replica(-slot, slot, revision)
        self._do(Start(slot, revision), made)

    @property
    def _slots(self) -> set[int]:
        return {each.slot for each in self.replicas.values()}

    # -- phase and message ---------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        phase, message = self._said()
        if (phase, message) != (self.state.phase, self.state.message):
            self._do(Phase(phase, message))

    def _said(self) -> tuple[str, str]:
        left = len(self.replicas)
        if self.state.ended:
            if left:
                return self.state.phase, f"It is ended; {_replicas(left)} {'is' if left == 1 else 'are'} left."
            return "Stopped", "It was ended."
        moving = self.way if self.way and self.way.phase in MOVING else None
        leading = (moving.from_ or moving.to) if moving else self.active
        if leading is None:
            return "Failed", self.last.message if self.last else "Nothing was deployed yet."
        up = [each for each in self.replicas.values() if each.up and self.weights.get(each.revision)]
        if self.last and moving is None and leading == self.last.to and self.last.phase == "Failed":
            return "Failed", self.last.message
        living = [each for each in self.replicas.values() if each.lives and self.weights.get(each.revision)]
        trouble = next((each.fails or each.waits for each in living if (each.fails or each.waits) and not each.up), "")
        if leading in self.state.resting and not trouble:
            trouble = self.state.resting[leading]
        if not self.state.wanted and not up:
            return ("Starting", trouble) if moving else ("Sleeping", "Nobody asks.")
        wanted = self.state.wanted
        if len(up) >= wanted:
            return "Running", f"{_replicas(len(up))} {'answers' if len(up) == 1 else 'answer'}."
        if up:
            return (
                "Degraded",
                f"{len(up)} of {_replicas(wanted)} {'answers' if len(up) == 1 else 'answer'}. {trouble}".strip(),
            )
        fails = any(each.fails for each in living) or leading in self.state.resting
        return (
            "Failed" if fails else "Starting"
        ), trouble or f"{_replicas(wanted)} {'is' if wanted == 1 else 'are'} starting."

    # -- helpers -------------------------------------------------------------------------------------------------------------

    @property
    def _most(self) -> int:
        """At least one, as a rollout has to show that the new revision starts even while there are no requests."""
        return max(1, self.state.wanted)

    def _of(self, revision: int) -> list[Replica]:
        return [each for each in self.replicas.values() if each.revision == revision and each.lives]

    def _up(self, revision: int) -> int:
        return sum(each.up for each in self._of(revision))


def _replicas(count: int) -> str:
    return f"{count} replica{'s' * (count != 1)}"
