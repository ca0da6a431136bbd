"""How many tasks a run may have: Linux limits the length of an environment variable, and some name every task. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from clusters.clouds.drivers.base import expand
from clusters.frameworks import FRAMEWORKS
from clusters.frameworks.base import Addresses, Resources
from clusters.manifest.cluster import ClusterSpec

# Linux limit in bytes for an argument or environment variable, including its name and a NUL.
LONGEST_TEXT = 128 * 1024


def too_many(spec: ClusterSpec, resources: Mapping[str, Resources], longest_address: int) -> str:
    """Why the tasks of `spec` cannot all be named if addresses have up to `longest_address` characters; "" if they can."""
    framework = FRAMEWORKS[spec.framework]
    counts = {role: each.count for role, each in spec.active_roles.items()}
    tasks = sum(counts.values())
    if 2 * tasks * longest_address < LONGEST_TEXT:  # far below the limit, so skip building the environments
        return ""
    addresses: Addresses = {(role, n): "x" * longest_address for role, count in counts.items() for n in range(count)}
    shared = framework.shared(spec, addresses)
    found = (too_long(role, framework.launch(spec, role, addresses, resources).env, shared, tasks) for role in counts)
    return next(filter(None, found), "")


def too_long(role: str, env: Mapping[str, str], shared: Mapping[str, str], tasks: int) -> str:
    """Why the program of a task of `role` could not start with this environment; "" if it can."""
    whole = {**shared, **{name: expand(value, shared) for name, value in env.items()}}
    for name, value in whole.items():
        size = len(name) + len(value.encode()) + 2
        if size > LONGEST_TEXT:
            return (
                f"{name} of a {role} would be longer than the {LONGEST_TEXT // 1024} KiB that Linux takes, because it names all "
                f"{tasks:,} tasks; about {tasks * LONGEST_TEXT // size // 10 * 10:,} fit. "
                "Ask for fewer."
            )
    return ""
