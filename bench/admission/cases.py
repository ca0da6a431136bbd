"""Random small cases of the decision, more of them than tests have time for: against trying every combination, and until nobody
takes GPUs back any more.

The exhaustive answer shares no code with the product. In the first kind of case nothing is promised or kept yet, so what the
first run in order is told must be exactly what is possible.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from bench import alone
from bench.results import Result
from bench.sizes import size
from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Snapshot, advise, decide, ordered
from clusters.admission.order import Share
from clusters.admission.packing import Shape, Tasks
from clusters.admission.pool import Node
from tests.clusters.admission.simulated import Cluster, settle

SEED = 31
SMALL, SCENARIOS = size(5000, 50), size(100_000, 50)
MODELS = ("A", "B")
# GPUs, CPUs.
Room = tuple[int, int, str]


def cases(folder: Path) -> list[Result]:
    """the decision on random small cases, against trying every combination"""
    return alone.measured("bench.admission.cases", folder / "cases")


PARTS = (cases,)


def main() -> None:
    seen = compared(SMALL)
    alone.tell(
        [
            Result(
                f"{SMALL:,} small cases: runs that are told never, and fit the empty nodes", seen.false_never, "", 0
            ),
            Result("Runs that can never fit, and wait", seen.hopeless, "", 0),
            Result("Cases in which the first run waits, and would fit", seen.held_up, "", 0),
            Result("Runs that start in places that do not exist", seen.impossible, "", 0),
            Result("Previews that differ from the decision", seen.differ, "", 0),
            Result("Runs that were decided", seen.runs, ""),
            Result(
                f"{SCENARIOS:,} scenarios of taking back: cycles, or rights that were hurt", cycles(SCENARIOS), "", 0
            ),
        ]
    )


@dataclass
class Compared:
    runs: int = 0
    false_never: int = 0
    hopeless: int = 0
    held_up: int = 0
    impossible: int = 0
    differ: int = 0


def compared(count: int, seed: int = SEED) -> Compared:
    """Decides random snapshots of at most 6 nodes and 5 asks."""
    rng, seen = random.Random(seed), Compared()  # noqa: S311
    for _ in range(count):
        snapshot = _snapshot(rng)
        verdicts = decide(snapshot)
        empty = [_room(node.whole) for node in snapshot.nodes]
        free = [_room(node.free) for node in snapshot.nodes]
        first = next((ask for ask, _ in ordered(snapshot) if verdicts[ask.run].code.fits != "never"), None)
        for ask in snapshot.asks:
            verdict = verdicts[ask.run]
            possible = fits(ask.tasks, empty)
            seen.runs += 1
            seen.false_never += possible and verdict.code.fits == "never"
            seen.hopeless += not possible and verdict.code.fits != "never"
            seen.impossible += verdict.code is Code.FITS and not fits(ask.tasks, free)
            seen.held_up += ask is first and verdict.code is not Code.FITS and fits(ask.tasks, free)
        last = snapshot.asks[-1]
        told = advise(replace(snapshot, asks=snapshot.asks[:-1]), last)
        seen.differ += (told.code, told.nodes) != (verdicts[last.run].code, verdicts[last.run].nodes)
    return seen


def _snapshot(rng: random.Random) -> Snapshot:
    nodes = []
    for number in range(rng.randint(1, 6)):
        gpus, cpus, model = rng.choice((0, 1, 2, 4)), rng.randint(2, 6), rng.choice(MODELS)
        free = Shape(rng.randint(0, gpus), rng.randint(0, cpus), 0, model)
        nodes.append(Node(f"n{number}", Shape(gpus, cpus, 0, model), rng.choice((free, Shape(gpus, cpus, 0, model)))))
    asks = [Ask(f"r{number}", rng.choice("xy"), _tasks(rng)) for number in range(rng.randint(1, 5))]
    shares = {code: Share(rng.choice((0, 4, 20)), line=code, limit=40) for code in "xy"}
    return Snapshot(tuple(nodes), tuple(asks), shares)


def _tasks(rng: random.Random) -> tuple[Tasks, ...]:
    return tuple(
        Tasks(f"t{n}", rng.randint(1, 3), rng.choice((0, 1, 1, 2, 3)), rng.choice(("", *MODELS)), rng.randint(0, 3))
        for n in range(rng.randint(1, 2))
    )


def _room(shape: Shape) -> Room:
    return shape.gpus, shape.cpu_milli, shape.gpu_model


def fits(tasks: Sequence[Tasks], nodes: Sequence[Room]) -> bool:
    """Whether all tasks find a place, each on one of the nodes; by trying all."""
    single = [each for each in tasks for _ in range(each.count)]

    @cache
    def rest(at: int, left: tuple[Room, ...]) -> bool:
        return at == len(single) or any(rest(at + 1, after) for after in _put(single[at], left))

    return rest(0, tuple(sorted(nodes)))


def _put(task: Tasks, left: tuple[Room, ...]) -> Iterator[tuple[Room, ...]]:
    for at, (gpus, cpus, model) in enumerate(left):
        suits = not task.gpus or task.gpu_model in ("", model)
        if suits and task.gpus <= gpus and task.cpu_milli <= cpus:
            yield tuple(sorted((*left[:at], (gpus - task.gpus, cpus - task.cpu_milli, model), *left[at + 1 :])))


def cycles(count: int, seed: int = SEED) -> int:
    """Scenarios in which runs take from each other for ever, or from somebody inside a quota."""
    rng, found = random.Random(seed), 0  # noqa: S311
    for _ in range(count):
        asks = [
            Ask(
                f"r{number}", rng.choice("xyz"), (Tasks("w", rng.randint(1, 2), rng.randint(1, 4)),),
                priority_class=rng.choice(("urgent", "normal", "spare")),
            )
            for number in range(rng.randint(0, 8))
        ]  # fmt: skip
        try:
            settle(Cluster(asks, {name: rng.randint(0, 6) for name in "xyz"}, rng.randint(1, 3)))
        except AssertionError:
            found += 1
    return found


if __name__ == "__main__":
    main()
