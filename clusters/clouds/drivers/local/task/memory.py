"""The memory limit of a task without cgroups: polled by its shim, and bounded roughly by the kernel.

The kernel limits what one process may map (RLIMIT_DATA). Programs map far more than they use, so this limit is FACTOR times the
task's memory: it only keeps a program from taking the whole machine between two polls. Each poll sums the memory of the task's
processes, and a task beyond its limit is killed.
"""

from __future__ import annotations

import os
import resource

# TensorFlow with 2 GB of memory maps about 5 GB, JupyterLab with 1 GB about 3.
FACTOR = 8
# Seconds between two polls.
EVERY = 1.0
_PAGE = resource.getpagesize()


def bound(memory_mb: int) -> None:
    """Limits what the calling process, and each process that it starts, may map."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    value = memory_mb * FACTOR << 20
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(resource.RLIMIT_DATA, (value, value))


def is_over(init: int, memory_mb: int) -> bool:
    """Returns whether the processes below `init` hold more than `memory_mb` MB. Shared pages count once."""
    return used(_below(init), memory_mb) > memory_mb << 20


def used(pids: list[int], memory_mb: int) -> int:
    """Returns the bytes that processes hold. Beyond `memory_mb` MB shared pages count once; below that the sum of resident
    pages, which is cheap and an upper bound."""
    found = sum(map(_resident, pids))
    return sum(map(_proportional, pids)) if found > memory_mb << 20 else found


def _below(init: int) -> list[int]:
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
    """Returns a process's bytes in memory that are not backed by a file."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE


def _proportional(pid: int) -> int:
    """Returns the same with each page divided by the number of processes that share it; 0 if it may not be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            lines = [line.split() for line in file if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    except OSError:
        return 0
    return sum(int(line[1]) for line in lines) << 10
