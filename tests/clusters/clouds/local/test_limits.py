"""A task gets what its flavor says: by cgroups of version 2 or 1, or by the watcher if neither is writable."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusters.clouds.drivers.base import Mount, VolumeRef, VolumeSource
from clusters.clouds.drivers.local.agent import disks
from clusters.clouds.drivers.local.network.network import OTHERS_FIRST
from clusters.clouds.drivers.local.task import cgroups, memory
from tests.clusters.clouds.local.agents import NO_CGROUPS, Agent, Agents, Home, role
from tests.running import eventually

# Allocates 40 MB at a time and touches every page, in a child process like a data loader.
GROWS = """
python3 -c '
import os, time
if os.fork() == 0:
    held = []
    while len(held) < 20:
        held.append(bytearray(os.urandom(1 << 20) * 40))
        time.sleep(0.05)
    os._exit(0)
_, status = os.wait()
raise SystemExit(os.waitstatus_to_exitcode(status) != 0)
'
"""


def test_an_attempt_gets_its_limits(tmp_path: Path) -> None:
    [group] = cgroups.make([str(tmp_path)], "1-worker-0-0", cpu_milli=1500, memory_mb=2048, processes=4096)
    said = {
        name: Path(group, name).read_text() for name in ("memory.max", "cpu.weight", "pids.max", "memory.oom.group")
    }
    assert said == {"memory.max": str(2 << 30), "cpu.weight": "150", "pids.max": "4096", "memory.oom.group": "1"}


def test_a_machine_without_the_controllers_has_no_limits(tmp_path: Path) -> None:
    root, uid = str(tmp_path), os.geteuid()
    parent = tmp_path if uid == 0 else tmp_path / f"user.slice/user-{uid}.slice/user@{uid}.service"
    parent.mkdir(parents=True, exist_ok=True)
    assert cgroups.find("elearn", root) == []
    (parent / "cgroup.controllers").write_text("io pids\n")
    assert cgroups.find("elearn", root) == []
    assert not (parent / "elearn").exists()
    (parent / "cgroup.controllers").write_text("cpu io memory pids\n")
    assert cgroups.find("elearn", root) == [str(parent / "elearn")]
    assert (parent / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (parent / "elearn" / "cpu.weight").read_text() == str(min(10_000, 100 * (os.cpu_count() or 1)))


def test_a_machine_with_version_1_has_one_cgroup_for_each_controller(tmp_path: Path) -> None:
    for name in ("cpu", "memory", "pids"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    ours = cgroups.find("elearn", str(tmp_path))
    assert ours == [str(tmp_path / name / "elearn") for name in ("cpu", "memory", "pids")]
    cpu, held, pids = map(Path, cgroups.make(ours, "1-worker-0-0", cpu_milli=1500, memory_mb=2048, processes=4096))
    assert (cpu / "cpu.shares").read_text() == "1536"
    assert (held / "memory.limit_in_bytes").read_text() == str(2 << 30)
    assert (pids / "pids.max").read_text() == "4096"
    (held / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert cgroups.oom_kills(list(map(str, (cpu, held, pids)))) == 3


def test_this_machine_s_own_cgroups_hold_the_memory_of_a_task(agent: Agent) -> None:
    _is_held(agent)


@pytest.mark.as_user
def test_without_cgroups_the_memory_of_a_task_is_watched(make_agent: Callable[..., Agent]) -> None:
    _is_held(make_agent(before=NO_CGROUPS))


def _is_held(agent: Agent) -> None:
    run = agent.apply(role(GROWS, memory_mb=160), role("sleep 1.5; echo well", name="ps", memory_mb=160))
    ended = agent.ended(run)
    assert (ended.phase, ended.reason) == ("Failed", "OOMKilled")
    assert ended.message.startswith("It was ended because it used more than its memory, 160 MB;")
    # Its neighbour has its own memory limit.
    assert agent.ended(run, "ps").phase == "Succeeded"


def test_what_one_look_cannot_see_in_time_the_kernel_refuses(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(before=NO_CGROUPS)
    run = agent.apply(role(f"python3 -c 'bytearray({64 * (memory.FACTOR + 1) << 20})'; echo $?", memory_mb=64))
    agent.ended(run)
    assert "MemoryError" in agent.output(run)


def test_pages_that_processes_share_count_once(make_agent: Callable[..., Agent]) -> None:
    """A data loader that forks with its data in memory uses that memory once."""
    agent = make_agent(before=NO_CGROUPS)
    shares = (
        "python3 -c 'import os, time; data = os.urandom(1 << 20) * 100; [os.fork() for _ in range(3)]; time.sleep(2.5)'"
    )
    assert agent.ended(agent.apply(role(shares, memory_mb=160))).phase == "Succeeded"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="Only root can mount: run it as root.")


@needs_root
def test_a_volume_has_its_size_grows_and_goes(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent()
    assert disks.NOT_HELD not in agent.cloud.capacity().nodes[0].note

    def mounted(size: str) -> tuple[Mount, ...]:
        return (Mount("/elearn/home", False, VolumeSource(VOLUME, "", size, "ReadWriteOnce")),)

    def says(command: str, size: str) -> str:
        return agent.says(f"cd /elearn/home; {command}; true", mounts=mounted(size))

    fill = "head -c 64M /dev/zero > big 2>/dev/null; stat -c %s big; ls -A; test -O ."
    size, *names = says(fill, "32Mi").split()
    assert 20 << 20 < int(size) < 32 << 20
    assert names == ["big"], "nothing but people's own files"
    # The file is still there, and the volume grows: at once, or where the kernel forbids that, when no task has it any more.
    assert "big" in says("ls", "128Mi").split()
    refill = "head -c 64M /dev/zero > big 2>/dev/null; stat -c %s big"
    assert eventually(lambda: says(refill, "128Mi").split() == [str(64 << 20)])
    image = agent.folder / "cloud" / "volumes" / "7.ext4"
    assert image.stat().st_size == 128 << 20
    # The volume survives a kill; a portal that has ended leaves nothing mounted.
    agent.signal(signal.SIGKILL)
    agent.start()
    assert says("stat -c %s big", "128Mi").split() == [str(64 << 20)]
    agent.end_tasks()
    agent.signal(signal.SIGTERM)
    assert not os.path.ismount(image.with_suffix(""))
    agent.start()
    assert says("stat -c %s big", "128Mi").split() == [str(64 << 20)]
    agent.end_tasks()
    agent.cloud.delete_volume(VOLUME)
    agent.until_removed()
    assert list(image.parent.iterdir()) == []


VOLUME = VolumeRef(7, "ops", "ops-demo", "home")


@needs_root
def test_a_large_disk_takes_next_to_nothing_while_it_is_empty(tmp_path: Path) -> None:
    image, at = tmp_path / "disk.ext4", tmp_path / "disk"
    disks.attach(image, at, 64 << 30, owner=0, spare=1)
    try:
        assert image.stat().st_blocks * 512 < 16 << 20
    finally:
        disks.detach(at)


@needs_root
def test_what_the_runs_of_an_appcode_write_has_a_limit_of_its_own(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("--appcode-gb", "0.0625")
    fills = "head -c 96M /dev/zero > FILE 2>/dev/null; stat -c %s FILE; sleep 600"
    full = agent.apply(role(fills.replace("FILE", "/elearn/output/big")))
    assert int(agent.until_output(full, "\n")) < 64 << 20
    # Other runs of the appcode have no room now; another appcode has its own.
    assert int(agent.until_output(agent.apply(role(fills.replace("FILE", "/tmp/big"))), "\n")) < 8 << 20
    plan = agent.plan(role("head -c 40M /dev/zero > /tmp/big && echo well"))
    other = replace(plan, run=replace(plan.run, appcode="flight-demo"))
    agent.cloud.apply(other)
    assert agent.ended(other.run).phase == "Succeeded"
    # The next agent finds the files where the last one put them.
    agent.signal(signal.SIGKILL)
    agent.start()
    assert (agent.room(full) / "scratch" / "big").exists()
    # Deleted runs free their room, also on the machine's disk.
    agent.end_tasks()
    agent.until_removed()
    assert agent.says("head -c 40M /dev/zero > /tmp/big && echo well") == "well\n"


@pytest.mark.as_user
def test_where_nothing_limits_what_tasks_write_one_appcode_at_a_time_runs(home: Home, make_agent: Agents) -> None:
    if home.uid is None and os.geteuid() == 0:
        pytest.skip("Root can mount; the same test of an ordinary user runs beside it.")
    agent = make_agent()
    assert f"{disks.NOT_HELD} Only one appcode at a time" in agent.cloud.capacity().nodes[0].note
    first = agent.apply(role("echo up; sleep 600"))
    agent.until_output(first, "up")
    plan = agent.plan(role("true"))
    other = replace(plan, run=replace(plan.run, appcode="flight-demo"))
    agent.cloud.apply(other)
    task = agent.until(lambda: agent.task(other.run))
    assert (task.phase, task.message) == ("Pending", OTHERS_FIRST)
    agent.cloud.delete(first)
    assert agent.ended(other.run).phase == "Succeeded"
