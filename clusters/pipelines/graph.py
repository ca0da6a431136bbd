"""Which stage of a pipeline starts, which is skipped, and when the whole is over. Pure.

One idea: from what the stages are and how far each of them is follows everything that is to be done next, whatever happened in
between. So whoever asks may ask twice, and after any death.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

When = Literal["succeeded", "failed", "always"]
WAITING, RUNNING, SUCCEEDED, FAILED, STOPPED, SKIPPED = (
    "Waiting",
    "Running",
    "Succeeded",
    "Failed",
    "Stopped",
    "Skipped",
)
ENDED = frozenset({SUCCEEDED, FAILED, STOPPED, SKIPPED})
BROKEN = frozenset({FAILED, STOPPED})


@dataclass(frozen=True)
class Node:
    """A stage: `after` are the stages that it waits for, `source` the one of them whose output it reads, "" for none; with
    `reads_always` however that has ended."""

    name: str
    after: tuple[str, ...] = ()
    when: When = "succeeded"
    source: str = ""
    reads_always: bool = False

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Who reads what another one writes waits for it, whether it says so or not."""
        return self.after if not self.source or self.source in self.after else (*self.after, self.source)


@dataclass(frozen=True)
class State:
    """How far a stage is; `may_retry`: should it have failed, it is tried again. `has_run`: there was a run of it, which may have
    written something."""

    phase: str = WAITING
    may_retry: bool = False
    has_run: bool = False


@dataclass(frozen=True)
class Next:
    """What is to be done: stages to start, to skip (with a sentence) and to try again. `phase` is how the whole has ended, ""
    while it goes on."""

    start: tuple[str, ...] = ()
    skip: tuple[tuple[str, str], ...] = ()
    again: tuple[str, ...] = ()
    phase: str = ""


def decide(nodes: Sequence[Node], states: Mapping[str, State], *, cancelled: bool, paused: bool = False) -> Next:
    """`nodes` have no cycle; `states` has each of them. Paused it starts nothing and tries nothing again."""
    again = tuple(
        node.name
        for node in nodes
        if not cancelled and states[node.name].phase == FAILED and states[node.name].may_retry
    )
    phases = {node.name: WAITING if node.name in again else states[node.name].phase for node in nodes}
    start, skip = [], []
    for node in nodes:
        if phases[node.name] != WAITING or node.name in again:
            continue
        if cancelled:
            skip.append((node.name, "The run was cancelled before it started."))
        elif all(phases[name] in ENDED for name in node.waits_for):
            has_run = bool(node.source) and states[node.source].has_run
            if why := _why_skipped(node, nodes, phases, has_run=has_run):
                skip.append((node.name, why))
            else:
                start.append(node.name)
    end = _end(phases.values(), cancelled=cancelled)
    return Next(() if paused else tuple(start), tuple(skip), () if paused else again, end)


def _why_skipped(node: Node, nodes: Sequence[Node], phases: Mapping[str, str], *, has_run: bool) -> str:
    """All that it waits for has ended; "" when it starts. `has_run`: there was a run of its source."""
    if node.source and phases[node.source] != SUCCEEDED and not (node.reads_always and has_run):
        return f"{_how(node.source, phases)}, so there is nothing to read."
    if node.when == "succeeded":
        unmet = [name for name in node.waits_for if phases[name] != SUCCEEDED]
        return f"{_how(unmet[0], phases)}." if unmet else ""
    if node.when == "failed" and not any(phases[name] in BROKEN for name in before(node.name, nodes)):
        return "Nothing before it has failed."
    return ""


def _how(name: str, phases: Mapping[str, str]) -> str:
    return f"{name} {'was' if phases[name] in (STOPPED, SKIPPED) else 'has'} {phases[name].lower()}"


def _end(phases: Iterable[str], *, cancelled: bool) -> str:
    found = set(phases)
    if not found <= ENDED:
        return ""
    if cancelled:
        return STOPPED
    return FAILED if found & BROKEN else SUCCEEDED


def before(name: str, nodes: Iterable[Node]) -> set[str]:
    """All stages that have to end before it, directly or not."""
    by_name = {node.name: node for node in nodes}
    found: set[str] = set()
    left = list(by_name[name].waits_for)
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += by_name[each].waits_for
    return found


def behind(name: str, nodes: Sequence[Node]) -> set[str]:
    """All stages that wait for it, directly or not."""
    return {node.name for node in nodes if name in before(node.name, nodes)}


def cycle(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Stages that wait for each other in a circle, the first one again at the end; () where there are none. Of stages that are
    not there nothing is said."""
    by_name = {node.name: node for node in nodes}
    done: set[str] = set()
    for node in nodes:
        path: list[str] = []
        name = node.name
        # Whoever is followed to an end, by one after the other of those that it waits for, is in no circle.
        stack = [(name, iter(by_name[name].waits_for))]
        path.append(name)
        while stack:
            name, rest = stack[-1]
            step = next((each for each in rest if each in by_name and each not in done), None)
            if step is None:
                done.add(name)
                path.pop()
                stack.pop()
            elif step in path:
                return (*path[path.index(step) :], step)
            else:
                path.append(step)
                stack.append((step, iter(by_name[step].waits_for)))
    return ()


def layers(nodes: Sequence[Node]) -> list[list[str]]:
    """The stages in columns: each stands right of all that it waits for, and as far left as that allows."""
    depth: dict[str, int] = {}
    left = list(nodes)
    while left:
        ready = [node for node in left if all(name in depth for name in node.waits_for)]
        for node in ready:
            depth[node.name] = 1 + max((depth[name] for name in node.waits_for), default=-1)
        left = [node for node in left if node.name not in depth]
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        columns[depth[node.name]].append(node.name)
    return columns
