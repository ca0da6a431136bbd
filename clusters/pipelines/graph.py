"""Decides which stages of a pipeline start or are skipped, and when the run is over. Pure.

The idea: the next steps follow from the stages and their states alone, so a call may be repeated, also after a crash.
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
    """A stage: waits for those in `after`, reads the output of `source` ("" for none), with `reads_always` even after failure."""

    name: str
    after: tuple[str, ...] = ()
    when: When = "succeeded"
    source: str = ""
    reads_always: bool = False

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Includes the source, even if `after` does not name it."""
        return self.after if not self.source or self.source in self.after else (*self.after, self.source)


@dataclass(frozen=True)
class State:
    """State of a stage. `may_retry`: it is tried again if it failed. `has_run`: it had a run, which may have written output."""

    phase: str = WAITING
    may_retry: bool = False
    has_run: bool = False


@dataclass(frozen=True)
class Next:
    """The next steps: stages to start, to skip (with a sentence) and to retry; and the run's final phase, "" while it goes on."""

    start: tuple[str, ...] = ()
    skip: tuple[tuple[str, str], ...] = ()
    again: tuple[str, ...] = ()
    phase: str = ""


def decide(nodes: Sequence[Node], states: Mapping[str, State], *, cancelled: bool, paused: bool = False) -> Next:
    """`nodes` have no cycle, and `states` has all of them. A paused run starts and retries nothing."""
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
            skip.append((node.name, "The run was stopped before it started."))
        elif all(phases[name] in ENDED for name in node.waits_for):
            has_run = bool(node.source) and states[node.source].has_run
            if why := _why_skipped(node, nodes, phases, has_run=has_run):
                skip.append((node.name, why))
            else:
                start.append(node.name)
    end = _end(phases.values(), cancelled=cancelled)
    return Next(() if paused else tuple(start), tuple(skip), () if paused else again, end)


def _why_skipped(node: Node, nodes: Sequence[Node], phases: Mapping[str, str], *, has_run: bool) -> str:
    """Called when all stages it waits for have ended; "" if it starts. `has_run`: its source had a run."""
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
    """All stages that have to end before it, directly or indirectly."""
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
    """All stages that wait for it, directly or indirectly."""
    return {node.name for node in nodes if name in before(node.name, nodes)}


def cycle(nodes: Sequence[Node]) -> tuple[str, ...]:
    """A cycle of stages, with the first one repeated at the end; () if there is none. Unknown stages are ignored."""
    by_name = {node.name: node for node in nodes}
    done: set[str] = set()
    for node in nodes:
        path: list[str] = []
        name = node.name
        # Depth-first search. A stage whose dependencies are all done is in no cycle.
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
    """The stages in columns: each as far left as possible, but right of all that it waits for."""
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
