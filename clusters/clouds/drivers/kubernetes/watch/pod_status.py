"""Interprets a pod's JSON as `base.TaskSeen`: one pod is one attempt of one task. Pure.

A Job's pod never restarts, so its end is the attempt's end. A pod of a Deployment or StatefulSet keeps its GPUs while its
program is restarted inside; it shows as Running with the reason BackOff. The attempt is the number of earlier failures and
disruptions of its index, which the Job controller writes on the pod; `attempts` counts the pods of services, and `upkeep` writes
their number.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from clusters.clouds.drivers.base import StorageSeen, StorageState, TaskPhase, TaskSeen
from clusters.clouds.drivers.kubernetes.render import code, endpoints, names, storage
from clusters.clouds.drivers.kubernetes.watch import reasons

Pod = Mapping[str, Any]

_INDEX_LABELS = ("batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index")
_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_BREAKS = "batch.kubernetes.io/job-index-ignored-failure-count"
LOG_TAIL = 4096
_READ = re.compile(r"^read ([0-9a-f]{64}) ([0-9]{1,12}) ([0-9]{1,18})$", re.MULTILINE)


def task_seen(pod: Pod, *, gpu_model: str = "", vanished_at: dt.datetime | None = None) -> TaskSeen | None:
    """Returns the state of one pod; None for a pod without our labels. `gpu_model`: of its node.

    `vanished_at`: when the API server no longer had the pod. If it had not ended by then, its end was not observed.
    """
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    run_id = names.run_id_of(labels)
    if run_id is None or names.ROLE not in labels:
        return None
    phase, reason, message = _phase(pod, vanished=vanished_at is not None)
    main = _main(pod)
    ended = _terminated(main)
    scheduled_at = _condition_time(pod, "PodScheduled") if pod["spec"].get("nodeName") else None
    finished_at, estimated = None, False
    if phase in ("Succeeded", "Failed") and scheduled_at:
        finished_at, estimated = _end(pod, vanished_at)
    return TaskSeen(
        run_id=run_id,
        role=labels[names.ROLE],
        index=index_of(pod),
        attempt=attempt_of(pod),
        uid=metadata["uid"],
        phase=phase,
        reason=reason,
        message=message,
        node=pod["spec"].get("nodeName") or "",
        gpu_model=gpu_model if reasons.gpus_of(pod) else "",
        scheduled_at=scheduled_at,
        began_at=_began(pod),
        started_at=_time((main.get("state", {}).get("running") or ended or {}).get("startedAt")),
        finished_at=finished_at,
        exit_code=ended["exitCode"] if ended and phase in ("Succeeded", "Failed") else None,
        disrupted=phase == "Failed" and (is_disrupted(pod) or not is_of_job(pod)),
        estimated=estimated,
        log_tail=_log_tail(pod, phase),
    )


def index_of(pod: Pod) -> int:
    """Returns the task's index. Labels may be removed by hand, so it also reads other places where controllers keep it."""
    metadata = pod["metadata"]
    marks = (metadata.get("labels") or {}) | (metadata.get("annotations") or {})
    index = next((marks[name] for name in _INDEX_LABELS if name in marks), None)
    if index is None and any(each["kind"] == "StatefulSet" for each in metadata.get("ownerReferences") or []):
        index = metadata["name"].rpartition("-")[2]
    return _number(index)


def attempt_of(pod: Pod) -> int:
    annotations = pod["metadata"].get("annotations") or {}
    return sum(_number(annotations.get(name)) for name in (_FAILURES, _BREAKS, names.ATTEMPT))


def _number(text: str | None) -> int:
    """Parses a value that people may have edited; 0 if invalid."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0


def age(pod: Pod) -> tuple[str, bool]:
    """A sort key: a service task's oldest pod first. Times are whole seconds; at a tie the ending pod is older."""
    alive = "deletionTimestamp" not in pod["metadata"] and not is_over(pod)
    return pod["metadata"]["creationTimestamp"], alive


def serves(pod: Pod) -> dict[str, str | None]:
    """Returns the pod's endpoints by name: None while not ready (when the gateway does not route to it either), else the pod's
    own address for endpoints without an origin, "" for those with one. A Host header in the probe indicates an origin."""
    task: Mapping[str, Any] = next((each for each in pod["spec"]["containers"] if each["name"] == "task"), {})
    beside = pod["spec"].get("initContainers") or []
    led: Mapping[str, Any] = next((each for each in beside if each["name"] == endpoints.ENTRANCE), {})
    probe = (task.get("readinessProbe") or {}).get("httpGet") or {}
    address = "" if probe.get("httpHeaders") else pod["status"].get("podIP") or ""
    host = f"[{address}]" if ":" in address else address
    ready = reasons.condition(pod, "Ready")
    is_ready = ready is not None and ready["status"] == "True" and "deletionTimestamp" not in pod["metadata"]
    ports = led.get("ports") or []
    return {each["name"]: (f"{host}:{each['containerPort']}" if host else "") if is_ready else None for each in ports}


def is_of_job(pod: Pod) -> bool:
    """Returns whether the Job controller counts its attempts. Other pods belong to services and end only by outside action, so
    their end is never a failure of their program."""
    return _FAILURES in (pod["metadata"].get("annotations") or {})


def is_disrupted(pod: Pod) -> bool:
    """Returns exactly what the Job's podFailurePolicy ignores, so that Kubernetes and the portal count the same failures."""
    condition = reasons.condition(pod, "DisruptionTarget")
    return condition is not None and condition["status"] == "True"


def is_over(pod: Pod) -> bool:
    """Returns whether nothing of the pod runs or can run any more."""
    return pod["status"].get("phase") in ("Succeeded", "Failed") or _never_runs(pod)


def _never_runs(pod: Pod) -> bool:
    """Returns whether it was deleted before it had a node, so that no kubelet will ever end it."""
    return bool(pod["metadata"].get("deletionTimestamp")) and not pod["spec"].get("nodeName")


def _phase(pod: Pod, *, vanished: bool) -> tuple[TaskPhase, str, str]:
    phase = pod["status"].get("phase")
    if phase == "Succeeded":
        return "Succeeded", "", ""
    if phase == "Failed":
        return "Failed", *reasons.failure(pod, _main(pod))
    if _never_runs(pod):
        return "Failed", "Stopped", "It was stopped before it started."
    if vanished:
        return "Failed", "Lost", "It disappeared without a trace of its end."
    if phase == "Running":
        return "Running", *reasons.trouble(pod, _main(pod))
    return "Pending", *reasons.waiting(pod, _main(pod))


def _end(pod: Pod, vanished_at: dt.datetime | None) -> tuple[dt.datetime | None, bool]:
    """Returns when the last container ended, and whether that is an estimate. Deletion is never the end."""
    seen = [time for status in statuses(pod) if (time := _time((_terminated(status) or {}).get("finishedAt")))]
    if seen and pod["status"].get("phase") in ("Succeeded", "Failed"):
        return max(seen), False
    if not seen and not any(_started(status) for status in statuses(pod)) and not vanished_at:
        # No container ever started: the GPUs were free when the node rejected the pod.
        times = [_time(each.get("lastTransitionTime")) for each in pod["status"].get("conditions") or []]
        return max((time for time in times if time), default=_condition_time(pod, "PodScheduled")), True
    ready, containers = reasons.condition(pod, "Ready"), reasons.condition(pod, "ContainersReady")
    if ready and containers and (ready["status"], containers["status"]) == ("False", "True"):
        # Only the node controller sets this combination, for a node that stopped reporting.
        return max(
            [time for time in (_time(ready.get("lastTransitionTime")), *seen) if time], default=vanished_at
        ), True
    lost = [_condition_time(pod, kind) for kind in ("DisruptionTarget", "Ready", "ContainersReady")]
    return vanished_at or max((time for time in [*lost, *seen] if time), default=None), True


def not_after(heard: dt.datetime, seen: TaskSeen) -> TaskSeen:
    """Moves an unobserved end back to `heard`, when the node last reported: unobserved time is not billed."""
    if not (seen.estimated and seen.finished_at and seen.finished_at > heard):
        return seen
    times = [each for each in (seen.scheduled_at, seen.began_at, seen.started_at, heard) if each]
    return replace(seen, finished_at=min(seen.finished_at, max(times)))


def _started(status: Mapping[str, Any]) -> bool:
    return bool(status.get("state", {}).get("running") or _terminated(status))


def statuses(pod: Pod) -> Iterator[Mapping[str, Any]]:
    yield from pod["status"].get("initContainerStatuses") or []
    yield from pod["status"].get("containerStatuses") or []


def _began(pod: Pod) -> dt.datetime | None:
    """Returns when the program first ran, as far as this event shows (after restarts: its last two starts). Billing begins here,
    because fetching data is free, as on the local cloud."""
    main = _main(pod)
    states = [main.get("state", {}), main.get("lastState", {})]
    times = [_time((state.get("running") or state.get("terminated") or {}).get("startedAt")) for state in states]
    return min((time for time in times if time), default=None)


def _main(pod: Pod) -> Mapping[str, Any]:
    found = (each for each in pod["status"].get("containerStatuses") or [] if each["name"] == "task")
    return next(found, {})


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    ended: Mapping[str, Any] | None = status.get("state", {}).get("terminated")
    return ended


def _log_tail(pod: Pod, phase: str) -> str:
    if phase != "Failed":
        return ""
    for status in [_main(pod), *statuses(pod)]:
        ended = _terminated(status)
        if ended and ended["exitCode"] and ended.get("message"):
            return str(ended["message"]).encode()[-LOG_TAIL:].decode(errors="ignore")
    return ""


def _condition_time(pod: Pod, kind: str) -> dt.datetime | None:
    condition = reasons.condition(pod, kind)
    return _time(condition.get("lastTransitionTime")) if condition else None


def _time(text: str | None) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None


def storage_seen(pod: Pod) -> StorageSeen | None:
    """Returns the state of this pod's data; None if it has none to copy."""
    run_id = names.run_id_of(pod["metadata"].get("labels") or {})
    containers = {each["name"] for each in pod["spec"].get("initContainers") or []}
    if run_id is None:
        return None
    found = {each["name"]: each for each in pod["status"].get("initContainerStatuses") or []}
    got = _terminated(found.get(code.FETCH_CODE, {}))
    if got and got["exitCode"] == storage.REFUSED:
        return StorageSeen(run_id, "refused", (got.get("message") or "").strip() or "The code could not be fetched.")
    if not containers & {storage.FETCH, storage.STORE}:
        return None
    fetch, store = found.get(storage.FETCH, {}), found.get(storage.STORE, {})
    fetched, stored = _terminated(fetch), _terminated(store)
    if fetched and fetched["exitCode"]:
        state: StorageState = "refused" if fetched["exitCode"] == storage.REFUSED else "failed"
        return StorageSeen(run_id, state, (fetched.get("message") or "").strip() or "The input could not be fetched.")
    if stored and stored["exitCode"]:
        return StorageSeen(run_id, "failed", (stored.get("message") or "").strip() or "The output could not be stored.")
    if not fetched:
        has_begun = "running" in fetch.get("state", {}) or fetch.get("restartCount")
        # Before that it waits for a node.
        return StorageSeen(run_id, "fetching") if has_begun else None
    said = fetched.get("message") or ""
    left = ((stored or {}).get("message") or "").strip()
    warning = " ".join(each for each in (_empty_input(pod, said), left) if each)
    seen = StorageSeen(run_id, "ready", warning=warning, **_read(said))
    if stored or is_over(pod):
        return replace(seen, state="stored" if stored else "ready")
    if _fails_to_store(pod, store):
        return replace(seen, state="failed", message="The output cannot be stored at the moment; it is tried again.")
    ending = storage.STORE in containers and _terminated(_main(pod))
    return replace(seen, state="storing" if ending else "ready")


def _read(said: str) -> dict[str, Any]:
    """Parses docker/rclone/fetch's message about the copied input, for a StorageSeen."""
    found = _READ.search(said)
    return {"digest": found[1], "files": int(found[2]), "bytes": int(found[3])} if found else {}


def _empty_input(pod: Pod, said: str) -> str:
    """Returns a warning about input without files. `said`: paths that docker/rclone/fetch found empty; output may be empty."""
    mounts = next((each.get("volumeMounts") or [] for each in pod["spec"]["containers"] if each["name"] == "task"), [])
    inputs = {each["mountPath"] for each in mounts if each.get("readOnly")}
    empty = next((path for path in said.splitlines() if path in inputs), "")
    if not empty:
        return ""
    fetch = next(each for each in pod["spec"]["initContainers"] if each["name"] == storage.FETCH)
    return f"The input is empty: there is nothing in {storage.fetched_from(fetch, empty)}."


def _fails_to_store(pod: Pod, store: Mapping[str, Any]) -> bool:
    """Returns whether the storing container lost its readiness while the task runs: see its readiness probe."""
    running = store.get("state", {}).get("running")
    if not running or store.get("ready") or "running" not in _main(pod).get("state", {}):
        return False
    since, started = _condition_time(pod, "Ready"), _time(running.get("startedAt"))
    return since is not None and started is not None and since > started
