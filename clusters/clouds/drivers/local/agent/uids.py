"""The uids of tasks when the agent is root: a range that this machine uses for nothing else.

Files of a task belong to its uid. Users who may use that uid in their own containers, by /etc/subuid, own these files, too.
"""

from __future__ import annotations

from pathlib import Path

# Maximum number of appcodes per machine, and the number of special uids before them: for probes, holders of networks with an
# exit, owners of cached files, and the package index.
APPCODES, BEFORE = 100_000, 4
PROBE, HOLDER, CACHE, PACKAGES = -1, -2, -3, -4
# Candidates for the start of the range, best first: beyond the ranges of useradd (to 600100000), systemd-nspawn (to 1879048191)
# and sssd (to 2000200000), and within 31 bits; within the 10^9 uids of an LXD container; within any container with more than the
# usual 65536.
FIRSTS = (2_100_000_000, 700_000_000, 200_000)


def subordinate() -> str:
    """Returns the content of /etc/subuid and /etc/subgid."""
    return "\n".join(path.read_text() for path in (Path("/etc/subuid"), Path("/etc/subgid")) if path.exists())


def first() -> int:
    """Returns the uid of the first appcode on this machine."""
    return choose(subordinate(), Path("/proc/self/uid_map").read_text())


def choose(given: str, uid_map: str) -> int:
    """Returns the uid of the first appcode, given the results of `subordinate` and the content of /proc/self/uid_map. Pure."""
    rows = [[int(word) for word in line.split()] for line in uid_map.splitlines()]
    exist = [
        first
        for first in FIRSTS
        if any(start <= first - BEFORE and first + APPCODES <= start + count for start, _, count in rows)
    ] or [FIRSTS[-1]]
    return next((first for first in exist if not owner(first - BEFORE, BEFORE + APPCODES, given)), exist[0])


def owner(first: int, count: int, given: str) -> str:
    """Returns who may use one of the `count` uids from `first` in their own containers; "" for nobody. Pure."""
    for line in given.splitlines():
        name, _, numbers = line.partition(":")
        start, _, size = numbers.partition(":")
        if start.isdecimal() and size.isdecimal() and int(start) < first + count and first < int(start) + int(size):
            return name
    return ""
