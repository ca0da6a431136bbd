"""What tasks use of this machine: CPU, memory, disk and network, read from /proc and their cgroups when the portal asks.

One pass over /proc finds the processes of all tasks, so the effort grows with processes and not with their threads. The kernel
adds the CPU time and the bytes of a process that has ended to the parent that waited for it, so sums over living processes only
grow. Where one falls all the same, because somebody ignored its children, the reader sees a counter that began anew.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusters.clouds.drivers.base import GpuNow, Sample
from clusters.clouds.drivers.local.task import cgroups, memory

SHARED_NETWORK = (
    "The tasks of a run share its network on this machine, so network traffic is known of runs with one task only."
)
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Living:
    """A task whose program runs. `init` and `init_start`: PID 1 of its namespace, as the shim wrote them. `counts_network`: no
    other task shares its network."""

    uid: str
    init: int
    init_start: int
    cgroups: tuple[str, ...]
    memory_mb: int
    counts_network: bool
    gpus: tuple[GpuNow, ...] = ()


@dataclass(frozen=True)
class Process:
    """A line of /proc/PID/stat: clock ticks of CPU, with those of children that were waited for."""

    parent: int
    ticks: int
    start: int


def look(living: Sequence[Living], at: float) -> list[Sample]:
    """Returns a sample of each task; omits tasks that have just ended."""
    if not living:
        return []
    processes = _processes()
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid, process in processes.items():
        children[process.parent].append(pid)
    found = []
    for task in living:
        init = processes.get(task.init)
        if init is None or init.start != task.init_start:
            continue
        pids = [task.init]
        for pid in pids:
            pids += children.get(pid, ())
        ticks = sum(processes[pid].ticks for pid in pids)
        read, written = _bytes(pids)
        received, sent = _traffic(task.init) if task.counts_network else (None, None)
        found.append(
            Sample(
                task.uid,
                at,
                cpu_seconds=cgroups.cpu_seconds(task.cgroups) or ticks / _TICKS,
                memory_bytes=cgroups.memory_bytes(task.cgroups) or memory.used(pids, task.memory_mb),
                received=received,
                sent=sent,
                read=read,
                written=written,
                gpus=task.gpus,
            )
        )
    return found


def _processes() -> dict[int, Process]:
    """Returns all processes of this machine."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                line = file.read(1024)
        except OSError:  # it has ended
            continue
        # A program chooses its name, which stands in brackets and may contain any.
        fields = line[line.rindex(b")") + 2 :].split()
        found[int(name)] = Process(int(fields[1]), sum(map(int, fields[11:15])), int(fields[19]))
    return found


def _bytes(pids: Iterable[int]) -> tuple[int | None, int | None]:
    """Returns the bytes that processes read from disks and wrote to them; None if that may not be read."""
    read = written = 0
    is_known = False
    for pid in pids:
        try:
            with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
                said = dict(line.split(b": ") for line in file.read(512).splitlines())
        except OSError:
            continue
        is_known = True
        read += int(said[b"read_bytes"])
        written += int(said[b"write_bytes"])
    return (read, written) if is_known else (None, None)


def _traffic(pid: int) -> tuple[int | None, int | None]:
    """Returns the bytes that crossed the interfaces of a process's network, without the loopback."""
    try:
        with open(f"/proc/{pid}/net/dev", "rb", buffering=0) as file:
            lines = file.read(16384).splitlines()[2:]
    except OSError:
        return None, None
    rows = [line.split() for line in lines if not line.lstrip().startswith(b"lo:")]
    # A long name leaves no space between its colon and the first number.
    cells = [b" ".join(row).replace(b":", b": ").split() for row in rows]
    return sum(int(each[1]) for each in cells), sum(int(each[9]) for each in cells)
