"""What a run in a Kueue queue asks for, what people are told of it, and what the portal owes Kueue. Without a cluster."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from clusters.clouds.drivers.base import CloudRefused
from clusters.clouds.drivers.kubernetes.render import manifests, queueing
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.drivers.kubernetes.watch.admission import Admissions, admission_of, cleared, duty
from clusters.clouds.drivers.kubernetes.watch.workloads import Workload
from tests.kube.kueue import condition
from tests.kube.plans import plan, role, run_ref

SETTINGS = Settings(portal="main", kueue_queue="gpus")
WAITS = "Waits in Kueue's queue “gpus” of namespace ops."


def rendered() -> tuple[Any, list[Any]]:
    whole = plan(role("master"), role("ps", restart="Always", gpus=0), role("worker", 3), run=run_ref("ops"))
    made = manifests.run_manifests(whole, "uid", SETTINGS)
    (draft,) = filter(queueing.is_draft, made)
    return draft, [each for each in made if queueing.is_ordered(each)]


@pytest.mark.parametrize(
    ("version", "priority"),
    [
        ("v1beta1", {"priorityClassName": "batch", "priorityClassSource": "scheduling.k8s.io/priorityclass"}),
        ("v1beta2", {"priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "batch"}}),
    ],
)
def test_one_workload_asks_for_all_roles_in_the_words_of_the_version(version: str, priority: Any) -> None:
    draft, roles = rendered()
    draft["spec"] |= {"priorityClass": "batch", "priority": 7}
    made = queueing.workload(draft, roles, version)
    assert made["apiVersion"] == f"kueue.x-k8s.io/{version}"
    sets = made["spec"].pop("podSets")
    assert made["spec"] == {"queueName": "gpus", "priority": 7, **priority}
    assert [(each["name"], each["count"]) for each in sets] == [("master", 1), ("ps", 1), ("worker", 3)]
    for pods, maker in zip(sets, roles, strict=True):
        assert pods["template"]["spec"] == maker["spec"]["template"]["spec"]
        assert set(pods["template"]["metadata"]) == {"labels"}, "Kueue knows no finalizers there"


def test_a_run_of_more_roles_than_kueue_takes_is_refused() -> None:
    many = plan(*(role(f"role{n}", gpus=0) for n in range(9)), run=run_ref("ops"))
    with pytest.raises(CloudRefused, match="has 9 roles, and Kueue"):
        manifests.check(many, SETTINGS)


def test_flavors_and_checks_add_to_the_templates_and_take_nothing_away() -> None:
    _, roles = rendered()
    worker = roles[2]
    worker["spec"]["template"]["spec"]["nodeSelector"] = {"model": "A100"}
    status = {
        "admission": {"podSetAssignments": [{"name": "worker", "flavors": {"cpu": "spot", "nvidia.com/gpu": "spot"}}]},
        "admissionChecks": [{"podSetUpdates": [{"name": "worker", "annotations": {"by": "check"}}, {"name": "ps"}]}],
    }
    taint = {"key": "spot", "operator": "Exists"}
    flavors = {"spot": {"spec": {"nodeLabels": {"kind": "spot"}, "tolerations": [taint]}}}
    made = queueing.let_go(worker, status, flavors)["spec"]["template"]
    assert made["spec"]["nodeSelector"] == {"model": "A100", "kind": "spot"}
    assert made["spec"]["tolerations"] == [*worker["spec"]["template"]["spec"]["tolerations"], taint]
    assert made["metadata"]["annotations"] == {"by": "check"}
    assert queueing.let_go(roles[0], status, flavors) == roles[0]


def asked(*conditions: tuple[str, str, str, str], **status: Any) -> Any:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "metadata": {"namespace": "ops", "name": "demo", "uid": "uid", "resourceVersion": "7"},
        "spec": {"queueName": "gpus", "podSets": [{"name": "worker", "count": 2}], **status.pop("spec", {})},
        "status": {"conditions": [condition(*each) for each in conditions], **status},
    }


def lacks(message: str) -> Any:
    return asked(("QuotaReserved", "False", "Pending", message))


NOW = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
AFTER = "after 2026-03-01 08:00:00 UTC."
TAKEN = ("Evicted", "True", "Preempted", "Preempted to accommodate a workload (UID: 3) due to prioritization")
HOLDS = ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue main")
LET_GO = ("Admitted", "True", "Admitted", "The workload is admitted")
SHORT = "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu in flavor a100, 4 more needed"


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        (asked(), WAITS),
        (lacks(SHORT), f"{WAITS} Of its quota there are too few free: 4 GPUs of “a100”."),
        (
            lacks(f"{SHORT}, insufficient unused quota for cpu in flavor a100, 500m more needed"),
            f"{WAITS} Of its quota there are too few free: 4 GPUs of “a100” and 500m cpu of “a100”.",
        ),
        (
            lacks(
                "couldn't assign flavors to pod set worker: insufficient quota for nvidia.com/gpu in flavor a100, previously "
                "considered podsets requests (0) + current podset request (16) > maximum capacity (8)"
            ),
            f"{WAITS} It cannot start: it asks for more GPUs than the 8 of “a100”.",
        ),
        (lacks("LocalQueue gpus doesn't exist"), f"{WAITS} There is no such queue in namespace ops."),
        (lacks("ClusterQueue main doesn't exist"), f"{WAITS} The ClusterQueue “main” behind it does not exist."),
        (lacks("ClusterQueue main is stopped"), f"{WAITS} The ClusterQueue “main” behind it is stopped."),
        (
            lacks("LocalQueue gpus is stopped"),
            f"{WAITS} An administrator of the Kubernetes cluster stopped the queue.",
        ),
        (lacks("something\n new"), f"{WAITS} Kueue says: something new"),
        (
            asked(HOLDS, admissionChecks=[{"name": "provisioning", "state": "Pending"}]),
            f"{WAITS} Its quota is kept for it; Kueue still checks: provisioning.",
        ),
        (
            asked(HOLDS, LET_GO, TAKEN),
            "Its tasks are being ended: its GPUs were taken back for a run that goes before it. Then it waits again.",
        ),
        (
            asked(TAKEN, ("QuotaReserved", "False", "Pending", TAKEN[3])),
            f"{WAITS} It ran before: its GPUs were taken back for a run that goes before it.",
        ),
        (
            asked(
                ("Evicted", "True", "PodsReadyTimeout", "Exceeded the PodsReady timeout"),
                requeueState={"requeueAt": "2026-03-01T08:00:00Z"},
            ),
            f"{WAITS} It ran before: not all of its tasks started in the time that Kueue gives. It is tried again {AFTER}",
        ),
    ],
)
def test_why_it_waits_is_told_in_the_words_of_people(workload: Any, sentence: str) -> None:
    why = admission_of(workload, 1).why
    assert why is not None
    assert why[1] == sentence
    for word in ("preempt", "workload", "cohort", "nominal", "podset"):
        assert word not in sentence.lower()


def test_what_kueue_was_told_not_to_start_says_how_it_is_let_go_again() -> None:
    off = ("Evicted", "True", "DeactivatedDueToRequeuingLimitExceeded", "The workload is deactivated")
    why = admission_of(asked(off, spec={"active": False}), 1).why
    assert why is not None
    assert "kubectl patch workloads.kueue.x-k8s.io -n ops demo --type merge" in why[1]
    assert why[0] == "TakenBack"
    # Set back since.
    again = admission_of(asked(off, spec={"active": True}), 1).why
    assert again is not None
    assert again[0] == "QueuedByKueue"


def test_its_place_in_the_queue_is_told() -> None:
    found = Admissions()
    found.note("ADDED", lacks(SHORT), 1)
    for before, told in (
        (0, "It is the next there."),
        (1, "1 other there is before it."),
        (3, "3 others there are before it."),
    ):
        found.before = {1: before}
        assert (found.why(1) or ("", ""))[1].endswith(told)


def maker(stop: Any, wanted: int = 2, version: int = 1) -> Workload:
    return Workload(1, "uid-w", "Job", "ops", "w", "worker", wanted, 0, False, None, "gpus", version, stop)


def test_reserved_quota_is_kept_until_the_last_task_has_ended() -> None:
    taken = admission_of(asked(HOLDS, LET_GO, TAKEN), 1)
    running, over = ("worker", 0, "Running", False), ("worker", 1, "Failed", True)
    assert duty(taken, [maker("done")], [running, over]) is None
    assert duty(taken, [maker("asked")], [over]) is None, "its controller may still make pods"
    assert duty(taken, [maker("")], []) is None
    assert duty(taken, [maker("done")], [over]) == "clear"
    after = {each["type"]: each["status"] for each in cleared(asked(HOLDS, LET_GO, TAKEN), NOW)}
    assert after == {"QuotaReserved": "False", "Admitted": "False", "Evicted": "True", "Requeued": "True"}
    stopped = asked(HOLDS, LET_GO, ("Evicted", "True", "ClusterQueueStopped", "The ClusterQueue is stopped"))
    assert {each["type"]: each["status"] for each in cleared(stopped, NOW)}["Requeued"] == "False"
    assert duty(admission_of(asked(TAKEN), 1), [maker("done")], [over]) is None, "cleared"


def test_that_all_tasks_run_is_said_once_all_do() -> None:
    gone = asked(HOLDS, LET_GO, admission={"podSetAssignments": []})
    tasks = [("worker", 0, "Succeeded", True), ("worker", 1, "Pending", False)]
    assert duty(admission_of(gone, 1), [maker("")], tasks) is None
    assert duty(admission_of(gone, 1), [maker("")], [tasks[0], ("worker", 1, "Running", False)]) == "ready"
    assert duty(admission_of(gone, 1), [maker("", wanted=1)], tasks) == "reclaim"


def test_what_is_not_as_kueue_decided_is_told_once_for_each_state() -> None:
    found = Admissions()
    assert not found.is_out_of_step(1, [maker("")]), "no Workload is known"
    found.note("ADDED", asked(), 1)
    assert not found.is_out_of_step(1, [maker("done")])
    assert found.is_out_of_step(1, [maker("", version=2)]), "somebody resumed it"
    assert not found.is_out_of_step(1, [maker("", version=2)])
    assert not found.is_out_of_step(1, [maker("asked", version=3)])
    found.note("MODIFIED", asked(HOLDS, LET_GO, admission={}), 1)
    found.note("MODIFIED", asked(HOLDS, LET_GO, admission={"clusterQueue": "main"}), 1)
    assert found.is_out_of_step(1, [maker("done", version=3)])
    assert not found.is_out_of_step(1, [maker("", version=4)])
    # A worker that was slow stops it again.
    assert found.is_out_of_step(1, [maker("asked", version=5)])
