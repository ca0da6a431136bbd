"""Interprets the Workload by which a run waits in a Kueue queue: whether Kueue lets the run go, why not, and what the portal owes
Kueue. Pure, but for the records of the mirror.

Kueue reserves quota for a Workload, and admits it once its checks are done. It takes it back by the condition Evicted; what was
reserved stays reserved until the portal has ended all tasks and clears it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.render.queueing import GROUP, condition
from clusters.clouds.drivers.kubernetes.settings import GPU
from clusters.clouds.drivers.kubernetes.watch.workloads import QUEUED, Why, Workload, in_queue

Object = Mapping[str, Any]
Duty = Literal["clear", "ready", "reclaim"]

TAKEN_BACK = "TakenBack"
# Reasons of an eviction after which Kueue expects the Workload back in its queue at once.
_AT_ONCE = frozenset({"Preempted", "NodeFailures"})
_TAKEN = {
    "Preempted": "its GPUs were taken back for a run that goes before it",
    "PodsReadyTimeout": "not all of its tasks started in the time that Kueue gives",
    "AdmissionCheck": "a check of Kueue took it back",
    "ClusterQueueStopped": "an administrator of the Kubernetes cluster stopped the queue",
    "LocalQueueStopped": "an administrator of the Kubernetes cluster stopped the queue",
    "NodeFailures": "a node of it failed",
}
_OFF = "Deactivated"
_LACKS = re.compile(r"insufficient (?:unused )?quota(?: in cohort)? for (\S+) in flavor (\S+), (\S+) more needed")
_TOO_MUCH = re.compile(r"insufficient quota for (\S+) in flavor (\S+),.*?> maximum capacity \(([^)]*)\)")
_NO_LOCAL = re.compile(r"(?i)localqueue (?:(\S+) )?doesn't exist")
_BEHIND = re.compile(r"(?i)clusterqueue (\S+) (doesn't exist|is inactive|is stopped)")
_HELD = re.compile(r"(?i)localqueue (\S+) is (?:inactive|stopped)")
_STATES = {"doesn't exist": "does not exist", "is inactive": "takes nothing at the moment", "is stopped": "is stopped"}


@dataclass(frozen=True)
class Admission:
    """A run's Workload. `let_go`: its pods may run. `reserved`: it holds quota. `evicted`: why it is taken back, "" if it is not.
    `counts`, `done`: pods of each role, and how many of them were said to be done for good. `ready`: said to run."""

    run_id: int
    namespace: str
    name: str
    queue: str
    let_go: bool
    reserved: bool
    evicted: str
    over: bool
    ready: bool
    counts: Mapping[str, int]
    done: Mapping[str, int]
    why: Why | None
    workload: Object = field(compare=False)


def run_of(workload: Object) -> int | None:
    """Returns the run of a Workload; None for those that Kueue made for objects of a run itself."""
    metadata = workload["metadata"]
    owners = metadata.get("ownerReferences") or []
    if owners and not any(each["kind"] == "ConfigMap" for each in owners):
        return None
    return names.run_id_of(metadata.get("labels") or {})


def is_over(workload: Object) -> bool:
    return _is(workload, "Finished")


def is_let_go(workload: Object) -> bool:
    held = is_over(workload) or _is(workload, "Evicted") or "deletionTimestamp" in workload["metadata"]
    return _is(workload, "Admitted") and not held and bool((workload.get("status") or {}).get("admission"))


def admission_of(workload: Object, run_id: int) -> Admission:
    metadata, spec, status = workload["metadata"], workload["spec"], workload.get("status") or {}
    evicted = _condition(workload, "Evicted") if _is(workload, "Evicted") else {}
    kept = ("namespace", "name", "uid", "resourceVersion", "generation")
    return Admission(
        run_id=run_id,
        namespace=metadata["namespace"],
        name=metadata["name"],
        queue=spec.get("queueName", ""),
        let_go=is_let_go(workload),
        reserved=_is(workload, "QuotaReserved"),
        evicted=(evicted.get("reason") or "Evicted") if evicted else "",
        over=is_over(workload),
        ready=_is(workload, "PodsReady"),
        counts={each["name"]: int(each.get("count", 1)) for each in spec["podSets"]},
        done={each["name"]: int(each["count"]) for each in status.get("reclaimablePods") or [] if each["count"]},
        why=None if is_let_go(workload) else _why(workload),
        workload={
            "apiVersion": workload["apiVersion"],
            "metadata": {name: metadata[name] for name in kept if name in metadata},
            "status": {"conditions": status.get("conditions") or []},
        },
    )


def cleared(workload: Object, at: dt.datetime) -> list[Object]:
    """Returns the conditions of an evicted Workload that holds nothing any more, as Kueue wants them to be."""
    evicted = _condition(workload, "Evicted")
    reason, message = evicted.get("reason") or "Evicted", evicted.get("message") or ""
    again = "True" if reason in _AT_ONCE else "False"
    changed = [
        condition("Requeued", again, reason, message, at),
        condition("QuotaReserved", "False", "Pending", message, at),
        condition("Admitted", "False", "NoReservation", "The workload has no reservation", at),
    ]
    if _condition(workload, "PodsReady"):
        changed.append(condition("PodsReady", "False", "WaitForStart", "Not all tasks of the run are running.", at))
    types = {each["type"] for each in changed}
    kept = [each for each in workload["status"]["conditions"] if each["type"] not in types]
    return [*kept, *changed]


def _why(workload: Object) -> Why:
    metadata, spec = workload["metadata"], workload["spec"]
    waits = in_queue(spec.get("queueName", ""), metadata["namespace"])
    if not _is(workload, "Evicted"):
        return QUEUED, f"{waits} {_lacks(workload)}".strip()
    reason = _condition(workload, "Evicted").get("reason") or ""
    if reason.startswith(_OFF) and spec.get("active") is not False:
        reason = ""  # Somebody has set it back since.
    if reason.startswith(_OFF):
        path = f"-n {metadata['namespace']} {metadata['name']}"
        return TAKEN_BACK, (
            "Kueue was told not to start it, or gave it up after too many tries. An administrator of the Kubernetes cluster lets "
            f"it wait again: kubectl patch workloads.{GROUP} {path} --type merge -p "
            '\'{"spec":{"active":true}}\''
        )
    said = _condition(workload, "Evicted").get("message") or "Kueue took it back"
    cause = _TAKEN.get(reason, said).strip().rstrip(".")
    if _is(workload, "QuotaReserved"):
        return TAKEN_BACK, f"Its tasks are being ended: {cause}. Then it waits again."
    again = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt", "")
    later = f" It is tried again after {again.replace('T', ' ').removesuffix('Z')} UTC." if again else ""
    return QUEUED, f"{waits} It ran before: {cause}.{later} {_lacks(workload)}".strip()


def _lacks(workload: Object) -> str:
    """Returns what Kueue says that it waits for."""
    if _is(workload, "QuotaReserved"):
        checks = (workload.get("status") or {}).get("admissionChecks") or []
        left = ", ".join(each["name"] for each in checks if each.get("state") != "Ready")
        return f"Its quota is kept for it; Kueue still checks: {left}." if left else "Its quota is kept for it."
    reserved = _condition(workload, "QuotaReserved")
    text = (reserved.get("message") or "") if not _is(workload, "Evicted") else _after_eviction(workload, reserved)
    if not text:
        return ""
    if found := _TOO_MUCH.findall(text):
        parts = (f"it asks for more {_unit(what)} than the {most} of “{flavor}”" for what, flavor, most in found)
        return f"It cannot start: {', '.join(dict.fromkeys(parts))}."
    if found := _LACKS.findall(text):
        parts = (f"{count} {_unit(what)} of “{flavor}”" for what, flavor, count in found)
        return f"Of its quota there are too few free: {' and '.join(dict.fromkeys(parts))}."
    if _NO_LOCAL.search(text):
        return f"There is no such queue in namespace {workload['metadata']['namespace']}."
    if found := _BEHIND.findall(text):
        return f"The ClusterQueue “{found[0][0]}” behind it {_STATES[found[0][1].lower()]}."
    if _HELD.search(text):
        return "An administrator of the Kubernetes cluster stopped the queue."
    return f"Kueue says: {' '.join(text.split())}"


def _after_eviction(workload: Object, reserved: Object) -> str:
    """Returns what Kueue said since the eviction: at first the condition repeats the eviction's message."""
    text = str(reserved.get("message") or "")
    return "" if text == (_condition(workload, "Evicted").get("message") or "") else text


def _unit(resource: str) -> str:
    return "GPUs" if resource == GPU else resource


def _condition(workload: Object, kind: str) -> Object:
    found = ((workload.get("status") or {}).get("conditions")) or []
    return next((each for each in found if each["type"] == kind), {})


def _is(workload: Object, kind: str) -> bool:
    return _condition(workload, kind).get("status") == "True"


class Admissions:
    """The Workloads of runs, by run."""

    def __init__(self) -> None:
        self.of: dict[int, Admission] = {}
        # How many are before each run in its queue, where Kueue tells.
        self.before: dict[int, int] = {}
        # What was told to be not as Kueue decided: the objects of a run, each with the version of its spec.
        self._told: dict[int, set[tuple[bool, str, int]]] = {}

    def note(self, kind: str, workload: Object, run_id: int) -> None:
        if kind != "DELETED":
            self.of[run_id] = admission_of(workload, run_id)
            return
        known = self.of.get(run_id)
        if known and known.workload["metadata"]["uid"] == workload["metadata"]["uid"]:
            del self.of[run_id]

    def forget(self, run_id: int) -> None:
        for kept in (self.of, self.before, self._told):
            kept.pop(run_id, None)

    def why(self, run_id: int) -> Why | None:
        """Returns why the run waits in its queue, and its place there."""
        found = self.of.get(run_id)
        if found is None or found.why is None:
            return None
        reason, sentence = found.why
        if reason != QUEUED or found.reserved or (before := self.before.get(run_id)) is None:
            return found.why
        others = f"{before} other{'s'[: before != 1]} there {'is' if before == 1 else 'are'} before it."
        return reason, f"{sentence} {others if before else 'It is the next there.'}"

    def is_let_go(self, run_id: int) -> bool:
        found = self.of.get(run_id)
        return found is not None and found.let_go

    def is_out_of_step(self, run_id: int, makers: Iterable[Workload]) -> bool:
        """Returns whether something of the run is stopped that Kueue has let go, or the reverse, and that is news."""
        found = self.of.get(run_id)
        if found is None:
            return False
        wrong = {
            (found.let_go, each.uid, each.version)
            for each in makers
            if each.queue and not each.leaving and bool(each.stop) == found.let_go
        }
        is_news = not wrong <= self._told.get(run_id, set())
        self._told[run_id] = wrong
        return is_news

    def waiting(self) -> dict[tuple[str, str], list[Admission]]:
        """Returns the runs that wait, by namespace and queue."""
        found: dict[tuple[str, str], list[Admission]] = {}
        for each in self.of.values():
            if not (each.reserved or each.over):
                found.setdefault((each.namespace, each.queue), []).append(each)
        return found


def duty(found: Admission, makers: Sequence[Workload], pods: Sequence[tuple[str, int, str, bool]]) -> Duty | None:
    """Returns what the portal owes Kueue now. `pods`: role, index, phase, and whether nothing of it runs any more."""
    if found.over:
        return None
    if found.evicted:
        ended = all(over for *_, over in pods) and all(each.stop == "done" for each in makers)
        return "clear" if found.reserved and ended else None
    if not found.let_go:
        return None
    if reclaimable(found, makers) != found.done:
        return "reclaim"
    if not found.ready:
        runs = {(role, index) for role, index, phase, _ in pods if phase in ("Running", "Succeeded")}
        return "ready" if len(runs) >= sum(found.counts.values()) else None
    return None


def reclaimable(found: Admission, makers: Sequence[Workload]) -> dict[str, int]:
    """Returns how many pods of each role are done for good; never fewer than were said before."""
    left = {each.role: each.wanted for each in makers if each.kind == "Job"}
    done = {role: max(count - left.get(role, count), found.done.get(role, 0)) for role, count in found.counts.items()}
    return {role: count for role, count in done.items() if count > 0}
