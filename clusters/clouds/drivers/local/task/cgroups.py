"""CPU and memory limits by cgroup v2, where this machine lets us write it; elsewhere they are not enforced."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
NOT_ENFORCED = "CPU and memory limits are not enforced on this machine."
_CONTROLLERS = ("cpu", "memory", "pids")


def find(name: str, root: Path = ROOT) -> Path | None:
    """A cgroup of our own below which tasks can be limited, or None.

    As root it lies at the top; an ordinary user may have one that systemd delegated to it.
    """
    uid = os.geteuid()
    parents = [root] if uid == 0 else [root / f"user.slice/user-{uid}.slice/user@{uid}.service"]
    for parent in parents:
        ours = parent / name
        try:
            if not set(_CONTROLLERS) <= set((parent / "cgroup.controllers").read_text().split()):
                continue
            _enable(parent)
            ours.mkdir(exist_ok=True)
            _enable(ours)
        except OSError:
            with contextlib.suppress(OSError):
                ours.rmdir()
            continue
        return ours
    return None


def _enable(cgroup: Path) -> None:
    (cgroup / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))


def make(ours: Path, name: str, *, cpu_milli: int, memory_mb: int, processes: int) -> Path:
    """The cgroup of one attempt. `cpu_milli` are thousandths of a core."""
    cgroup = ours / name
    cgroup.mkdir(exist_ok=True)
    (cgroup / "memory.max").write_text(str(memory_mb << 20))
    (cgroup / "cpu.max").write_text(f"{max(1000, cpu_milli * 100)} 100000")
    (cgroup / "pids.max").write_text(str(processes))
    return cgroup


def remove(cgroup: Path) -> None:
    """Removes the cgroup of an attempt that has ended."""
    with contextlib.suppress(OSError):
        cgroup.rmdir()
