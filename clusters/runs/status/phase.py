"""Derives a run's phase, reason and message from the desired state and its observed tasks. One pure function.

    Queued → Starting → Running → Succeeded | Failed | Stopped

The outcome (the verdict) is decided once and shown when nothing of the run is left. Until then the phase stays and the
reason is Ending. So "Succeeded" always means that the GPUs are free and the output is in its place.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from clusters.clouds.drivers.base import MAKING, NOT_MADE, restart_policy
from clusters.logs import failure
from portal.text.words import often

Phase = Literal["Queued", "Starting", "Running", "Succeeded", "Failed", "Stopped"]
Outcome = Literal["Succeeded", "Failed", "Stopped"]
Verdict = Literal["", "Succeeded", "Failed", "Stopped"]
TERMINAL: frozenset[str] = frozenset({"Succeeded", "Failed", "Stopped"})
# Reasons of a running task that keeps ending, or whose machine is unreachable.
NODE_LOST = "NodeLost"
TROUBLES = ("BackOff", NODE_LOST)
# Reason of a task whose image could not be pulled within the administrators' limit.
NOT_PULLED = "ImageNotPulled"
# Reasons of a task that can never start, and what the run says if the task says nothing.
NEVER = {NOT_PULLED: "The image of {} was not pulled.", NOT_MADE: "The packages of {} cannot be installed."}


# The task's reason when the cloud has no room for it → the run's reason.
WAITING = {"Unschedulable": "WaitingForGPUs", "WaitingForResources": "WaitingForResources"}

# Why the cloud makes none of a run's tasks: what orders runs there has not let it go, or has taken it back.
ORDERED = frozenset({"QueuedByKueue", "TakenBack"})


@dataclass(frozen=True)
class TaskState:
    """One attempt of one task, as last seen (see `drivers.base.TaskSeen`)."""

    role: str
    index: int
    attempt: int
    phase: str
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    disrupted: bool = False
    log_tail: str = ""
    started_at: dt.datetime | None = None
    finished_at: dt.datetime | None = None

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def is_ready(self) -> bool:
        """A pod whose program keeps ending is Running for Kubernetes and holds its GPUs, but it is not ready."""
        return self.phase in ("Running", "Succeeded") and not self.is_in_trouble

    @property
    def is_in_trouble(self) -> bool:
        return self.reason in TROUBLES

    @property
    def is_silent(self) -> bool:
        """Its machine does not answer, so the task's state is unknown."""
        return self.phase in ("Pending", "Running") and self.reason == NODE_LOST

    @property
    def counts_as_failure(self) -> bool:
        return self.phase == "Failed" and not self.disrupted


@dataclass(frozen=True)
class RunState:
    """A run. `counts` is the number of tasks by role. A batch run is done when all tasks of role `awaited` are.

    The tasks of an `independent` run end by themselves: it is done when each has ended. If at most `at_once` of them
    run at a time (0: all), the run counts as running as soon as one task does.

    `wait_message`: why the portal itself cannot proceed (quota, time, a cloud that does not answer). `blocked_message`:
    why the cloud does not create its tasks. `gpus`: GPUs per task by role, empty for a cloud that reports one wait
    reason for the whole run. `unanswered`: endpoints that cannot be opened yet.
    """

    phase: Phase
    counts: Mapping[str, int]
    awaited: str
    mode: str = "batch"
    retries: int | None = 0
    independent: bool = False
    at_once: int = 0
    desired: str = "running"
    stop_reason: str = ""
    stop_message: str = ""
    wait_reason: str = ""
    wait_message: str = ""
    refusal: str = ""
    verdict: Verdict = ""
    verdict_reason: str = ""
    verdict_message: str = ""
    storage_state: str = ""
    storage_message: str = ""
    gone: bool = False
    stored: bool = True
    gone_message: str = ""
    blocked_reason: str = ""
    blocked_message: str = ""
    unanswered: tuple[str, ...] = ()
    gpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The next state. A verdict never changes. Once there is one, the cloud must be asked to end the run."""

    phase: Phase
    reason: str
    message: str
    verdict: Verdict = ""
    verdict_reason: str = ""
    verdict_message: str = ""
    ready: Mapping[str, int] = field(default_factory=dict)


def latest(tasks: Iterable[TaskState]) -> dict[tuple[str, int], TaskState]:
    """The newest attempt of every task. Where that has failed and an earlier attempt is live, the earlier one: a
    controller that was behind (its API server had been away) creates one pod too many and removes it again."""
    newest: dict[tuple[str, int], TaskState] = {}
    living: dict[tuple[str, int], TaskState] = {}
    for task in tasks:
        for found in (newest, living) if task.phase not in TERMINAL else (newest,):
            seen = found.get((task.role, task.index))
            if seen is None or task.attempt > seen.attempt:
                found[task.role, task.index] = task
    return newest | {key: task for key, task in living.items() if newest[key].phase == "Failed"}


def next_phase(run: RunState, tasks: Iterable[TaskState], steady: Mapping[str, int] | None = None) -> Decision:
    """The phase. `steady` counts, by role, further running tasks that were never restarted: with
    thousands of tasks the count is enough. Idempotent: the same facts give the same decision."""
    tasks, steady = list(tasks), steady or {}
    newest = latest(tasks)
    ready = {role: steady.get(role, 0) for role in run.counts}
    for task in newest.values():
        if task.is_ready and task.role in ready:
            ready[task.role] += 1
    if run.phase in TERMINAL:
        return Decision(
            run.phase,
            run.verdict_reason,
            run.verdict_message,
            run.verdict,
            run.verdict_reason,
            run.verdict_message,
            ready,
        )
    verdict, reason, message = _verdict(run, tasks, newest)
    if verdict:
        return _ending(run, verdict, reason, message, newest, ready, sum(steady.values()))
    if _is_held(run, newest, sum(steady.values())):
        return Decision("Queued", run.blocked_reason, run.blocked_message, ready=ready)
    phase, reason, message = _progress(run, tasks, newest, ready, sum(steady.values()))
    return Decision(phase, reason, message, ready=ready)


def _is_held(run: RunState, newest: Mapping[tuple[str, int], TaskState], steady: int) -> bool:
    """True if what orders runs in the cloud lets none of its tasks run."""
    alive = steady or any(task.phase in ("Pending", "Running") for task in newest.values())
    return run.blocked_reason in ORDERED and not alive and not run.wait_reason


def _verdict(
    run: RunState, tasks: list[TaskState], newest: Mapping[tuple[str, int], TaskState]
) -> tuple[Verdict, str, str]:
    """The outcome and its reason; "" while it is open."""
    if run.verdict:
        return run.verdict, run.verdict_reason, run.verdict_message
    if run.mode == "batch":
        lost = _exhausted(run, tasks)
        finished = [newest.get((run.awaited, index)) for index in range(run.counts.get(run.awaited, 0))]
        done = [task for task in finished if task is not None and task.phase == "Succeeded"]
        complete = bool(finished) and len(done) == len(finished)
        if run.independent:
            lost = _given_up(run, tasks, newest)
            if len(lost) + len(done) < len(finished):
                lost = []
        failed = _first(lost)
        # Both may be reported: workers that still talk to a master that has left fail. The earlier one counts.
        if failed and not (complete and _later(failed, done)):
            reason = failed.reason if failed.reason in ("OOMKilled", *NEVER) else "TaskFailed"
            return "Failed", reason, _so_many(run, lost) + _failure(failed, tasks)
        if complete:
            who = f"The {run.awaited} has" if len(finished) == 1 else f"All {len(finished)} {run.awaited}s have"
            return "Succeeded", "Completed", f"{who} finished."
    if run.refusal:
        return "Failed", "Refused", run.refusal
    # Only before the run has started: an outage of a registry or an index while a pod moves must not end a running run.
    never = [task for task in newest.values() if task.phase in ("Pending", "Failed") and task.reason in NEVER]
    if never and run.phase != "Running" and run.desired != "ended":
        first = min(never, key=lambda t: (t.role, t.index))
        return "Failed", first.reason, first.message or NEVER[first.reason].format(first.name)
    if run.desired == "ended":
        return "Stopped", run.stop_reason, run.stop_message
    if run.gone:
        why = run.gone_message if run.stored else ""
        return "Failed", "Lost", why or "The cloud ended this run although nobody had asked for it."
    return "", "", ""


def _exhausted(run: RunState, tasks: list[TaskState]) -> list[TaskState]:
    """The last attempt of each task that failed more often than its retries allow."""
    failures: dict[tuple[str, int], list[TaskState]] = {}
    for task in tasks:
        if task.counts_as_failure:
            failures.setdefault((task.role, task.index), []).append(task)
    over = [
        ends
        for ends in failures.values()
        if restart_policy.exhausted([_is_own(run, end, tasks) for end in ends], run.retries)
    ]
    return [max(ends, key=lambda t: t.attempt) for ends in over]


def _is_own(run: RunState, task: TaskState, tasks: list[TaskState]) -> bool:
    """True if a task failed because of its program alone."""
    if run.retries is not None or not restart_policy.ended_itself(task):
        return False
    return run.independent or not restart_policy.lost_another(task, tasks)


def _first(last: list[TaskState]) -> TaskState | None:
    """The task that failed first: others fail because it is gone."""
    known = [task.finished_at for task in last if task.finished_at is not None]
    first = [task for task in last if task.finished_at == min(known)] if known else last
    return min(first, key=lambda t: (t.role, t.index), default=None)


def _given_up(run: RunState, tasks: list[TaskState], newest: Mapping[tuple[str, int], TaskState]) -> list[TaskState]:
    """Tasks of an independent run that have failed for good. The other tasks go on."""
    over = _exhausted(run, tasks) if run.independent else []
    return [task for task in over if newest[task.role, task.index].phase == "Failed"]


def _so_many(run: RunState, lost: list[TaskState]) -> str:
    """How many tasks of an independent run have failed: a sentence in front of the first failure."""
    count = sum(run.counts.values())
    return f"{len(lost)} of {count} {run.awaited}s failed. " if run.independent and count > 1 else ""


def _later(failed: TaskState, done: list[TaskState]) -> bool:
    """True if `failed` ended after all of `done`, as far as their times are known."""
    if failed.finished_at is None:
        return False
    return all(task.finished_at is not None and task.finished_at <= failed.finished_at for task in done)


def _failure(task: TaskState, tasks: Iterable[TaskState] = ()) -> str:
    """Why it failed, in the program's own words if possible, then its last log lines. `tasks` includes its earlier attempts."""
    if task.reason in NEVER and task.message:
        return task.message
    lines = last_lines(task.log_tail)
    error = failure.error_line(task.log_tail)
    code = f"exit code {task.exit_code}" if task.exit_code is not None else task.reason or "no exit code"
    if error and task.message in ("", error):
        tries = f", {task.attempt + 1} attempts" if task.attempt else ""
        return _with_lines(f"{error} ({task.name}, {code}{tries})", lines)
    how = f"with {code}" if task.exit_code is not None else f"({code})"
    times = sum(each.name == task.name and each.counts_as_failure and each.attempt <= task.attempt for each in tasks)
    if times > 1:
        how = f"{often(times)} ({code})"
    cause = task.message or failure.why(task.log_tail)
    return _with_lines(f"{task.name} failed {how}" + (f": {cause}" if cause else "."), lines)


def failed_with(task: TaskState) -> str:
    """The failure in one line."""
    return _failure(task).partition("\n")[0]


def _with_lines(sentence: str, lines: str) -> str:
    return f"{sentence}\n{lines}" if lines else sentence


def _then(message: str, step: str) -> str:
    """Adds a sentence to the first line of a message, before any log lines."""
    head, _, lines = message.partition("\n")
    stop = "" if not head or head.endswith((".", "!", "?", "…")) else "."
    return _with_lines(f"{head}{stop} {step}".strip(), lines)


def last_lines(text: str, *, lines: int = 6, characters: int = 800) -> str:
    """The last log lines, cut to fit beside a message; "" for a log of one line, which the message already shows."""
    found = failure.lines_of(text)
    return "\n".join(found[-lines:])[-characters:] if len(found) > 1 else ""


def _ending(
    run: RunState,
    verdict: Outcome,
    reason: str,
    message: str,
    newest: Mapping[tuple[str, int], TaskState],
    ready: Mapping[str, int],
    steady: int,
) -> Decision:
    if run.gone:
        if not run.stored:
            lost = _then(message, f"Its output could not be stored: {run.gone_message}".strip())
            outcome: Outcome = "Failed" if verdict == "Succeeded" else verdict
            return Decision(outcome, "OutputNotStored", lost, outcome, "OutputNotStored", lost, ready)
        return Decision(verdict, reason, message, verdict, reason, message, ready)
    left = steady + sum(1 for task in newest.values() if task.phase in ("Pending", "Running"))
    if run.wait_reason:
        step = run.wait_message
    elif run.storage_state == "failed":
        step = f"Storing the output fails and is tried again: {run.storage_message}"
    elif left:
        step = f"Stopping, {left} task{'s'[: left != 1]} left."
        if silent := next((task for task in newest.values() if task.is_silent), None):
            step += f" {silent.message}"
    elif run.storage_state == "storing":
        step = run.storage_message or "The output is being stored."
    else:
        step = "What is left is being cleared away."
    return Decision(run.phase, "Ending", _then(message, step), verdict, reason, message, ready)


def _again(task: TaskState, tasks: Iterable[TaskState]) -> str:
    """For a failed task that is restarted: how its last attempt ended, and what happens now."""
    tasks = list(tasks)
    before = [each for each in tasks if (each.role, each.index) == (task.role, task.index) and each.phase == "Failed"]
    now = task.message if task.phase != "Failed" and task.message else "It is started again."
    if not before:
        return now
    return _then(_failure(max(before, key=lambda each: each.attempt), tasks), now)


def _how(missing: Iterable[TaskState], tasks: Iterable[TaskState]) -> str:
    """The state of the first task that does not run. One on a silent machine comes first: it needs an operator."""
    task = min(missing, key=lambda t: (not t.is_silent, t.role, t.index), default=None)
    return _again(task, tasks) if task else "A task is started again."


def _most_often(newest: Mapping[tuple[str, int], TaskState]) -> str:
    """A sentence about the task with the most restarts."""
    task = max(newest.values(), key=lambda t: (t.attempt, t.role, -t.index), default=None)
    if task is None or not task.attempt:
        return ""
    return f" {task.name} was started again {'once' if task.attempt == 1 else f'{task.attempt} times'}."


def _all_run(
    run: RunState, wanted: int, newest: Mapping[tuple[str, int], TaskState], lost: list[TaskState]
) -> tuple[str, str]:
    """Reason and message of a run whose tasks all run, except those that have failed for good."""
    if first := _first(lost):
        return "Degraded", f"{_so_many(run, lost)}The others go on. {_failure(first)}"
    done = sum(task.phase == "Succeeded" for task in newest.values())
    finished = f", {done} finished" if done else ""
    running = f"{wanted - done} of {wanted} tasks running{finished}." if wanted > 1 else "1 task running."
    message = running + _most_often(newest)
    if run.unanswered:
        return "NotAnswering", f"{message} {' and '.join(run.unanswered)} cannot be opened yet."
    return "", message


def _in_turns(
    run: RunState,
    newest: Mapping[tuple[str, int], TaskState],
    ready: Mapping[str, int],
    lost: list[TaskState],
    trouble: str,
) -> tuple[str, str]:
    """Reason and message of a run whose tasks take turns: some run, others have ended or are still to start."""
    count = sum(run.counts.values())
    done = sum(task.phase == "Succeeded" for task in newest.values())
    running = sum(ready.values()) - done
    left = count - running - done - len(lost)
    ended = f"{done} finished" + (f", {len(lost)} failed" if lost else "")
    message = f"{running} of {count} tasks running, {ended}, {left} to come."
    first = _first(lost)
    why = trouble or (_failure(first) if first else "")
    if not running:
        waits = (task.message for task in newest.values() if task.phase == "Pending" and task.reason in WAITING)
        why = run.blocked_message or next(waits, "") or why
    return ("Degraded", f"{message} {why}") if why else ("", message)


def _not_fetched(run: RunState) -> tuple[str, str]:
    """Reason and message while the code or the input is fetched again before tasks start; the message tells them apart."""
    if run.storage_message.startswith("The code "):
        return "FetchingCode", run.storage_message
    return "FetchingInput", f"The input cannot be fetched and is tried again: {run.storage_message}"


def _waits_for(run: RunState, waiting: Sequence[TaskState], wanted: int) -> str:
    """What the run lacks in total, then the message of its first waiting task, where a cloud reports task by task."""
    first, gpus = waiting[0], sum(run.gpus.get(task.role, 0) for task in waiting)
    if len(waiting) == 1 or not run.gpus or not first.message:
        return first.message or f"{len(waiting)} of {wanted} tasks wait for free GPUs."
    lacks = f"Waits for {gpus} GPU{'s'[: gpus != 1]}" if gpus else "Waits for room"
    said = first.message[0].lower() + first.message[1:]
    return f"{lacks}: {len(waiting)} of {wanted} tasks have no node. {first.name} {said}"


def _why_degraded(
    run: RunState, tasks: list[TaskState], troubled: list[TaskState], pending: list[TaskState], wanted: int
) -> str:
    waiting = [task for task in pending if task.reason in WAITING]
    return _waits_for(run, waiting, wanted) if waiting and not troubled else _how(troubled or pending, tasks)


def _progress(
    run: RunState,
    tasks: list[TaskState],
    newest: Mapping[tuple[str, int], TaskState],
    ready: Mapping[str, int],
    steady: int,
) -> tuple[Phase, str, str]:
    """Phase, reason and message of a live run."""
    if run.wait_reason:
        return run.phase, run.wait_reason, run.wait_message
    wanted = sum(run.counts.values())
    lost = _given_up(run, tasks, newest)
    wanted -= len(lost)
    pending = [task for task in newest.values() if task.phase == "Pending"]
    troubled = [t for t in newest.values() if (t.phase == "Failed" or t.is_in_trouble) and t not in lost]
    made = steady + sum(1 for task in newest.values() if task.phase != "Failed")
    if sum(ready.values()) == wanted:
        return "Running", *_all_run(run, wanted, newest, lost)
    if run.at_once and (run.phase == "Running" or any(ready.values())):
        return "Running", *_in_turns(run, newest, ready, lost, _how(troubled, tasks) if troubled else "")
    wanted = min(wanted, run.at_once or wanted)
    if run.phase == "Running":
        why = run.blocked_message if made < wanted else ""
        missing = f"{wanted - sum(ready.values())} of {wanted} tasks are not running."
        return "Running", "Degraded", f"{missing} {why or _why_degraded(run, tasks, troubled, pending, wanted)}"
    if run.storage_state == "failed":
        return "Starting", *_not_fetched(run)
    if troubled:
        silent = any(task.is_silent for task in troubled)
        return "Starting", NODE_LOST if silent else "Restarting", _how(troubled, tasks)
    unschedulable = [task for task in pending if task.reason in WAITING]
    if made < wanted and run.blocked_message:
        waits = len(unschedulable) == len(newest) + steady
        return "Queued" if waits else "Starting", run.blocked_reason, run.blocked_message
    if unschedulable:
        message = _waits_for(run, unschedulable, wanted)
        phase: Phase = "Queued" if len(unschedulable) == wanted else "Starting"
        return phase, WAITING[unschedulable[0].reason], message
    for reason, sentence in (
        ("PullingImage", "The image is being fetched."),
        ("MountingVolume", "Its volumes are being mounted."),
        ("FetchingCode", "Its code is being fetched."),
        (MAKING, "Installs packages."),
        ("FetchingInput", run.storage_message or "The input data is being fetched."),
    ):
        waiting = [task for task in pending if task.reason == reason]
        if waiting:
            return "Starting", reason, waiting[0].message or sentence
    if not newest and not steady:
        return "Queued", "Submitted", "Handed to the scheduler."
    return (
        "Starting",
        "StartingProgram",
        "Its program is starting."
        if wanted == 1
        else f"{sum(ready.values())} of {wanted} tasks are ready; the programs of the others are starting.",
    )
