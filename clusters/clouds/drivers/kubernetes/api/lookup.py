"""Checks whether a cluster's settings fit what is there: classes and the Kueue queue in each namespace exist, and an autoscaler
is not overlooked.

A wrong name would only show when a pod is made, or never: a Job whose queue does not exist waits silently. Requests are not
retried, because a person waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from clusters.clouds.drivers.kubernetes.api import kueue
from clusters.clouds.drivers.kubernetes.api.client import KINDS, METADATA_LIST, Client, path_of
from clusters.clouds.drivers.kubernetes.api.errors import Forbidden, Missing
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.settings import Settings

# Field of the settings → kind of the object. Storage classes are missing on purpose: one may be a mere name that binds claims to
# volumes made by an administrator, without an object.
CLASSES = {
    "runtime_class": "RuntimeClass",
    "batch_priority_class": "PriorityClass",
    "service_priority_class": "PriorityClass",
    "ingress_class": "IngressClass",
}
QUEUE = "kueue_queue"
KUEUE, QUEUES = kueue.GROUP, "localqueues"
# The ConfigMap with Kueue's own settings.
KUEUE_CONFIG = "kueue-manager-config"
# Rights needed only for these checks: the portal works without them.
ONLY_LOOKED_UP = frozenset({QUEUES, *(KINDS[kind][1] for kind in CLASSES.values())})
NO_KUEUE = "Kueue is not installed in this cluster: its runs would wait for ever. Install Kueue, or name no queue."
# What a cluster autoscaler writes, and what Karpenter's node pools are.
AUTOSCALER_STATUS, KARPENTER = "cluster-autoscaler-status", "karpenter.sh"
_SHOWN = 3


@dataclass(frozen=True)
class Found:
    """`wrong`: missing objects, by the field of the settings. `unchecked`: sentences on what else an administrator has to know,
    such as checks that were impossible."""

    wrong: Mapping[str, str]
    unchecked: tuple[str, ...] = ()


def look_up(client: Client, settings: Settings, namespaces: Collection[str]) -> Found:
    """Looks up all objects that `settings` name; the queue in those of `namespaces` that exist. Raises CloudError."""
    wrong: dict[str, str] = {}
    unchecked: list[str] = []
    for field, kind in CLASSES.items():
        name = getattr(settings, field)
        try:
            if name:
                client.get_once(path_of(kind, name=name))
        except Missing:
            wrong[field] = f"This cluster has no {kind} “{name}”."
        except Forbidden as forbidden:
            unchecked.append(_not_checked(f"there is a {kind} “{name}”", forbidden))
    if settings.kueue_queue:
        try:
            if sentence := _without_queue(client, settings.kueue_queue, namespaces):
                wrong[QUEUE] = sentence
            elif sentence := _counts_twice(client, namespaces):
                unchecked.append(sentence)
        except Forbidden as forbidden:
            unchecked.append(_not_checked(f"there is a LocalQueue “{settings.kueue_queue}”", forbidden))
    return Found(wrong, tuple(dict.fromkeys(unchecked)))


def overlooked_autoscaler(client: Client, settings: Settings) -> str:
    """Returns a sentence if the cluster has an autoscaler that runs would wait for in vain, or "". Raises CloudError, but not for
    what the portal may not read."""
    if settings.nodes_on_demand or settings.kueue_queue:
        return ""
    if _finds_status(client):
        found = "a cluster autoscaler"
    elif _is_served(client, KARPENTER):
        found = "Karpenter"
    else:
        return ""
    return (
        f"This cluster has {found}, and “Nodes on demand” is off: runs that do not fit on the present nodes would wait for ever "
        "without making it add any."
    )


def _finds_status(client: Client) -> bool:
    path = path_of("ConfigMap", "kube-system")
    try:
        return bool(client.get_once(path, fieldSelector=f"metadata.name={AUTOSCALER_STATUS}")["items"])
    except (Forbidden, Missing):
        return False


def _is_served(client: Client, group: str) -> bool:
    try:
        client.get_once(f"/apis/{group}")
    except (Forbidden, Missing):
        return False
    return True


def _not_checked(what: str, forbidden: Forbidden) -> str:
    advice = "Apply docker/kubernetes/clusterrole.yaml again."
    return f"Whether {what} could not be checked: {str(forbidden).rstrip('.')}. {advice}"


def _without_queue(client: Client, queue: str, namespaces: Collection[str]) -> str:
    """Returns why runs of these namespaces would wait for ever, or ""."""
    try:
        version = client.get_once(f"/apis/{KUEUE}")["preferredVersion"]["groupVersion"]
        found = client.get_once(f"/apis/{version}/{QUEUES}", fieldSelector=f"metadata.name={queue}")["items"]
    except Missing:
        return NO_KUEUE
    having = {each["metadata"]["namespace"] for each in found}
    lacking = sorted((set(namespaces) & _existing(client)) - having) if namespaces else []
    if not lacking:
        return ""
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    there = f"namespace{'s'[: len(lacking) != 1]} {', '.join(lacking[:_SHOWN])}{more}"
    return f"There is no LocalQueue “{queue}” in {there}: runs there would wait for ever."


def _counts_twice(client: Client, namespaces: Collection[str]) -> str:
    """Returns a sentence if Kueue is configured to manage Jobs that name no queue, as those of runs, or ""."""
    path, by_name = path_of("ConfigMap"), {"fieldSelector": f"metadata.name={KUEUE_CONFIG}"}
    for found in client.get_once(path, **by_name)["items"]:
        try:
            said = yaml.safe_load("\n---\n".join((found.get("data") or {}).values()).partition("\n---\n")[0]) or {}
            manages = bool(said.get("manageJobsWithoutQueueName"))
            selector = said.get("managedJobsNamespaceSelector") or {}
        except (yaml.YAMLError, AttributeError) as error:
            return f"Whether Kueue manages Jobs that name no queue could not be checked: {type(error).__name__}."
        if manages and any(_selects(selector, each) for each in _labels(client, namespaces)):
            return (
                "Kueue is configured to manage Jobs that name no queue (manageJobsWithoutQueueName): it would count every run "
                "twice, and its Jobs would wait for ever. Turn that off, or exclude the namespaces of business lines by "
                f"managedJobsNamespaceSelector, e.g. those with the label {names.PORTAL}."
            )
    return ""


def _labels(client: Client, namespaces: Collection[str]) -> list[Mapping[str, str]]:
    """Returns the labels of those namespaces, and of one that the portal would make."""
    pages = client.pages(path_of("Namespace"), accept=METADATA_LIST)
    found = [item["metadata"] for page in pages for item in page["items"] or ()]
    there = [each.get("labels") or {} for each in found if each["name"] in namespaces]
    return there or [{names.PORTAL: "portal", "kubernetes.io/metadata.name": "new"}]


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Returns whether a label selector matches."""
    tests: Mapping[str, Callable[[str, Collection[str]], bool]] = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, _: key in labels,
        "DoesNotExist": lambda key, _: key not in labels,
    }
    wanted = (selector.get("matchLabels") or {}).items()
    rules = selector.get("matchExpressions") or []
    return all(labels.get(key) == value for key, value in wanted) and all(
        tests[each["operator"]](each["key"], each.get("values") or ()) for each in rules
    )


def _existing(client: Client) -> set[str]:
    pages = client.pages(path_of("Namespace"), accept=METADATA_LIST)
    return {item["metadata"]["name"] for page in pages for item in page["items"] or ()}
