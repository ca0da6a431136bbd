"""Whatever is killed: nothing is lost, nothing runs twice, and no GPU has two tasks."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusters.clouds.drivers.base import CloudRefused, RunGone, TaskSeen
from clusters.clouds.drivers.local.task import processes
from clusters.clouds.drivers.local.task.shim import start_time
from tests.clusters.clouds.local.agents import PATIENCE, Agent, Agents, role
from tests.running import eventually

LISTEN = "trap 'exit 0' TERM; echo up; sleep 600 & wait"


def shim_of(agent: Agent, run: object, name: str = "worker-0-0") -> int:
    return int((agent.task_folder(run, name) / "lock").read_text())  # type: ignore[arg-type]


@pytest.mark.as_user
def test_tasks_live_on_when_the_agent_is_killed_and_are_found_again(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("--gpus", "2")
    run = agent.apply(role("echo $$ $(date +%s%N); sleep 600", count=2, gpus=1))
    waiting = agent.apply(role("true", gpus=1))
    for index in range(2):
        agent.running(run, index=index)
    before = [agent.until_output(run, "\n", index=index) for index in range(2)]
    uids = {agent.running(run, index=index).uid for index in range(2)}
    agent.signal(signal.SIGKILL)
    agent.start()
    assert [agent.output(run, index=index) for index in range(2)] == before
    assert {item.uid for item in agent.listed(run) if item.phase == "Running"} == uids
    assert agent.cloud.capacity().nodes[0].gpus_free == 0
    agent.cloud.delete(run)
    agent.gone(run)
    assert agent.ended(waiting).phase == "Succeeded"
    assert {item.attempt for item in agent.seen if isinstance(item, TaskSeen)} == {0}


def test_tasks_that_take_turns_hand_on_their_gpus_also_from_one_agent_to_the_next(
    make_agent: Callable[..., Agent],
) -> None:
    """Five tasks, two at a time; the second fails once. Other runs get their GPUs only after the last turns have begun."""
    agent = make_agent("--gpus", "2")
    until = 'until [ -e /tmp/on ]; do sleep 0.05; done; [ "$(cat /tmp/on)" != fail ]'
    run = agent.apply(role(until, count=5, gpus=1, at_once=2, retries=1))
    other = agent.apply(role("true", gpus=1))

    def end(index: int, attempt: int = 0, how: str = "") -> None:
        agent.running(run, index=index, attempt=attempt)
        (agent.room(run) / "tmp" / f"worker-{index}-{attempt}" / "on").write_text(how)
        agent.ended(run, index=index, attempt=attempt)

    def those(phase: str = "Running") -> set[int]:
        return {item.index for item in agent.listed(run) if item.phase == phase}

    agent.running(run, index=1)
    agent.running(run)
    assert ({item.index for item in agent.listed(run)}, those()) == ({0, 1}, {0, 1})
    end(1, how="fail")
    end(0)
    agent.running(run, index=2)
    agent.running(run, index=1, attempt=1)
    agent.signal(signal.SIGKILL)
    for index, attempt in ((2, 0), (1, 1)):
        (agent.room(run) / "tmp" / f"worker-{index}-{attempt}" / "on").touch()
        agent.until_alone(agent.task_folder(run, f"worker-{index}-{attempt}"))
    agent.start()
    agent.running(run, index=3)
    agent.running(run, index=4)
    held = [item.gpus for item in agent.listed(run) if item.phase == "Running"]
    assert (len(held), len(set(held)), agent.cloud.capacity().nodes[0].gpus_free) == (2, 2, 0)
    assert agent.task(other).phase == "Pending"  # type: ignore[union-attr]
    end(4)
    assert agent.ended(other).phase == "Succeeded"
    end(3)
    assert those("Succeeded") == {0, 1, 2, 3, 4}
    ends = Counter(item.index for item in agent.listed(run) if item.phase in ("Succeeded", "Failed"))
    assert ends == {0: 1, 1: 2, 2: 1, 3: 1, 4: 1}


def test_of_a_task_whose_turn_never_came_nobody_hears(agent: Agent) -> None:
    run = agent.apply(role("sleep 600", count=3, at_once=1))
    agent.running(run)
    agent.cloud.delete(run)
    agent.gone(run)
    assert [(item.index, item.reason) for item in agent.listed(run)] == [(0, "Stopped")]


def test_what_happened_while_no_agent_was_there_is_told_by_the_next(agent: Agent) -> None:
    run = agent.apply(role("sleep 0.7; exit 4"), role("sleep 0.7", name="ps"))
    agent.running(run)
    agent.running(run, "ps")
    agent.signal(signal.SIGKILL)
    for name in ("worker-0-0", "ps-0-0"):
        agent.until_alone(agent.task_folder(run, name))
    resumed = time.time()
    agent.start()
    end = agent.ended(run)
    assert (end.phase, end.exit_code, end.estimated) == ("Failed", 4, False)
    assert end.finished_at is not None
    assert end.finished_at.timestamp() < resumed
    assert agent.ended(run, "ps").phase == "Succeeded"


def test_an_agent_killed_again_and_again_starts_everything_once(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("--gpus", "3")
    runs = []
    for _ in range(4):
        runs.append(agent.apply(role("echo started; sleep 0.5", count=2, gpus=1)))
        assert agent.process is not None
        agent.process.send_signal(signal.SIGKILL)
        agent.process.wait()
        agent.start()
    for run in runs:
        for index in range(2):
            assert agent.ended(run, index=index).phase == "Succeeded"
            assert agent.output(run, index=index) == "started\n"
    spans: dict[str, list[tuple[float, float]]] = {}
    for item in agent.cloud.list().items:
        if isinstance(item, TaskSeen):
            assert item.attempt == 0
            assert item.scheduled_at is not None
            assert item.finished_at is not None
            span = (item.scheduled_at.timestamp(), item.finished_at.timestamp())
            for gpu in item.gpus:
                spans.setdefault(gpu, []).append(span)
    for held in spans.values():
        held.sort()
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(held))


def test_a_deletion_is_finished_by_the_next_agent(agent: Agent) -> None:
    run = agent.apply(role("trap '' TERM; echo up; while :; do sleep 0.1; done"), grace=1)
    agent.until_output(run, "up")
    agent.cloud.delete(run)
    agent.signal(signal.SIGKILL)
    agent.start()
    agent.gone(run)
    assert agent.ended(run).reason == "Stopped"


@pytest.mark.as_user
def test_a_lost_shim_takes_its_task_along_and_the_task_starts_again(agent: Agent) -> None:
    sleep = f"sleep {uuid.uuid4().int % 10**9 + 10**9}"  # unique to this test: others run in parallel
    run = agent.apply(role(f"echo $TASK_INDEX; {sleep}", gpus=1))
    agent.until_output(run, "0")
    agent.running(run)
    os.kill(shim_of(agent, run), signal.SIGKILL)
    end = agent.ended(run)
    assert (end.phase, end.reason, end.estimated, end.disrupted) == ("Failed", "Lost", True, True)
    assert end.finished_at is not None
    again = agent.running(run, attempt=1)
    assert again.gpus == end.gpus
    assert again.scheduled_at is not None
    assert end.finished_at <= again.scheduled_at
    agent.until_output(run, "0", attempt=1)
    assert _alive(sleep) <= 1


@pytest.mark.as_user
def test_a_shim_and_the_agent_lost_together_are_noticed(agent: Agent) -> None:
    run = agent.apply(role("echo up; sleep 600"))
    agent.until_output(run, "up")
    agent.running(run)
    agent.signal(signal.SIGKILL)
    init = json.loads((agent.task_folder(run) / "status.json").read_text())["init"]
    os.kill(shim_of(agent, run), signal.SIGKILL)
    agent.until_alone(agent.task_folder(run))
    assert eventually(lambda: not start_time(init))  # the kernel ends it with its shim
    resumed = time.time()
    agent.start()
    end = agent.ended(run)
    assert (end.reason, end.estimated, end.disrupted) == ("Lost", True, True)
    assert end.finished_at is not None
    assert end.finished_at.timestamp() < resumed
    agent.running(run, attempt=1)


def test_sigterm_leaves_tasks_alive(agent: Agent) -> None:
    run = agent.apply(role(LISTEN))
    agent.until_output(run, "up")
    agent.signal(signal.SIGTERM)
    agent.start()
    assert [(item.phase, item.attempt) for item in agent.listed(run)] == [("Running", 0)]


@pytest.mark.as_user
def test_stopping_the_portal_stops_tasks_and_the_next_start_goes_on(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("--stop-tasks-on-term")
    run = agent.apply(role(LISTEN, gpus=1), role("echo up; exit 0", name="ps"))
    agent.until_output(run, "up")
    agent.ended(run, "ps")
    agent.running(run)
    begin = time.monotonic()
    agent.signal(signal.SIGTERM)
    assert time.monotonic() - begin < PATIENCE
    assert not _alive(f"{agent.folder}")
    agent.start()
    end = agent.ended(run)
    assert (end.phase, end.reason, end.disrupted, end.estimated) == ("Failed", "Disrupted", True, False)
    assert agent.running(run, attempt=1).gpus == end.gpus
    assert not [item for item in agent.seen if isinstance(item, TaskSeen) and item.role == "ps" and item.attempt]


def test_a_second_agent_in_the_same_folder_refuses_to_start(agent: Agent) -> None:
    first = agent.process
    agent.process = None
    other = Agent(agent.home, agent.folder)
    other.start()  # the first agent still answers
    assert other.process is not None
    assert other.process.wait(PATIENCE) == 1
    assert "Another node agent works in" in other.log()
    agent.process = first


def _alive(text: str) -> int:
    """Number of processes with `text` in their command line."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    line = file.read().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            count += line.startswith(text) or (text.startswith("/") and text in line)
    return count


def test_folders_may_lie_deeper_than_a_socket_address_is_long(make_agent: Agents) -> None:
    agent = make_agent()
    agent.signal(signal.SIGKILL)
    deep = agent.folder / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    other = Agent(agent.home, deep).start()
    try:
        assert other.says("echo deep") == "deep\n"
    finally:
        other.close()


def test_what_starts_where_another_lived_is_named_by_its_own_pid_alone(tmp_path: Path) -> None:
    """Process ids wrap around. A shorter pid used to leave digits of the old one, and the agent did not start."""
    (tmp_path / "lock").write_text("31993\n")
    script = tmp_path / "script.py"
    script.write_text('import os, sys; os.pwrite(int(sys.argv[2]), b"407\\n", 0)')
    processes.start(str(script), tmp_path)
    assert (tmp_path / "lock").read_text() == "407\n"


def test_a_run_that_lost_its_places_begins_anew_with_nothing_of_its_earlier_life(
    make_agent: Callable[..., Agent],
) -> None:
    """In the same life it never comes back. What is late about the earlier one does not touch the next."""
    agent = make_agent("--gpus", "1")
    plan = agent.plan(role("date +%s%N; sleep 600", gpus=1))
    agent.cloud.apply(plan)
    first = agent.running(plan.run)
    before = agent.until_output(plan.run, "\n")
    agent.cloud.delete(plan.run)
    assert agent.gone(plan.run).life == 0
    agent.cloud.apply(plan)
    assert not [item for item in agent.listed(plan.run) if item.phase in ("Pending", "Running")]
    again = replace(plan, run=replace(plan.run, life=1))
    with pytest.raises(CloudRefused, match="was deleted"):
        agent.cloud.reserve(plan.run, {"worker": 1})
    assert agent.cloud.reserve(again.run, {"worker": 1}).keys() == {("worker", 0)}
    assert agent.listed(plan.run) == []
    agent.cloud.apply(again)
    second = agent.until(lambda: next((item for item in agent.seen if is_next(item, first)), None))
    agent.cloud.delete(plan.run)
    agent.cloud.apply(plan)
    agent.signal(signal.SIGKILL)
    agent.start()
    assert [(item.uid, item.attempt, item.phase) for item in agent.listed(plan.run)] == [(second.uid, 0, "Running")]
    assert before not in agent.output(plan.run)
    agent.cloud.delete(again.run)
    agent.until(lambda: any(isinstance(item, RunGone) and item.life == 1 for item in agent.seen))


def is_next(item: object, first: TaskSeen) -> bool:
    return isinstance(item, TaskSeen) and item.phase == "Running" and item.uid != first.uid
