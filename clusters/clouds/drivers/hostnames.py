"""Names of runs, roles and tasks: hostnames on both clouds, objects on Kubernetes. Pure.

A name is a DNS label (RFC 1035: a letter, then letters, digits and '-') of at most 63 characters, and unique to its run.
"""

from __future__ import annotations

import re

from clusters.clouds.drivers.base import RunRef

# A StatefulSet's pods carry `<name>-<10 characters>` as a label value.
ROLE_LIMIT = 52
_LONGEST_SUFFIX = len("-evaluator")
BASE_LIMIT = ROLE_LIMIT - _LONGEST_SUFFIX


def label(front: str, end: str, limit: int) -> str:
    """Returns a DNS label that ends with `end`, after as much of `front` as fits."""
    front = re.sub(r"[^a-z0-9]+", "-", front.lower()).strip("-")
    if not front[:1].isalpha():
        front = f"r{front}"
    return front[: limit - len(end)].rstrip("-") + end


def base_name(run: RunRef) -> str:
    """Returns the name of the run and of its headless Service. At most BASE_LIMIT characters."""
    return label(f"{run.appcode}-{run.cluster}-{run.number}", f"-{run.id}", BASE_LIMIT)


def role_name(run: RunRef, role: str) -> str:
    """Returns the name of a role's Job, Deployment or StatefulSet."""
    return f"{base_name(run)}-{role}"


def host_name(run: RunRef, role: str, index: int) -> str:
    """Returns the hostname of one task, as Indexed Jobs and StatefulSets form it."""
    return f"{role_name(run, role)}-{index}"
