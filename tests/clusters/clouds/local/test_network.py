"""The network of a run lives as long as its tasks, whatever dies around it; and what holds where the kernel makes none."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from clusters.clouds.drivers.base import RunRef
from clusters.clouds.drivers.local.network.network import INSIDE, LOST, OTHERS_FIRST
from clusters.clouds.drivers.local.task.processes import is_locked
from clusters.clouds.drivers.local.task.shim import start_time
from tests.clusters.clouds.local.agents import Agent, Agents, Home, role

pytestmark = pytest.mark.as_user

# The abstract sockets of a network are seen by all of its tasks, and only by them.
SERVE = """python -c 'import socket, time
server = socket.socket(socket.AF_UNIX)
server.bind("\\0mark")
print("up", flush=True)
time.sleep(600)'
"""
LOOK = "grep -c @mark /proc/net/unix"


def holder(agent: Agent, run: RunRef) -> int:
    return int((agent.folder / "cloud" / "runs" / str(run.id) / "network" / "lock").read_text())


def test_the_network_outlives_the_agent_and_ends_with_the_run(agent: Agent) -> None:
    script = f"if [ $TASK_INDEX = 0 ]; then {SERVE} fi; until [ -e /elearn/output/go ]; do sleep 0.05; done; {LOOK}"
    run = agent.apply(role(script, count=2))
    agent.until_output(run, "up")
    agent.running(run, index=1)
    held = holder(agent, run)
    agent.signal(signal.SIGKILL)
    agent.start()
    (agent.folder / "cloud" / "runs" / str(run.id) / "scratch" / "go").touch()
    assert agent.ended(run, index=1).phase == "Succeeded"
    assert agent.output(run, index=1) == "1\n"
    assert holder(agent, run) == held
    agent.cloud.delete(run)
    agent.gone(run)
    assert start_time(held) == 0


def test_a_network_that_was_lost_takes_its_tasks_along_and_they_meet_again_in_another(agent: Agent) -> None:
    script = f"if [ $TASK_INDEX = 0 ]; then {SERVE} fi; until {LOOK}; do sleep 0.05; done; sleep 600"
    run = agent.apply(role(script, count=2))
    for index in (0, 1):
        agent.running(run, index=index)
    os.kill(holder(agent, run), signal.SIGKILL)
    for index in (0, 1):
        end = agent.ended(run, index=index)
        assert (end.reason, end.message, end.disrupted) == ("Disrupted", LOST, True)
    agent.until_output(run, "1\n", index=1, attempt=1)


def test_a_run_that_is_over_holds_nothing(agent: Agent) -> None:
    run = agent.apply(role("true"))
    agent.ended(run)
    agent.until_alone(agent.folder / "cloud" / "runs" / str(run.id) / "network")
    assert not is_locked(agent.folder / "cloud" / "probe" / "network")
    assert INSIDE in agent.cloud.capacity().nodes[0].note


def most(networks: int) -> str:
    """Python that lets the agent make only so many networks."""
    return (
        "from clusters.clouds.drivers.local.task import sandbox\n"
        "sandbox.unshare()\n"
        f"open('/proc/sys/user/max_net_namespaces', 'w').write('{networks}')"
    )


def of_another(agent: Agent, command: str) -> RunRef:
    plan = agent.plan(role(command))
    plan = replace(plan, run=replace(plan.run, appcode="flight-demo"))
    agent.cloud.apply(plan)
    return plan.run


@pytest.mark.parametrize("options", [(), ("--shared-network",)])
def test_where_the_kernel_makes_no_network_one_appcode_at_a_time_runs(
    home: Home, make_agent: Agents, options: tuple[str, ...]
) -> None:
    if home.uid is None and os.geteuid() == 0:
        pytest.skip("Nothing is forbidden to root.")
    agent = make_agent(*options, before=most(0))
    first, same = (agent.apply(role("echo up; sleep 600")) for _ in range(2))
    other = of_another(agent, "true")
    last = agent.apply(role("true"))
    for run in (first, same):
        agent.until_output(run, "up")
    note = agent.cloud.capacity().nodes[0].note
    assert "share this machine's network" in note
    assert "user.max_net_namespaces" in note
    if options:
        assert agent.ended(other).phase == "Succeeded"
        return
    for run in (other, last):
        task = agent.until(lambda run=run: agent.task(run))
        assert (task.phase, task.message) == ("Pending", OTHERS_FIRST)
    agent.cloud.delete(first)
    agent.gone(first)
    assert agent.task(other).phase == "Pending"
    agent.cloud.delete(same)
    for run in (other, last):
        assert agent.ended(run).phase == "Succeeded"


def test_a_network_that_cannot_be_made_now_is_told_and_tried_again(home: Home, make_agent: Agents) -> None:
    if home.uid is None and os.geteuid() == 0:
        pytest.skip("Nothing is forbidden to root.")
    agent = make_agent(before=most(1))
    first = agent.apply(role("echo up; sleep 600"))
    agent.until_output(first, "up")
    second = agent.apply(role("true"))
    told = agent.until(lambda: (task := agent.task(second)) and "No space left" in task.message and task)
    assert told.phase == "Pending"
    agent.cloud.delete(first)
    assert agent.ended(second).phase == "Succeeded"
