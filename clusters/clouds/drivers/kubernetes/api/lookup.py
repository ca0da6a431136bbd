"""Whether what the settings of a cluster name is there: its classes, and the queue of Kueue in each namespace.

A name that is wrong shows first when a pod is made, or never: a Job whose queue does not exist waits without a word. Asked once
and not tried again, because somebody waits for the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clusters.clouds.drivers.kubernetes.api.client import KINDS, METADATA_LIST, Client, Forbidden, Missing, path_of
from clusters.clouds.drivers.kubernetes.settings import Settings

# Field of the settings → kind of what it names. A storage class may be a name alone: volumes that an administrator has made
# are bound by it, and no object has to have it.
CLASSES = {
    "runtime_class": "RuntimeClass",
    "batch_priority_class": "PriorityClass",
    "service_priority_class": "PriorityClass",
    "ingress_class": "IngressClass",
}
QUEUE = "kueue_queue"
KUEUE, QUEUES = "kueue.x-k8s.io", "localqueues"
# What is only looked up, so the portal works without the rights.
ONLY_LOOKED_UP = frozenset({QUEUES, *(KINDS[kind][1] for kind in CLASSES.values())})
NO_KUEUE = "Kueue is not installed in this cluster: its runs would wait for ever. Install Kueue, or name no queue."
_SHOWN = 3


@dataclass(frozen=True)
class Found:
    """`wrong`: by the field of the settings, what it names and the cluster does not have. `unchecked`: what could not be looked
    up, in sentences."""

    wrong: Mapping[str, str]
    unchecked: tuple[str, ...] = ()


def look_up(client: Client, settings: Settings, namespaces: Collection[str]) -> Found:
    """Asks for everything that `settings` name; for the queue in those of `namespaces` that exist. Raises CloudError."""
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
        except Forbidden as forbidden:
            unchecked.append(_not_checked(f"there is a LocalQueue “{settings.kueue_queue}”", forbidden))
    return Found(wrong, tuple(dict.fromkeys(unchecked)))


def _not_checked(what: str, forbidden: Forbidden) -> str:
    advice = "Apply docker/kubernetes/clusterrole.yaml again."
    return f"Whether {what} could not be checked: {str(forbidden).rstrip('.')}. {advice}"


def _without_queue(client: Client, queue: str, namespaces: Collection[str]) -> str:
    """Why runs of these namespaces would wait for ever, or ""."""
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


def _existing(client: Client) -> set[str]:
    pages = client.pages(path_of("Namespace"), accept=METADATA_LIST)
    return {item["metadata"]["name"] for page in pages for item in page["items"] or ()}
