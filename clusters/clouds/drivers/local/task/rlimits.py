"""What bounds a task without any privilege: resource limits, its place behind the portal's programs, and that the kernel ends it
first when memory runs out.

Processes are counted in two ways. RLIMIT_NPROC counts all of a user: as root those of an appcode, because each has a uid of
its own; as an ordinary user those of one user namespace. A PID namespace bounds those of one task, from Linux 6.14 on;
before, a task that makes processes without end leaves none for the other tasks that it is counted with.

Only the standard library's smallest modules are imported here, because every task pays for them.
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


# A third of the processor time of a program that did not step back, as much as the portal's worker and controller ask for.
NICE = 5
# The kernel keeps the first 300 for itself.
_LEAST_PID_MAX = 301


def together() -> int:
    """Half of the processes that this machine can have: what is left is for everybody else."""
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
    """Limits the PID namespace of the caller, which may administrate it, where this kernel can."""
    if not own_pid_max():
        return
    try:
        with open("/proc/sys/kernel/pid_max", "w") as file:
            file.write(str(max(processes, _LEAST_PID_MAX)))
    except OSError:  # a container may not write there; the limit of all together holds
        return


def die_first() -> None:
    """The caller and what it starts are what the kernel ends first when memory runs out.

    A task can take that back where the portal lacks CAP_SYS_RESOURCE, as in many containers; cgroups.py and memory.py hold it
    all the same."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def step_back() -> None:
    """While everything is busy what answers people goes before the caller and what it starts (portal/up/services.py).

    Where the kernel shares time among sessions (autogroup) it looks at nice values only inside one, and asks each session for
    its own; of an ordinary user it takes few at a time."""
    os.nice(NICE)
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(NICE))
    except OSError:  # no autogroup, or not now: a courtesy, and no bound
        return


def own_pid_max() -> bool:
    """Whether a PID namespace has a kernel.pid_max of its own; elsewhere it is that of the whole machine."""
    major, minor, *_ = os.uname().release.replace("-", ".").replace("+", ".").split(".")
    return (int(major), int(minor)) >= (6, 14)


def _read(path: str) -> int:
    with open(path) as file:
        return int(file.read())
