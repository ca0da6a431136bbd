"""What runs, roles and tasks are called where machines need a name: hostnames on both clouds, objects on Kubernetes. Pure.

A name is a DNS label (RFC 1035: a letter, then letters, digits and '-') of at most 63 characters. Those of different runs differ.
"""

from __future__ import annotations

import re

from clusters.clouds.drivers.base import RunRef

# A StatefulSet's pods carry `<name>-<10 characters>` as a label value.
ROLE_LIMIT = 52
_LONGEST_SUFFIX = len("-evaluator")
BASE_LIMIT = ROLE_LIMIT - _LONGEST_SUFFIX


def label(front: str, end: str, limit: int) -> str:
    """A DNS label that ends with `end`; of `front` as much as there is room for."""
    front = re.sub(r"[^a-z0-9]+", "-", front.lower()).strip("-")
    if not front[:1].isalpha():
        front = f"r{front}"
    return front[: limit - len(end)].rstrip("-") + end


def base_name(run: RunRef) -> str:
    """The name of the run; also that of its headless Service. At most BASE_LIMIT characters."""
    return label(f"{run.appcode}-{run.cluster}-{run.number}", f"-{run.id}", BASE_LIMIT)


def role_name(run: RunRef, role: str) -> str:
    """The Job, Deployment or StatefulSet of a role."""
    return f"{base_name(run)}-{role}"


def host_name(run: RunRef, role: str, index: int) -> str:
    """The hostname of one task, as Indexed Jobs and StatefulSets make it by themselves."""
    return f"{role_name(run, role)}-{index}"
