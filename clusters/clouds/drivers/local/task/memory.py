"""The memory of a task where no cgroup can be written: watched by its shim, and bounded roughly by the kernel.

The kernel bounds what one process may map (RLIMIT_DATA). Programs map far more than they use, so that bound is FACTOR times
the task's memory: it only keeps a program from taking the whole machine between two looks. Each look adds up what the
processes of the task hold, and a task that is over its memory is ended.
"""

from __future__ import annotations

import os
import resource

# TensorFlow with 2 GB of memory maps about 5 GB, JupyterLab with 1 GB about 3.
FACTOR = 8
# Seconds between two looks.
EVERY = 1.0
_PAGE = resource.getpagesize()


def bound(memory_mb: int) -> None:
    """Limits what the calling process, and each one that it starts, may map."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    value = memory_mb * FACTOR << 20
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(resource.RLIMIT_DATA, (value, value))


def is_over(init: int, memory_mb: int) -> bool:
    """Whether the processes below `init` hold more than `memory_mb` MB. Pages that several of them share count once."""
    most = memory_mb << 20
    pids = _below(init)
    # Adding up resident pages is cheap, and too much rather than too little.
    return sum(map(_resident, pids)) > most and sum(map(_proportional, pids)) > most


def _below(init: int) -> list[int]:
    """`init` and its descendants."""
    found = [init]
    for pid in found:
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:  # it has ended
            continue
        for task in tasks:
            try:
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    found += map(int, file.read().split())
            except OSError:
                continue
    return found


def _resident(pid: int) -> int:
    """Bytes of a process that lie in memory and in no file."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE


def _proportional(pid: int) -> int:
    """The same, of which each page is divided by the number of processes that have it. 0 where nobody may look."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            lines = [line.split() for line in file if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    except OSError:
        return 0
    return sum(int(line[1]) for line in lines) << 10
