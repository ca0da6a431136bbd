"""Memory and processor time of all processes that the portal has started, while no request arrives."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

# Third-party programs that any such portal needs. Their use is the floor for the whole.
SERVERS = ("postgres", "valkey-server", "traefik", "rclone")


@dataclass(frozen=True)
class Use:
    """Resident bytes (shared pages counted in each process), proportional bytes (counted once), seconds of processor time."""

    rss: int = 0
    pss: int = 0
    cpu: float = 0.0

    def __add__(self, other: Use) -> Use:
        return Use(self.rss + other.rss, self.pss + other.pss, self.cpu + other.cpu)


def watch(pid: int, seconds: float) -> tuple[Use, Use]:
    """The use of process `pid` with its descendants, and that of the servers among them. `cpu` covers only `seconds`."""
    before = _use(pid)
    time.sleep(seconds)
    after = _use(pid)
    whole, servers = Use(), Use()
    for each, (name, used) in after.items():
        # A process that started meanwhile counts from its start.
        spent = used.cpu - (before[each][1].cpu if each in before else 0.0)
        use = Use(used.rss, used.pss, spent)
        whole += use
        servers += use if name in SERVERS else Use()
    return whole, servers


def cpu(pid: int, *words: str) -> float:
    """Seconds of processor time that descendants of `pid` with one of `words` in their command line have used so far."""
    found = psutil.Process(pid).children(recursive=True)
    spent = 0.0
    for process in found:
        try:
            if any(word in part for word in words for part in process.cmdline()):
                times = process.cpu_times()
                spent += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return spent


def _use(pid: int) -> dict[int, tuple[str, Use]]:
    root = psutil.Process(pid)
    found = {}
    for process in [root, *root.children(recursive=True)]:
        try:
            times, memory = process.cpu_times(), process.memory_full_info()
            # Children that have ended count, too: a program that starts helpers is not idle.
            spent = times.user + times.system + times.children_user + times.children_system
            found[process.pid] = (process.name(), Use(memory.rss, memory.pss, spent))
        except psutil.NoSuchProcess:
            continue
    return found
