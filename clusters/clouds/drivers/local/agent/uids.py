"""The uids that tasks get when the agent is root: a range that this machine gives to nobody else.

Files of a task belong to its uid. Who may use that uid in containers of their own, by /etc/subuid, owns them, too.
"""

from __future__ import annotations

from pathlib import Path

# How many appcodes a machine can have, and how many uids before the first of them have other uses: who holds networks with a way
# out, who owns what is cached, and as whom the package index works.
APPCODES, BEFORE = 100_000, 4
PROBE, HOLDER, CACHE, PACKAGES = -1, -2, -3, -4
# Where ranges begin, the best first: beyond what useradd (to 600100000), systemd-nspawn (to 1879048191) and sssd (to 2000200000)
# give away, and within 31 bits; within the 10^9 uids of a container of LXD; within any that has more than the usual 65536.
FIRSTS = (2_100_000_000, 700_000_000, 200_000)


def subordinate() -> str:
    """What /etc/subuid and /etc/subgid say."""
    return "\n".join(path.read_text() for path in (Path("/etc/subuid"), Path("/etc/subgid")) if path.exists())


def first() -> int:
    """The uid of the first appcode here."""
    return choose(subordinate(), Path("/proc/self/uid_map").read_text())


def choose(given: str, uid_map: str) -> int:
    """The uid of the first appcode where `subordinate` says `given`, and /proc/self/uid_map `uid_map`. Pure."""
    rows = [[int(word) for word in line.split()] for line in uid_map.splitlines()]
    exist = [
        first
        for first in FIRSTS
        if any(start <= first - BEFORE and first + APPCODES <= start + count for start, _, count in rows)
    ] or [FIRSTS[-1]]
    return next((first for first in exist if not owner(first - BEFORE, BEFORE + APPCODES, given)), exist[0])


def owner(first: int, count: int, given: str) -> str:
    """Who may use one of the `count` uids from `first` in containers of their own; "" for nobody. Pure."""
    for line in given.splitlines():
        name, _, numbers = line.partition(":")
        start, _, size = numbers.partition(":")
        if start.isdecimal() and size.isdecimal() and int(start) < first + count and first < int(start) + int(size):
            return name
    return ""
