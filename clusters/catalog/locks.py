"""Locks: one requirement with its hashes per line, and nothing else. Pure.

A lock has no address, option or path. So it holds no password and means the same at every index, which the portal chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Lines after this one are installed in a separate layer (frameworks/inside/install.py).
PLUGINS = "# plugins\n"
# Header of a list that is no lock: the versions of its requirements are resolved where they are installed.
REQUIREMENTS = "# requirements\n"
NAME = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
VERSION = r"[A-Za-z0-9][A-Za-z0-9.!+_-]*"
_REQUIREMENT = re.compile(rf"({NAME})==({VERSION})((?: --hash=sha256:[0-9a-f]{{64}})+)")


def pins(text: str) -> dict[str, str]:
    """Package name → normalized line, from the output of `uv pip compile`. Raises ValueError for anything else."""
    text = re.sub(r"\\\s*\n\s*", "", text)
    found: dict[str, str] = {}
    for line in filter(None, (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())):
        if line.startswith("#"):
            continue
        match = _REQUIREMENT.fullmatch(line)
        if match is None:
            raise ValueError("The index has a package without hashes.")
        found[match[1]] = f"{match[1]}=={match[2]} {' '.join(sorted(set(match[3].split())))}"
    return found


def written(pinned: Mapping[str, str]) -> str:
    return "".join(f"{pinned[name]}\n" for name in sorted(pinned))


def versions(lock: str) -> dict[str, str]:
    """Package name → version."""
    return dict(line.partition(" ")[0].split("==") for line in lock.splitlines())


def together(locks: Mapping[str, str]) -> str:
    """Merges locks, given by display name. Raises ValueError if two have different versions of a package."""
    found: dict[str, tuple[str, str]] = {}
    for whose, lock in locks.items():
        for name, line in pins(lock).items():
            other, there = found.setdefault(name, (whose, line))
            if versions(there) != versions(line):
                raise ValueError(
                    f"{other} has {name} {versions(there)[name]} and {whose} {versions(line)[name]}; choose one of the two."
                )
    return written({name: line for name, (_, line) in found.items()})
