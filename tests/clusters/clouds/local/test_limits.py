"""Limits are written where cgroup v2 can be written; nowhere else is anything touched."""

from __future__ import annotations

import os
from pathlib import Path

from clusters.clouds.drivers.local.task import cgroups


def test_an_attempt_gets_its_limits(tmp_path: Path) -> None:
    cgroup = cgroups.make(tmp_path, "1-worker-0-0", cpu_milli=1500, memory_mb=2048, processes=4096)
    assert (cgroup / "memory.max").read_text() == str(2 << 30)
    assert (cgroup / "cpu.max").read_text() == "150000 100000"
    assert (cgroup / "pids.max").read_text() == "4096"


def test_a_machine_without_the_controllers_has_no_limits(tmp_path: Path) -> None:
    parent = (
        tmp_path
        if os.geteuid() == 0
        else tmp_path / f"user.slice/user-{os.geteuid()}.slice/user@{os.geteuid()}.service"
    )
    parent.mkdir(parents=True, exist_ok=True)
    assert cgroups.find("elearn", tmp_path) is None
    (parent / "cgroup.controllers").write_text("io pids\n")
    assert cgroups.find("elearn", tmp_path) is None
    assert not (parent / "elearn").exists()
    (parent / "cgroup.controllers").write_text("cpu io memory pids\n")
    assert cgroups.find("elearn", tmp_path) == parent / "elearn"
    assert (parent / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
