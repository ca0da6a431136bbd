"""Assigns GPUs, and decides when a task restarts. Pure.

The portal decides which runs come here, and when. A run gets resources for all its tasks at once or none, as soon as those that
had them are gone. It keeps them between two attempts of a task, and releases them task by task as these end for good; with
`at_once` the next task takes them over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusters.clouds.drivers.base import RestartPolicy, restart_policy

Key = tuple[str, int]

FIRST_DELAY = 1.0
LONGEST_DELAY = 300.0
# Seconds; a task that ran this long before it ended restarts the sequence of delays.
STEADY_SECONDS = 600.0


@dataclass(frozen=True)
class Slot:
    """One GPU. A simulated one suits every model."""

    id: str
    model: str
    simulated: bool = False

    def suits(self, model: str) -> bool:
        return model in ("", self.model) or self.simulated


@dataclass(frozen=True)
class Room:
    """CPU in thousandths of a core and memory in MiB: of the machine, free, or needed."""

    cpu_milli: int = 0
    memory_mb: int = 0

    def holds(self, need: Room) -> bool:
        return need.cpu_milli <= self.cpu_milli and need.memory_mb <= self.memory_mb

    def without(self, need: Room) -> Room:
        """Returns what is left, at least 0 of each."""
        return Room(max(0, self.cpu_milli - need.cpu_milli), max(0, self.memory_mb - need.memory_mb))

    def __add__(self, other: Room) -> Room:
        return Room(self.cpu_milli + other.cpu_milli, self.memory_mb + other.memory_mb)


@dataclass(frozen=True)
class Ask:
    """A run's needs: (task, number, model) per task with GPUs, and the room of all; with `at_once`, of the first tasks."""

    run_id: int
    needs: tuple[tuple[Key, int, str], ...]
    room: Room = Room()

    @property
    def gpus(self) -> int:
        return sum(count for _, count, _ in self.needs)

    @property
    def models(self) -> dict[str, int]:
        models: Counter[str] = Counter()
        for _, count, model in self.needs:
            models[model] += count
        return dict(models)


Given = dict[Key, tuple[str, ...]]


def fit(free: Sequence[Slot], ask: Ask) -> Given | None:
    """Returns GPUs for all needs of `ask`, or None. Needs with a model choose first, "any" takes what is left."""
    left = list(free)
    given: Given = {}
    for key, count, model in sorted(ask.needs, key=lambda need: need[2] == ""):
        chosen = [slot for slot in left if slot.suits(model)][:count]
        if len(chosen) < count:
            return None
        left = [slot for slot in left if slot not in chosen]
        given[key] = tuple(slot.id for slot in chosen)
    return given


def refusal(slots: Sequence[Slot], room: Room, ask: Ask) -> str:
    """Returns why `ask` can never be served here, or ""."""
    if not room.holds(ask.room):
        need, have = (
            (cores(ask.room), cores(room)) if ask.room.cpu_milli > room.cpu_milli else (gib(ask.room), gib(room))
        )
        return (
            f"The run needs {need} at once, and this machine has {have} for tasks. "
            "Choose fewer tasks or a smaller flavor."
        )
    if fit(slots, ask) is not None:
        return ""
    if ask.gpus > len(slots):
        have = "no GPU" if not slots else f"{len(slots)} GPU{'s' if len(slots) > 1 else ''}"
        return f"The run needs {ask.gpus} GPU{'s' if ask.gpus > 1 else ''} at once and this machine has {have}."
    have = ", ".join(f"{count} × {model}" for model, count in sorted(Counter(slot.model for slot in slots).items()))
    need = ", ".join(f"{count} × {model or 'any model'}" for model, count in sorted(ask.models.items()))
    return f"The run needs {need} at once and this machine has {have}."


def cores(room: Room) -> str:
    return f"{room.cpu_milli / 1000:g} CPU{'' if room.cpu_milli == 1000 else 's'}"


def gib(room: Room) -> str:
    return f"{room.memory_mb / 1024:.4g} GiB of memory"


@dataclass(frozen=True)
class Ended:
    """An attempt's end. `seconds`: how long it ran. `disrupted`: the machine's fault. `own`: the program's own failure."""

    succeeded: bool
    disrupted: bool
    seconds: float
    own: bool = False


def next_attempt(ended: Sequence[Ended], restart: RestartPolicy, retries: int | None) -> float | None:
    """Returns the seconds between the end of the last attempt and the start of the next; None if there is no next."""
    if not ended:
        return 0.0
    last = ended[-1]
    if restart == "OnFailure":
        if last.succeeded:
            return None
        failures = [one.own for one in ended if not one.succeeded and not one.disrupted]
        if not last.disrupted and restart_policy.exhausted(failures, retries):
            return None
    if last.disrupted and not (len(ended) > 1 and ended[-2].disrupted and last.seconds < STEADY_SECONDS):
        return 0.0
    row = 0
    for one in reversed(ended):
        if one.seconds >= STEADY_SECONDS:
            break
        row += 1
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** max(0, min(row, 20) - 1))


def free_slots(slots: Sequence[Slot], held: Mapping[int, Given]) -> list[Slot]:
    taken = {gpu for given in held.values() for gpus in given.values() for gpu in gpus}
    return [slot for slot in slots if slot.id not in taken]
