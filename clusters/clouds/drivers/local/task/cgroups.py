"""Memory and process limits and CPU shares by cgroups of version 2 or 1, if this machine lets the agent write them.

A task may use idle processors. While they are busy each task gets a share by its flavor's CPU, and all tasks together get as
much as one program of the portal per core.

A task's limit is a list of folders: a single one in version 2, one per controller in version 1. A process joins by writing into
`cgroup.procs` of each. Without writable cgroups `memory.py` limits a task's memory instead.

Imports only small modules of the standard library, because every task pays for them.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = "/sys/fs/cgroup"
CPU_NOT_SHARED = "CPU is not shared by flavor on this machine: whoever starts more programs gets more of it."
_CONTROLLERS = ("cpu", "memory", "pids")
# The kernel's defaults for a program without a cgroup: in version 1, and in version 2.
_SHARES, _WEIGHT = 1024, 100


def find(name: str, root: str = ROOT) -> list[str]:
    """Makes the cgroups below which tasks are limited, and returns their folders; [] if that is impossible.

    Root makes them at the top level; an ordinary user needs one of version 2 that systemd delegated.
    """
    uid = os.geteuid()
    unified = root if uid == 0 else f"{root}/user.slice/user-{uid}.slice/user@{uid}.service"
    try:
        with open(f"{unified}/cgroup.controllers") as file:
            has_all = set(_CONTROLLERS) <= set(file.read().split())
    except OSError:
        has_all = False
    cores = os.cpu_count() or 1
    try:
        if has_all:
            _enable(unified)
            made = _made(f"{unified}/{name}")
            _enable(made)
            _write(made, "cpu.weight", min(10_000, _WEIGHT * cores))
            return [made]
        if all(os.path.exists(f"{root}/{each}/cgroup.procs") for each in _CONTROLLERS):
            ours = [_made(f"{root}/{each}/{name}") for each in _CONTROLLERS]
            _write(ours[0], "cpu.shares", _SHARES * cores)
            return ours
    except OSError:
        remove([f"{unified}/{name}", *(f"{root}/{each}/{name}" for each in _CONTROLLERS)])
    return []


def make(ours: Sequence[str], name: str, *, cpu_milli: int, memory_mb: int, processes: int) -> list[str]:
    """Makes the cgroups of one attempt below `ours`, and returns them. `cpu_milli`: thousandths of a core. Raises OSError."""
    made = [_made(f"{each}/{name}") for each in ours]
    if len(made) == 1:
        _write(made[0], "memory.max", memory_mb << 20)
        # Kills all processes of the task together: few programs can cope with the loss of one.
        _write(made[0], "memory.oom.group", 1)
        _write(made[0], "cpu.weight", min(10_000, max(1, cpu_milli * _WEIGHT // 1000)))
        _write(made[0], "pids.max", processes)
        return made
    if made:
        cpu, memory, pids = made
        _write(cpu, "cpu.shares", max(2, cpu_milli * _SHARES // 1000))
        _write(memory, "memory.limit_in_bytes", memory_mb << 20)
        _write(pids, "pids.max", processes)
    return made


def join(groups: Sequence[str]) -> None:
    """Moves the calling process, and all that it starts, into the cgroups."""
    for group in groups:
        _write(group, "cgroup.procs", 0)


def oom_kills(groups: Sequence[str]) -> int:
    """Returns how often the kernel killed a process for memory: in these cgroups, or on this machine without cgroups."""
    places = [f"{group}/{name}" for group in groups for name in ("memory.events", "memory.oom_control")]
    for place in places or ["/proc/vmstat"]:
        try:
            with open(place) as file:
                return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
        except OSError:
            continue
    return 0


def cpu_seconds(groups: Sequence[str]) -> float | None:
    """Returns the CPU time of all processes that have ever been in a cgroup of version 2; None for any other."""
    return _value(f"{groups[0]}/cpu.stat", "usage_usec ") / 1e6 if len(groups) == 1 else None


def memory_bytes(groups: Sequence[str]) -> int | None:
    """Returns the memory of a task's cgroups without files that the kernel can drop; None without cgroups."""
    if not groups:
        return None
    if len(groups) == 1:
        return max(0, _value(f"{groups[0]}/memory.current") - _value(f"{groups[0]}/memory.stat", "inactive_file "))
    place = groups[1]
    return max(0, _value(f"{place}/memory.usage_in_bytes") - _value(f"{place}/memory.stat", "total_inactive_file "))


def _value(path: str, name: str = "") -> int:
    """Returns the number behind `name` in a file of the kernel; 0 if there is none."""
    try:
        with open(path) as file:
            return next((int(line[len(name) :]) for line in file if line.startswith(name)), 0)
    except OSError:
        return 0


def remove(groups: Sequence[str]) -> None:
    for group in groups:
        try:  # noqa: SIM105  contextlib costs every task 2 ms
            os.rmdir(group)
        except OSError:
            pass


def _made(folder: str) -> str:
    os.makedirs(folder, exist_ok=True)
    return folder


def _enable(cgroup: str) -> None:
    _write(cgroup, "cgroup.subtree_control", " ".join(f"+{name}" for name in _CONTROLLERS))


def _write(folder: str, name: str, value: object) -> None:
    with open(f"{folder}/{name}", "w") as file:
        file.write(str(value))
