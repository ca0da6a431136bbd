"""What a flavor may demand of nodes: checks by Kubernetes' own rules, with a sentence for who wrote it, and how forms write it.
Pure.

The idea: Kubernetes refuses a wrong name or quantity only when it makes the pod, where nobody looks. So it is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from clusters.admission.demand import GPU, amount, is_gpu, written

MOST = 16
MODEL_LABEL = "nvidia.com/gpu.product"
EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_PART = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
_KEY = re.compile(rf"(?:({_DOMAIN})/)?{_PART}")
_VALUE = re.compile(rf"({_PART})?")
_RESOURCE = re.compile(rf"({_DOMAIN})/{_PART}")
_PAGES = re.compile(r"hugepages-([1-9][0-9]{0,3}[KMG]i)")
LONGEST_DOMAIN = 240  # Kubernetes adds "requests." to it in quotas.
# Of an extended resource in one task, and of bytes in huge pages.
LARGEST, LARGEST_BYTES = 10_000, 1 << 50


def check_resource(value: Any) -> None:
    """Raises ValueError, as the others do."""
    if not isinstance(value, str) or not _is_resource(value):
        raise ValueError("Write an extended resource as nodes offer it, like nvidia.com/gpu or nvidia.com/mig-1g.10gb.")


def _is_resource(name: str) -> bool:
    found = _RESOURCE.fullmatch(name)
    if not found or len(found[1]) > LONGEST_DOMAIN or name.startswith("requests."):
        return False
    return found[1] != "kubernetes.io" and not found[1].endswith(".kubernetes.io")


def check_labels(value: Any, gpu_model: str = "") -> None:
    for key, text in _entries(value).items():
        _check_key(key)
        if not isinstance(text, str) or not _VALUE.fullmatch(text):
            raise ValueError(
                f"The value of label {key} has at most 63 letters, digits, '-', '_' and '.', inside of them."
            )
        if key == MODEL_LABEL and gpu_model:
            raise ValueError(f"The GPU model says {MODEL_LABEL} already.")


def check_tolerations(value: Any) -> None:
    if not isinstance(value, list | tuple) or len(value) > MOST:
        raise ValueError(f"Write a list of at most {MOST} tolerations.")
    for each in value:
        _check_toleration(each)
    if len({written(each) for each in value}) < len(value):
        raise ValueError("One of these is there twice.")


def _check_toleration(value: Any) -> None:
    if not isinstance(value, Mapping) or any(not isinstance(text, str) for text in value.values()):
        raise ValueError("A toleration has the texts key, operator, value and effect.")
    if strange := sorted(map(str, value.keys() - {"key", "operator", "value", "effect"})):
        raise ValueError(f"A toleration has no “{strange[0]}”; it has key, operator, value and effect.")
    if not value.get("key"):
        raise ValueError("Name the key of the taint: who tolerates all of them starts on broken nodes, too.")
    _check_key(value["key"])
    if re.match(r"node\.(cloudprovider\.)?kubernetes\.io/", value["key"]):
        raise ValueError(f"Kubernetes itself sets {value['key']} on nodes that are not to be used.")
    if value.get("operator", "Equal") not in ("Equal", "Exists"):
        raise ValueError("The operator of a toleration is Equal or Exists.")
    if value.get("operator") == "Exists" and value.get("value"):
        raise ValueError("With the operator Exists there is no value.")
    if not _VALUE.fullmatch(value.get("value", "")):
        raise ValueError(f"{value['value']!r} cannot be the value of a taint.")
    if value.get("effect", "") not in EFFECTS:
        raise ValueError(
            "The effect of a toleration is NoSchedule, PreferNoSchedule or NoExecute; left out, it is any."
        )


def check_extra(value: Any, resource: str = GPU) -> None:
    for name, quantity in _entries(value).items():
        pages = _PAGES.fullmatch(name)
        if not pages and not _is_resource(name):
            raise ValueError(f"{name!r} is no extended resource, like rdma/hca or hugepages-2Mi.")
        if name == resource or is_gpu(name):
            raise ValueError(f"{name} counts GPUs: a flavor has one kind of them, with its number.")
        if pages:
            _check_pages(name, quantity, amount(pages[1]))
        elif not _is_count(quantity):
            raise ValueError(f"{name} is counted: write a whole number from 1 to {LARGEST}.")


def _is_count(quantity: Any) -> bool:
    if isinstance(quantity, str) and re.fullmatch(r"[1-9][0-9]{0,5}", quantity):
        quantity = int(quantity)
    return isinstance(quantity, int) and not isinstance(quantity, bool) and 1 <= quantity <= LARGEST


def _check_pages(name: str, quantity: Any, size: int) -> None:
    try:
        found = amount(quantity) if isinstance(quantity, str) else 0
    except ValueError:
        found = 0
    if not 0 < found <= LARGEST_BYTES or found % size:
        raise ValueError(f"{name} has a size like 512Mi or 1Gi, which whole pages fill.")


def _check_key(key: Any) -> None:
    found = _KEY.fullmatch(key) if isinstance(key, str) else None
    if not found or len(found[1] or "") > 253:
        raise ValueError(f"{key!r} cannot be a key in Kubernetes; one is like pool or topology.kubernetes.io/zone.")


def _entries(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or len(value) > MOST:
        raise ValueError(f"Write at most {MOST} of them by name.")
    return value


# Forms: one a line.


def pairs(text: str) -> dict[str, str]:
    """Reads lines like key=value. Raises ValueError."""
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals:
            raise ValueError(f"Write {line!r} as name=value.")
        if key in found:
            raise ValueError(f"{key} is there twice.")
        found[key] = value
    return found


def taints(text: str) -> list[dict[str, str]]:
    """Reads taints as kubectl writes them."""
    return [_toleration(line) for line in filter(None, map(str.strip, text.splitlines()))]


def _toleration(line: str) -> dict[str, str]:
    name, _, effect = line.partition(":")
    key, equals, value = name.partition("=")
    matched = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {"key": key, **matched, **({"effect": effect} if effect else {})}


def lines(entries: Mapping[str, Any]) -> str:
    return "\n".join(f"{key}={value}" for key, value in entries.items())


def taint_lines(tolerations: Iterable[Mapping[str, str]]) -> str:
    return "\n".join(map(written, tolerations))
