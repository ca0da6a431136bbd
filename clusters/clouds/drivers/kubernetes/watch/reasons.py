"""Why a pod waits, fails or is in trouble: a reason and a sentence that people can act on. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusters.clouds.drivers.base import MAKING, NOT_MADE, restart_policy
from clusters.clouds.drivers.kubernetes.render import code, environments, storage
from clusters.clouds.drivers.kubernetes.settings import GPU, GPU_MODEL, quantity
from clusters.clouds.drivers.kubernetes.watch.capacity import DISK, DISK_ADVICE, asked_of, gib

Pod = Mapping[str, Any]
Status = Mapping[str, Any]

_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_CREATING = frozenset({"", "ContainerCreating", "PodInitializing"})
_NODES = re.compile(r"0/(\d+) nodes are available: (.*?)\.(?: |$)", re.DOTALL)
_MOUNTS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_OF_KUEUE = "kueue.x-k8s.io/queue-name"
# Reasons of pods without a node.
NO_NODE = frozenset({"Unschedulable", "WaitingForResources"})
# Registries' answers to missing or insufficient credentials.
_DENIED = re.compile(
    r"(?i)\b(401|403|unauthorized|denied|authentication required|authorization failed|no basic auth)\b"
)
PRIVATE = "If the image is private, an administrator saves a pull secret for its registry under Registries."
NODE_LOST = "NodeLost"
PULLING = "PullingImage"
POD_DELETED = "Somebody deleted its pod."
JOB_DELETED = "Somebody deleted its Job; it is made again."
TAKEN_BACK = "It was ended to make room for others; it starts again when its run is let go."
JOB_SUSPENDED = "Its Job was suspended to make room for others; it starts again when it is let go."
_DISRUPTIONS = {
    "PreemptionByScheduler": "It made room for something more important.",
    "DeletionByTaintManager": "Its node does not answer any more.",
    "DeletionByPodGC": "Its node is gone.",
    "EvictionByEvictionAPI": "Its node is being emptied.",
    "TerminationByKubelet": "Its node ran short of memory or disk, or was shut down.",
}


def condition(pod: Pod, kind: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = next(
        (each for each in pod["status"].get("conditions") or [] if each["type"] == kind), None
    )
    return found


def gpus_of(pod: Pod) -> int:
    """Returns how many GPUs the pod holds once it is on a node."""
    return sum(
        int(quantity((container.get("resources") or {}).get("limits", {}).get(GPU, "0")))
        for container in pod["spec"]["containers"]
    )


def waiting(pod: Pod, main: Status) -> tuple[str, str]:
    scheduled = condition(pod, "PodScheduled")
    if not pod["spec"].get("nodeName"):
        lacks = "Unschedulable" if gpus_of(pod) else "WaitingForResources"
        if scheduled and scheduled.get("reason") == "SchedulingGated":
            queue = (pod["metadata"].get("labels") or {}).get(_OF_KUEUE)
            return lacks, f"Waits in Kueue's queue “{queue}”." if queue else "Waits to be let go."
        if scheduled and scheduled["status"] == "False":
            return lacks, unschedulable(pod, scheduled.get("message") or "")
        return "Starting", ""
    for status in pod["status"].get("initContainerStatuses") or []:
        if (held := _held_up(status)) is not None:
            return held
        if status["name"] == environments.MAKE and "running" in status.get("state", {}):
            return MAKING, "Installs packages."
        if status["name"] == code.FETCH_CODE and "running" in status.get("state", {}):
            return "FetchingCode", "Its code is being fetched."
        if status["name"] == storage.FETCH and "running" in status.get("state", {}):
            return "FetchingInput", ""
        if status["name"] == storage.FOLLOW and not status.get("started"):
            return "FetchingInput", "The event files have not been reached yet."
    return _held_up(main) or ("Starting", f"Its container is being made on {pod['spec']['nodeName']}.")


def misses_secret(message: str) -> bool:
    """Returns whether the kubelet waits for a Secret. Only the portal makes Secrets of credentials."""
    return "CreateContainerConfigError" in message and 'secret "' in message


def pod_trouble(reason: str, text: str) -> tuple[str, str] | None:
    """Interprets a warning of the kubelet or the volume controller about a pod that does not start; None if irrelevant."""
    if reason in _MOUNTS:
        return "MountingVolume", f"Its volumes cannot be mounted yet: {_tidy(text)}"
    if reason == "FailedCreatePodSandBox":
        return "BackOff", f"Its node cannot make it yet: {_tidy(text)}"
    return None


def waits_for_volume(message: str, trouble: str) -> str:
    """Adds the provisioner's message to the sentence of a pod that waits for its volume."""
    if "volume" not in message.lower():
        return message
    return f"{message.partition(' Its volume is not made: ')[0]} Its volume is not made: {_tidy(trouble)}"


def _tidy(text: str) -> str:
    text = " ".join(text.split()) or "no details"
    return text if text[-1] in ".!?" else f"{text}."


def _held_up(status: Status) -> tuple[str, str] | None:
    """Returns what prevents a container from running, or None."""
    wait = status.get("state", {}).get("waiting") or {}
    reason, detail = wait.get("reason") or "", (wait.get("message") or "").strip()
    if reason in _CREATING:
        return None
    if reason in _IMAGE:
        sentence = f"Image {status.get('image')} cannot be fetched ({reason}): {detail or 'no details'}"
        return PULLING, f"{_tidy(sentence)} {PRIVATE}" if _DENIED.search(detail) else sentence
    if reason == "CrashLoopBackOff" and status["name"] == environments.MAKE:
        ended = status.get("lastState", {}).get("terminated") or {}
        reason, why = _not_made(ended)
        return (reason, why) if reason == NOT_MADE else (MAKING, f"{why} It is tried again.")
    if reason == "CrashLoopBackOff":
        return "BackOff", _restarting(status)
    return "BackOff", f"Its container cannot be made ({reason}): {detail or 'no details'}"


def _not_made(ended: Status) -> tuple[str, str]:
    """Returns the reason, and the sentence that is the installer's last line, before its other lines. What killed the installer
    may not do so again."""
    lines = [line for line in (ended.get("message") or "").splitlines() if line.strip()]
    if ended.get("reason") == "OOMKilled" or ended.get("exitCode") in restart_policy.FROM_OUTSIDE or not lines:
        return "Error", f"Packages were not installed: the process was ended ({ended.get('reason') or 'no details'})."
    return NOT_MADE, "\n".join([lines[-1].strip(), *lines[:-1]])


def _restarting(status: Status) -> str:
    ended = status.get("lastState", {}).get("terminated") or {}
    how = (
        "because it used too much memory"
        if ended.get("reason") == "OOMKilled"
        else f"with exit code {ended.get('exitCode')}"
    )
    count = status.get("restartCount", 0)
    return (
        f"Its program ended {how}; it was started again {count} time{'' if count == 1 else 's'} and waits for the next."
    )


def trouble(pod: Pod, main: Status) -> tuple[str, str]:
    """Returns what is wrong with a pod in phase Running; two empty strings if nothing is."""
    target = condition(pod, "DisruptionTarget")
    if target and target["status"] == "True":
        return "Disrupted", _DISRUPTIONS.get(target.get("reason") or "", target.get("message") or "")
    if pod["metadata"].get("deletionTimestamp"):
        return "Stopping", ""
    state = main.get("state", {})
    if "terminated" in state:
        if pod["spec"].get("restartPolicy") == "Always":
            return (
                "BackOff",
                f"Its program ended with exit code {state['terminated']['exitCode']} and is started again.",
            )
        return "Storing", "Its program has ended and its output is being stored."
    return _held_up(main) or ("", "")


def failure(pod: Pod, main: Status) -> tuple[str, str]:
    target = condition(pod, "DisruptionTarget")
    status = pod["status"]
    if target and target["status"] == "True":
        detail = _DISRUPTIONS.get(target.get("reason") or "") or target.get("message") or ""
        return "Disrupted", f"{detail} {status.get('message') or ''}".strip()
    ended = main.get("state", {}).get("terminated") or {}
    if ended.get("reason") == "OOMKilled":
        return "OOMKilled", f"It was ended because it used more than its memory, {_memory(pod)}."
    if status.get("reason") == "Evicted":
        return "Evicted", status.get("message") or "Its node ran short of memory or disk."
    if pod["metadata"].get("deletionTimestamp"):
        return "Stopped", "It was stopped."
    for init in status.get("initContainerStatuses") or []:
        failed = init.get("state", {}).get("terminated")
        if failed and failed["exitCode"] and not ended and init["name"] == environments.MAKE:
            return _not_made(failed)
        if failed and failed["exitCode"] and not ended:
            what = {
                code.FETCH_CODE: "The code could not be fetched",
                storage.FETCH: "The input could not be fetched",
                storage.DIVIDE: "The input could not be divided",
                storage.FOLDERS: "The folder of the run could not be made",
            }.get(init["name"], f"{init['name']} failed")
            return "Error", f"{what}: {(failed.get('message') or failed.get('reason') or '').strip()}"
    if not ended:
        # The node rejected it (OutOfcpu, UnexpectedAdmissionError, …) or gave it up.
        return "Error", f"{status.get('reason') or 'Unknown'}: {status.get('message') or 'no details'}"
    if ended.get("reason") not in (None, "Error", "Completed"):
        return "Error", f"{ended['reason']}: {(ended.get('message') or '').strip()}"
    return "Error", ""


def _memory(pod: Pod) -> str:
    limits = (
        next(each for each in pod["spec"]["containers"] if each["name"] == "task")
        .get("resources", {})
        .get("limits", {})
    )
    return str(limits.get("memory", "the node's"))


def unschedulable(pod: Pod, message: str) -> str:
    """Rewrites the scheduler's message for people; keeps unknown parts."""
    gpus = gpus_of(pod)
    model = (pod["spec"].get("nodeSelector") or {}).get(GPU_MODEL, "")
    what = (
        f"Waits for {gpus} {model + ' ' if model else ''}GPU{'' if gpus == 1 else 's'}" if gpus else "Waits for a node"
    )
    if "unbound immediate PersistentVolumeClaim" in message:
        return "Waits for its volume, which is not made yet."
    found = _NODES.search(message)
    if not found and "pod group is unschedulable" in message:
        return f"{what}. The tasks of its run get their nodes together, and not all of them find room."
    if not found:
        return f"{what}: {message.strip() or 'no details'}"
    total = int(found[1])
    told = re.findall(r"(\d+) ([^,]+(?:\{[^}]*\})?)(?:, |$)", found[2])
    if (str(total), f"Insufficient {DISK}") in told:
        # A resource that no node has enough of is what blocks the pod, even if others are missing, too.
        disk = f"{gib(asked_of(pod, DISK))} of a node's disk ({DISK})"
        what = f"{what} and {disk}" if (str(total), f"Insufficient {GPU}") in told else f"Waits for {disk}"
    parts = [_shortage(int(count), text, model) for count, text in told]
    return f"{what}. Of {total} node{'' if total == 1 else 's'}: {', '.join(parts) or found[2]}."


def waits_for_disk(pod: Pod, message: str, most: float) -> str:
    """Adds the missing amount to the sentence of a pod that lacks disk if no node offers that much. `most`: the largest offer."""
    asked = asked_of(pod, DISK)
    if most >= asked:
        return message
    has = f"The largest offers {gib(most)}, {gib(asked - most)} less" if most else "They offer none"
    return f"{message} {has}: it waits for ever. {DISK_ADVICE}"


def _shortage(count: int, text: str, model: str) -> str:
    text = text.strip()
    if "PersistentVolumeClaim" in text:
        return f"{count} without its volume"
    if "volume node affinity" in text or ("Volume" in text and "zone" in text.lower()):
        return f"{count} that cannot reach its volume"
    if text == f"Insufficient {GPU}":
        return f"{count} without enough free GPUs"
    if text.startswith("Insufficient "):
        return f"{count} without enough free {text.removeprefix('Insufficient ')}"
    if "node affinity/selector" in text:
        return f"{count} with other GPUs than {model}" if model else f"{count} that do not match"
    if "plugin(s) [NodeAffinity" in text:
        return f"{count} that the portal did not choose"
    if "unschedulable" in text:
        return f"{count} closed for new tasks"
    if "untolerated taint" in text:
        return f"{count} kept for others"
    return f"{count}: {text}"
