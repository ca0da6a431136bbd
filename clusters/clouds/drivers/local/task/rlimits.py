"""Limits of a task that need no privileges: resource limits, a lower CPU priority than the portal's programs, and preference for
the kernel's OOM killer.

Processes are counted in two ways. RLIMIT_NPROC counts all of a user: as root those of an appcode, because each has its own uid;
as an ordinary user those of one user namespace. A PID namespace limits those of one task, from Linux 6.14 on; on older kernels a
fork bomb leaves no processes for the other tasks that it is counted with.

Imports only small modules of the standard library, because every task pays for them.
"""

from __future__ import annotations

import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class Limits(TypedDict):
        """`processes` (and threads) of the task, `together` of all that are counted with it; the size of one file."""

        processes: int
        together: int
        file_bytes: int


# A third of the CPU time of a program with nice 0, the same as the portal's worker and controller.
NICE = 5
# The kernel reserves the first 300.
_LEAST_PID_MAX = 301


def together() -> int:
    """Returns half of this machine's maximum number of processes; the rest is for everything else."""
    return min(_read("/proc/sys/kernel/pid_max"), _read("/proc/sys/kernel/threads-max")) // 2


def bound(limits: Limits) -> None:
    """Limits the calling process and what it starts; it must not need more itself."""
    for what, value in (
        (resource.RLIMIT_NPROC, limits["together"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_CORE, 0),
    ):
        most = resource.getrlimit(what)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(what, (value, value))


def bound_namespace(processes: int) -> None:
    """Limits the PID namespace of the caller, which must have the right to, if this kernel can."""
    if not own_pid_max():
        return
    try:
        with open("/proc/sys/kernel/pid_max", "w") as file:
            file.write(str(max(processes, _LEAST_PID_MAX)))
    except OSError:  # in a container that may not write there the common limit still holds
        return


def die_first() -> None:
    """Makes the caller and what it starts the OOM killer's first choice.

    A task can undo this if the portal lacks CAP_SYS_RESOURCE, as in many containers; cgroups.py and memory.py still limit it."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def step_back() -> None:
    """Gives programs that serve people precedence over the caller and what it starts (portal/up/services.py).

    With autogroup the kernel applies nice values only within a session, and each session has its own value; an ordinary user may
    only change a few at a time."""
    os.nice(NICE)
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(NICE))
    except OSError:  # no autogroup, or not now: this is best effort
        return


def own_pid_max() -> bool:
    """Returns whether each PID namespace has its own kernel.pid_max; on older kernels it is the whole machine's."""
    major, minor, *_ = os.uname().release.replace("-", ".").replace("+", ".").split(".")
    return (int(major), int(minor)) >= (6, 14)


def _read(path: str) -> int:
    with open(path) as file:
        return int(file.read())
