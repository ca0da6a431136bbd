"""A run's network lives as long as its tasks, whatever dies around it; and what holds if the kernel makes no networks."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import psutil
import pytest

from clusters.clouds.drivers.base import RunRef
from clusters.clouds.drivers.local.network import netns
from clusters.clouds.drivers.local.network.network import INSIDE, LOST, OTHERS_FIRST
from clusters.clouds.drivers.local.task.processes import is_locked
from clusters.clouds.drivers.local.task.shim import start_time
from tests.clusters.clouds.local.agents import Agent, Agents, Home, role

pytestmark = pytest.mark.as_user

# A network's abstract sockets are visible to all of its tasks, and only to them.
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
    (agent.room(run) / "scratch" / "go").touch()
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


# Two copies listen at the same port at the same time, like two pods. Each waits for the other, then calls its own server.
SAME_PORT = """
python -m http.server 8080 --bind 0.0.0.0 --directory /elearn/work &
echo copy $TASK_INDEX > /elearn/work/mark
read_it() { python -c 'from urllib.request import urlopen; print(urlopen("http://127.0.0.1:8080/mark").read().decode())'; }
until read_it 2> /dev/null; do kill -0 $! || exit 1; sleep 0.05; done
touch /elearn/output/up-$TASK_INDEX
until [ -e /elearn/output/up-0 -a -e /elearn/output/up-1 ]; do sleep 0.05; done
read_it
"""


def test_copies_of_a_command_have_ports_of_their_own_and_a_network_that_is_lost_ends_its_copy_alone(
    agent: Agent,
) -> None:
    run = agent.apply(role(SAME_PORT, count=2, at_once=2))
    for index in (0, 1):
        assert agent.ended(run, index=index).phase == "Succeeded", agent.output(run, index=index)
        assert agent.output(run, index=index).rstrip().endswith(f"copy {index}")
    run = agent.apply(role("echo up; until [ -e /elearn/output/go ]; do sleep 0.05; done", count=2, at_once=2))
    held = {index: of_copy(agent, run, index) for index in (0, 1)}
    os.kill(held[0], signal.SIGKILL)
    end = agent.ended(run)
    assert (end.reason, end.message, end.disrupted) == ("Lost", netns.LOST, True)
    os.kill(int((agent.task_folder(run, "worker-1-0") / "lock").read_text()), signal.SIGKILL)
    assert agent.ended(run, index=1).reason == "Lost"
    (agent.room(run) / "scratch" / "go").touch()
    for index in (0, 1):
        assert agent.ended(run, index=index, attempt=1).phase == "Succeeded"
        assert start_time(held[index]) == 0


def of_copy(agent: Agent, run: RunRef, index: int) -> int:
    """The process that holds the network of a running copy."""
    agent.until_output(run, "up", index=index)
    shim = int((agent.task_folder(run, f"worker-{index}-0") / "lock").read_text())
    init = json.loads((agent.task_folder(run, f"worker-{index}-0") / "status.json").read_text())["init"]
    (found,) = {each.pid for each in psutil.Process(shim).children()} - {init}
    return found


def test_a_run_that_is_over_holds_nothing(agent: Agent) -> None:
    run = agent.apply(role("true"))
    agent.ended(run)
    agent.until_alone(agent.folder / "cloud" / "runs" / str(run.id) / "network")
    assert not is_locked(agent.folder / "cloud" / "probe" / "network")
    assert INSIDE in agent.cloud.capacity().nodes[0].note


def most(networks: int) -> str:
    """Python code that limits how many networks the agent can make."""
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


@pytest.mark.parametrize("options", [(), ("--shared",)])
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
    copy = agent.apply(role("true", at_once=1))
    end = agent.ended(copy)
    assert (end.disrupted, "No space left" in end.message) == (True, True)
    agent.cloud.delete(first)
    assert agent.ended(second).phase == "Succeeded"
    agent.until(lambda: any(each.phase == "Succeeded" for each in agent.listed(copy)))
