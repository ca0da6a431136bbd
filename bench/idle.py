"""What the portal holds and does while nobody wants anything: memory and processor time of everything it has started."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

# Programs that others wrote and that any such portal needs; they are the floor for all of it together.
SERVERS = ("postgres", "valkey-server", "traefik", "rclone")


@dataclass(frozen=True)
class Use:
    """Bytes resident (shared pages counted in each process), proportional bytes (once), seconds of processor time."""

    rss: int = 0
    pss: int = 0
    cpu: float = 0.0

    def __add__(self, other: Use) -> Use:
        return Use(self.rss + other.rss, self.pss + other.pss, self.cpu + other.cpu)


def watch(pid: int, seconds: float) -> tuple[Use, Use]:
    """Everything below process `pid` and itself, and the servers among it; `cpu` is what was used within `seconds`."""
    before = _use(pid)
    time.sleep(seconds)
    after = _use(pid)
    whole, servers = Use(), Use()
    for each, (name, used) in after.items():
        # A process that began meanwhile is counted from its beginning.
        spent = used.cpu - (before[each][1].cpu if each in before else 0.0)
        use = Use(used.rss, used.pss, spent)
        whole += use
        servers += use if name in SERVERS else Use()
    return whole, servers


def cpu(pid: int, *words: str) -> float:
    """Seconds of processor time that were used until now by what lives below process `pid` and has one of `words` in its
    command line."""
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
            # Of its own children that have ended, too: a program that starts helpers is not idle.
            spent = times.user + times.system + times.children_user + times.children_system
            found[process.pid] = (process.name(), Use(memory.rss, memory.pss, spent))
        except psutil.NoSuchProcess:
            continue
    return found
