"""Limits of a task without any cgroup: other tasks of its run, its appcode and the machine go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import uuid

import pytest

from clusters.clouds.drivers.local.agent.tasks import LOG_REMOVED
from clusters.clouds.drivers.local.task import rlimits, seccomp
from tests.clusters.clouds.local.agents import NO_CGROUPS, Agents, Home, role

pytestmark = pytest.mark.as_user

# Makes at most twice as many processes as allowed, even if the limits fail; the children end with their task.
BOMB = """python -c '
import os, signal
made = 0
for _ in range(800):
    try:
        child = os.fork()
    except BlockingIOError:
        break
    if child == 0:
        signal.pause()
    made += 1
print(f"made {made}")
signal.pause()
'"""


def test_a_task_that_makes_processes_without_end_stops_nobody_else(make_agent: Agents) -> None:
    agent = make_agent("--processes", "400")
    bomb = agent.apply(role(BOMB, memory_mb=512))
    made = int(agent.until_output(bomb, "\n").split()[-1])
    if rlimits.own_pid_max():
        assert 90 < made < 400
    else:
        assert made == 800, "half of what the machine can have"
    assert agent.says(
        "python -c 'import threading as t; s = [t.Thread() for _ in range(50)]; [x.start() for x in s]'; id"
    )
    agent.cloud.delete(bomb)
    agent.gone(bomb)


def test_what_one_user_may_have_together_is_bounded(make_agent: Agents) -> None:
    agent = make_agent()
    says = agent.says("ulimit -Hu; ulimit -Hc; ulimit -Hf; cat /proc/self/oom_score_adj /proc/1/oom_score_adj").split()
    disk = os.statvfs(agent.folder)
    assert says == [str(rlimits.together()), "0", str(disk.f_frsize * disk.f_blocks // 4 // 1024), "1000", "1000"]


def test_programs_of_the_portal_go_before_a_task(home: Home, make_agent: Agents) -> None:
    agent = make_agent()
    assert agent.says("nice").split() == [str(rlimits.NICE)]
    if os.path.exists("/proc/self/autogroup") and home.uid is None and os.geteuid() == 0:
        # A task of an ordinary user is hidden from the rest of the machine and can't write there.
        assert agent.says("cat /proc/self/autogroup").split()[-1] == str(rlimits.NICE)


def test_a_file_that_grows_beyond_the_limit_ends_its_task_and_says_why(make_agent: Agents) -> None:
    agent = make_agent("--file-gb", "0.001")
    end = agent.ended(agent.apply(role("exec head -c 2M /dev/zero > /elearn/output/x")))
    assert (end.exit_code, end.reason) == (128 + signal.SIGXFSZ, "Error")
    assert end.message == "Ended because it wrote a file of more than 0.001 GiB, the largest that this machine allows."


def test_dev_shm_is_as_large_as_the_memory_of_the_task_and_has_no_endless_names(make_agent: Agents) -> None:
    agent = make_agent(before=NO_CGROUPS)  # in a cgroup, files there count as the task's memory and would end it first
    script = """
    head -c 48M /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x; rm /dev/shm/x
    python -c 'import os; [open(f"/dev/shm/{n}", "w") for n in range(32 * 64 + 9)]'; ls /dev/shm | wc -l
    """
    run = agent.apply(role(script, memory_mb=32))
    assert agent.ended(run).phase == "Succeeded"
    lines = agent.output(run).splitlines()
    assert str(32 << 20) in lines
    assert 1000 < int(lines[-1]) < 32 * 64


def test_no_run_starts_while_the_disk_is_nearly_full_and_what_runs_goes_on(make_agent: Agents) -> None:
    agent = make_agent()
    running = agent.apply(role("sleep 600"))
    agent.running(running)
    agent.signal(signal.SIGKILL)
    agent.options = ("--free-disk-gb", "1000000")
    agent.start()
    waits = agent.apply(role("true"))
    told = agent.until(lambda: agent.task(waits))
    assert (told.phase, told.reason) == ("Pending", "WaitingForResources")
    assert told.message.startswith("Waits for disk: ")
    assert "none starts below 1e+06. An administrator can make room" in told.message
    assert [task.phase for task in agent.listed(running)] == ["Running"]
    agent.signal(signal.SIGKILL)
    agent.options = ()
    agent.start()
    assert agent.ended(waits).phase == "Succeeded"


def test_of_many_attempts_the_logs_of_the_first_and_the_last_are_kept(make_agent: Agents) -> None:
    agent = make_agent()
    run = agent.apply(role("echo mine; exit 1", retries=6))
    agent.ended(run)
    agent.signal(signal.SIGKILL)
    # Five more attempts that ended long ago, so that the test need not wait for their retries.
    first = agent.task_folder(run)
    seen = json.loads((first / "seen.json").read_text())
    seen["finished_at"] = seen["scheduled_at"] = seen["started_at"] = "2020-01-01T00:00:00+00:00"
    for attempt in range(1, 6):
        folder = agent.task_folder(run, f"worker-0-{attempt}")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(first, folder)
        (folder / "seen.json").write_text(json.dumps(seen | {"attempt": attempt, "uid": str(uuid.uuid4())}))
        for path in (folder, *folder.iterdir()):
            os.chown(path, agent.home.uid or -1, -1)
    agent.start()
    agent.ended(run, attempt=6)
    logs = [agent.output(run, attempt=attempt) for attempt in range(7)]
    assert [log == "mine\n" for log in logs] == [True, True, False, True, True, True, True]
    assert logs[2] == LOG_REMOVED


FORBIDDEN = "unshare -Urm true; unshare -n true; echo $?; grep Seccomp: /proc/self/status"


def test_nothing_that_opens_sandboxes_can_be_called_by_a_task_or_a_command_in_it(make_agent: Agents) -> None:
    agent = make_agent()
    run = agent.apply(role(f"{FORBIDDEN}; exec sleep 600"))
    says = agent.until_output(run, "Seccomp:\t2\n")
    assert says.count("Operation not permitted") == 2
    agent.running(run)
    session = agent.cloud.exec(run, "worker", 0, ["bash", "-c", FORBIDDEN + "; ulimit -Hc"])
    # Two pipes, so the order of their lines is undefined.
    said = {"stdout": b"", "stderr": b""}
    while session.exit_code is None:
        if piece := session.receive(10):
            said[piece.stream] += piece.data
    session.close()
    assert said["stderr"].count(b"Operation not permitted") == 2
    assert said["stdout"].endswith(b"Seccomp:\t2\n0\n")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_says_no_to_exactly_what_is_listed(machine: str) -> None:
    column, architecture = seccomp.MACHINES[machine]
    forbidden = {numbers[column] for numbers in seccomp.FORBIDDEN.values()}
    clone = seccomp.CLONE[column]
    ask = _Filter(seccomp.program(machine))
    for number in range(seccomp.NEWEST + 1):
        expected = 38 if number == seccomp.CLONE3 else 1 if number in forbidden else 0
        assert ask(architecture, number, 0) == expected, number
    for flag in (1 << bit for bit in range(32)):
        assert ask(architecture, clone, flag | 0x11) == (1 if flag & seccomp.NEW_NAMESPACES else 0)
    for family in range(64):
        assert ask(architecture, seccomp.SOCKET[column], family) == (
            1 if family in (socket.AF_VSOCK, socket.AF_ALG) else 0
        )
    assert ask(architecture, seccomp.NEWEST + 1, 0) == ask(architecture, 1 << 30, 0) == ask(0x40000003, 1, 0) == 38


class _Filter:
    """Interprets our filter program as the kernel does: returns the error number, 0 for none."""

    def __init__(self, program: bytes) -> None:
        self.lines = list(struct.iter_unpack("=HBBI", program))

    def __call__(self, architecture: int, number: int, argument: int) -> int:
        place = value = 0
        while True:
            code, true, false, operand = self.lines[place]
            if code == 0x06:
                return operand & 0xFFFF if operand < 0x7FFF0000 else 0
            if code == 0x20:
                value = {0: number, 4: architecture, 16: argument}[operand]
                place += 1
                continue
            holds = {0x15: value == operand, 0x25: value > operand, 0x45: bool(value & operand)}[code]
            place += 1 + (true if holds else false)


def test_the_arguments_of_the_first_process_tell_nothing_of_this_machine(make_agent: Agents, home: Home) -> None:
    agent = make_agent()
    says = agent.says("tr '\\0' ' ' < /proc/1/cmdline; echo .")
    assert says.strip(" \n.") == "task", json.dumps(says)
