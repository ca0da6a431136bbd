"""The meaning of a pod's status, for statuses as kubelet, scheduler and controllers write them."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import pytest

from clusters.clouds.drivers.base import RunBlocked, RunChanged, RunFound, RunGone, RunRef, StorageSeen, TaskSeen
from clusters.clouds.drivers.kubernetes.settings import quantity
from clusters.clouds.drivers.kubernetes.watch.absent import PATIENCE
from clusters.clouds.drivers.kubernetes.watch.capacity import node_of
from clusters.clouds.drivers.kubernetes.watch.event_warnings import EVENT_AGE
from clusters.clouds.drivers.kubernetes.watch.mirror import Mirror
from clusters.clouds.drivers.kubernetes.watch.pod_status import storage_seen, task_seen
from clusters.clouds.drivers.kubernetes.watch.workloads import refusal

MORNING = dt.datetime(2026, 3, 1, 8, 0, 0, tzinfo=dt.UTC)
POD: dict[str, Any] = {
    "metadata": {
        "name": "demo-mnist-3-1042-worker-7-x2x4z",
        "namespace": "ops",
        "uid": "uid-1",
        "creationTimestamp": "2026-03-01T08:00:00Z",
        "labels": {
            "gpu-cloud/run-id": "1042",
            "gpu-cloud/role": "worker",
            "batch.kubernetes.io/job-completion-index": "7",
        },
        "annotations": {"batch.kubernetes.io/job-index-failure-count": "0"},
    },
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {"name": "task", "resources": {"limits": {"cpu": "1", "memory": "512Mi", "nvidia.com/gpu": "2"}}}
        ],
    },
    "status": {"phase": "Pending"},
}
RUNNING = {"running": {"startedAt": "2026-03-01T08:00:05Z"}}


def at(second: int) -> str:
    return f"2026-03-01T08:00:{second:02}Z"


def time(second: int) -> dt.datetime:
    return MORNING + dt.timedelta(seconds=second)


def terminated(code: int, **more: Any) -> dict[str, Any]:
    reason = "Error" if code else "Completed"
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": at(5), "finishedAt": at(30), **more}}


def pod(phase: str = "Pending", *, node: str = "node-1", state: Any = None, metadata: Any = None, **status: Any) -> Any:
    made = copy.deepcopy(POD)
    made["metadata"] |= metadata or {}
    conditions = []
    if node:
        made["spec"]["nodeName"] = node
        conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": at(2)})
    made["status"] = {"phase": phase, "conditions": conditions + status.pop("conditions", []), **status}
    if state is not None:
        made["status"]["containerStatuses"] = [
            {"name": "task", "image": "example/tf:1", "restartCount": 0, "state": state}
        ]
    return made


def seen(*arguments: Any, **named: Any) -> TaskSeen:
    found = task_seen(pod(*arguments, **named), gpu_model="A100")
    assert found is not None
    return found


def unschedulable(message: str, **selector: str) -> str:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    made = pod(node="", conditions=[condition])
    made["spec"]["nodeSelector"] = selector
    found = task_seen(made)
    assert found is not None
    assert (found.phase, found.reason, found.scheduled_at) == ("Pending", "Unschedulable", None)
    return found.message


def test_a_running_task() -> None:
    assert seen("Running", state=RUNNING) == TaskSeen(
        run_id=1042,
        role="worker",
        index=7,
        attempt=0,
        uid="uid-1",
        phase="Running",
        node="node-1",
        gpu_model="A100",
        scheduled_at=time(2),
        began_at=time(5),
        started_at=time(5),
    )


def test_a_succeeded_task_ends_with_its_last_container() -> None:
    sidecar = {"name": "store", "state": terminated(0, finishedAt=at(41))}
    found = seen("Succeeded", state=terminated(0), initContainerStatuses=[sidecar])
    assert (found.phase, found.exit_code, found.finished_at, found.estimated) == ("Succeeded", 0, time(41), False)


def test_a_task_is_billed_from_the_start_of_its_program() -> None:
    """Fetching an image or data costs nothing; a restarted program was billed before."""
    fetch = {"name": "fetch", "state": {"running": {"startedAt": at(3)}}}
    found = seen("Pending", initContainerStatuses=[fetch])
    assert (found.scheduled_at, found.began_at, found.started_at) == (time(2), None, None)
    assert seen("Pending").began_at is None
    done = {"name": "fetch", "state": terminated(0, startedAt=at(3), finishedAt=at(4))}
    assert seen("Running", state=RUNNING, initContainerStatuses=[done]).began_at == time(5)
    again = {"name": "task", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": terminated(1)}
    assert seen("Running", initContainerStatuses=[done], containerStatuses=[again]).began_at == time(5)


def test_a_failed_task_brings_its_last_lines() -> None:
    found = seen("Failed", state=terminated(3, message="Traceback\nValueError: no data\n"))
    assert (found.phase, found.reason, found.exit_code, found.disrupted) == ("Failed", "Error", 3, False)
    assert (found.started_at, found.finished_at) == (time(5), time(30))
    assert found.log_tail.endswith("ValueError: no data\n")


def test_out_of_memory_names_the_limit() -> None:
    found = seen("Failed", state=terminated(137, reason="OOMKilled"))
    assert (found.reason, found.exit_code) == ("OOMKilled", 137)
    assert found.message == "It was ended because it used more than its memory, 512Mi."


def test_an_eviction_for_lack_of_memory_is_the_clouds_fault() -> None:
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "lastTransitionTime": at(29),
    }
    found = seen("Failed", state=terminated(137), conditions=[target], reason="Evicted", message="Low on memory.")
    assert (found.reason, found.disrupted) == ("Disrupted", True)
    assert found.message == "Its node ran short of memory or disk, or was shut down. Low on memory."


def test_a_pod_of_a_lost_node_has_an_estimated_end() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "lastTransitionTime": at(50)}
    found = seen("Failed", state=RUNNING, conditions=[target])
    assert (found.reason, found.message, found.disrupted) == ("Disrupted", "Its node is gone.", True)
    assert (found.finished_at, found.estimated, found.exit_code) == (time(50), True, None)


def test_a_pod_that_vanished_ends_when_that_was_seen() -> None:
    found = task_seen(pod("Running", state=RUNNING), vanished_at=time(59))
    assert found
    assert (found.phase, found.reason, found.finished_at, found.estimated) == ("Failed", "Lost", time(59), True)


def test_a_pod_deleted_while_it_waited_held_nothing() -> None:
    found = seen(node="", metadata={"deletionTimestamp": at(9)})
    assert (found.phase, found.reason, found.scheduled_at, found.finished_at) == ("Failed", "Stopped", None, None)


def test_a_node_that_turns_a_pod_away_is_not_metered_for_long() -> None:
    found = seen("Failed", reason="UnexpectedAdmissionError", message="Allocate failed due to no healthy devices")
    assert (found.reason, found.finished_at, found.estimated) == ("Error", time(2), True)
    assert found.message == "UnexpectedAdmissionError: Allocate failed due to no healthy devices"


def test_attempts_count_failures_and_disruptions() -> None:
    counts = {
        "batch.kubernetes.io/job-index-failure-count": "2",
        "batch.kubernetes.io/job-index-ignored-failure-count": "1",
    }
    assert seen("Running", state=RUNNING, metadata={"annotations": counts}).attempt == 3


def test_the_scheduler_s_sentence_becomes_one_for_people() -> None:
    assert unschedulable(
        "0/13 nodes are available: 10 Insufficient nvidia.com/gpu, 2 Insufficient cpu, 1 node(s) were unschedulable. "
        "preemption: 0/13 nodes are available: 13 No preemption victims found for incoming pod."
    ) == (
        "Waits for 2 GPUs. Of 13 nodes: 10 without enough free GPUs, 2 without enough free cpu, 1 closed for new tasks."
    )
    assert (
        unschedulable(
            "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector.",
            **{"nvidia.com/gpu.product": "H200"},
        )
        == "Waits for 2 H200 GPUs. Of 2 nodes: 1 without enough free GPUs, 1 with other GPUs than H200."
    )
    assert (
        unschedulable(
            "0/9 nodes are available: 1 Insufficient nvidia.com/gpu, 8 node(s) didn't satisfy plugin(s) [NodeAffinity]. none"
        )
        == "Waits for 2 GPUs. Of 9 nodes: 1 without enough free GPUs, 8 that the portal did not choose."
    )
    assert (
        unschedulable("0/1 nodes are available: 1 node(s) had untolerated taint {team: other}. preemption: none")
        == "Waits for 2 GPUs. Of 1 node: 1 kept for others."
    )
    assert (
        unschedulable("no nodes available to schedule pods") == "Waits for 2 GPUs: no nodes available to schedule pods"
    )


def reserving(*requests: str, message: str) -> dict[str, Any]:
    """A waiting pod with GPUs and one container for each of these disk sizes."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    made: dict[str, Any] = pod(node="", conditions=[condition])
    (first,) = made["spec"]["containers"]
    asked = [{"ephemeral-storage": size} for size in requests]
    made["spec"]["containers"] = [first | {"resources": {**first["resources"], "requests": asked[0]}}]
    beside = [{"name": "store", "restartPolicy": "Always", "resources": {"requests": each}} for each in asked[1:]]
    made["spec"]["initContainers"] = [
        {"name": "fetch", "resources": {"requests": {"ephemeral-storage": "1Gi"}}},
        *beside,
    ]
    return made


def test_who_waits_for_the_disk_of_nodes_says_so_and_who_mends_it() -> None:
    """It must not report GPUs, which are free."""
    message = "0/2 nodes are available: 2 Insufficient ephemeral-storage. preemption: 0/2 nodes are available"

    def told(offered: Any, *asked: str, message: str = message) -> str:
        mirror = Mirror(reserved_disk=2**30)
        for number in range(2):
            allocatable = {"nvidia.com/gpu": "8", "cpu": "96", "memory": "768Gi", **offered}
            status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
            mirror.note_node("ADDED", {"metadata": {"name": f"node-{number}"}, "spec": {}, "status": status})
        seen, *_ = mirror.note_pod("ADDED", reserving(*asked, message=message), MORNING)
        assert isinstance(seen, TaskSeen)
        return seen.message

    advice = (
        "An administrator gives nodes disk for pods, or sets “Reserved disk of a task” of this Kubernetes cluster to 0."
    )
    waits = "Waits for 2 GiB of a node's disk (ephemeral-storage). Of 2 nodes: 2 without enough free ephemeral-storage."
    assert told({}, "1Gi", "1Gi") == f"{waits} They offer none: it waits for ever. {advice}"
    assert (
        told({"ephemeral-storage": "1536Mi"}, "1Gi", "1Gi")
        == f"{waits} The largest offers 1.5 GiB, 0.5 GiB less: it waits for ever. {advice}"
    )
    # Other pods use it.
    assert told({"ephemeral-storage": "1Ti"}, "1Gi", "1Gi") == waits
    both = "0/2 nodes are available: 1 Insufficient ephemeral-storage, 2 Insufficient nvidia.com/gpu."
    assert told({"ephemeral-storage": "1Ti"}, "1Gi", message=both).startswith("Waits for 2 GPUs. Of 2 nodes: 1 without")
    both = "0/2 nodes are available: 2 Insufficient ephemeral-storage, 2 Insufficient nvidia.com/gpu."
    assert told({}, "1Gi", message=both).startswith("Waits for 2 GPUs and 1 GiB of a node's disk")


def test_a_node_without_disk_for_pods_takes_no_task() -> None:
    offers = {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    node = {"metadata": {"name": "node-1"}, "spec": {}, "status": offers}
    found = node_of(node, 2**30)
    assert (found.gpus, found.gpus_free, found.takes_tasks) == (8, 0, False)
    assert found.note.startswith("It takes no tasks: it offers no ephemeral-storage, and a task reserves 1 GiB.")
    assert node_of(node, 0.0).takes_tasks, "where tasks reserve none"


def test_an_image_that_cannot_be_fetched_is_named() -> None:
    wait = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    found = seen(state=wait)
    assert (found.phase, found.reason) == ("Pending", "PullingImage")
    assert found.message == "Image example/tf:1 cannot be fetched (ImagePullBackOff): Back-off pulling image"


def test_an_image_that_cannot_be_pulled_is_waited_for_so_long_and_no_longer() -> None:
    """The limit counts from the first failure, which the kubelet reports in two alternating reasons. A start resets it."""

    def failing(reason: str) -> Any:
        return pod(state={"waiting": {"reason": reason, "message": "not found"}})

    def reasons(news: list[Any]) -> list[str]:
        return [each.reason for each in news]

    mirror = Mirror(patience=120)
    assert reasons(mirror.note_pod("ADDED", pod(state={"waiting": {"reason": "ContainerCreating"}}), time(0))) == [
        "Starting"
    ]
    assert reasons(mirror.note_pod("MODIFIED", failing("ErrImagePull"), time(60))) == ["PullingImage"]
    assert mirror.decided(time(179)) == []
    # A new listing.
    again = Mirror(patience=120)
    again.note_pod("ADDED", failing("ErrImagePull"), time(179))
    again.pulls.remember(mirror.pulls)
    (told,) = again.decided(time(180))
    assert isinstance(told, TaskSeen)
    assert (told.phase, told.reason) == ("Pending", "ImageNotPulled")
    assert told.message.endswith("(ErrImagePull): not found. It was tried for 2 minutes.")
    assert again.decided(time(181)) == []
    assert reasons(again.note_pod("MODIFIED", failing("ImagePullBackOff"), time(182))) == ["ImageNotPulled"]
    again.note_pod("MODIFIED", pod(state={"waiting": {"reason": "ContainerCreating"}}), time(183))
    assert reasons(again.note_pod("MODIFIED", failing("ErrImagePull"), time(184))) == ["PullingImage"]
    again.note_pod("DELETED", failing("ErrImagePull"), time(185))
    assert again.decided(time(999)) == []


@pytest.mark.parametrize(
    ("detail", "is_private"),
    [
        ("failed to authorize: failed to fetch anonymous token: unexpected status: 401 Unauthorized", True),
        ("pull access denied, repository does not exist or may require authorization", True),
        ("lookup registry.example.com: no such host", False),
    ],
)
def test_an_image_that_wants_a_password_says_where_it_is_saved(detail: str, is_private: bool) -> None:
    found = seen(state={"waiting": {"reason": "ErrImagePull", "message": detail}})
    assert found.reason == "PullingImage"
    assert found.message.endswith("under Registries.") is is_private


def test_a_container_that_cannot_be_made_says_why() -> None:
    wait = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "keys" not found'}}
    found = seen(state=wait)
    assert (found.reason, found.message) == (
        "BackOff",
        'Its container cannot be made (CreateContainerConfigError): secret "keys" not found',
    )


def test_a_service_whose_program_ends_again_and_again_is_in_trouble() -> None:
    made = pod("Running", state={"waiting": {"reason": "CrashLoopBackOff"}})
    made["status"]["containerStatuses"][0] |= {"restartCount": 3, "lastState": terminated(1)}
    found = task_seen(made)
    assert found
    assert (found.phase, found.reason, found.finished_at) == ("Running", "BackOff", None)
    assert found.message == "Its program ended with exit code 1; it was started again 3 times and waits for the next."


def with_data(phase: str, main: Any, fetch: Any, store: Any) -> Any:
    made = pod(phase, state=main)
    made["spec"]["initContainers"] = [{"name": "fetch"}, {"name": "store"}]
    made["status"]["initContainerStatuses"] = [{"name": "fetch", "state": fetch}, {"name": "store", "state": store}]
    return made


def test_data_is_followed_from_fetching_to_stored() -> None:
    wait, done = {"waiting": {"reason": "PodInitializing"}}, terminated(0)
    fetching = with_data("Pending", wait, RUNNING, wait)
    found = task_seen(fetching)
    assert found
    assert (found.phase, found.reason) == ("Pending", "FetchingInput")
    assert storage_seen(fetching) == StorageSeen(1042, "fetching")
    assert storage_seen(with_data("Pending", wait, wait, wait)) is None, "it waits for a node"
    assert storage_seen(with_data("Running", RUNNING, done, RUNNING)) == StorageSeen(1042, "ready")
    storing = with_data("Running", done, done, RUNNING)
    assert storage_seen(storing) == StorageSeen(1042, "storing")
    found = task_seen(storing)
    assert found
    assert (found.phase, found.reason) == ("Running", "Storing")
    assert storage_seen(with_data("Succeeded", done, done, done)) == StorageSeen(1042, "stored")
    partly = with_data("Succeeded", done, done, terminated(0, message="1 thing was not stored.\n"))
    assert storage_seen(partly) == StorageSeen(1042, "stored", warning="1 thing was not stored.")
    broken = with_data("Succeeded", done, done, terminated(1, message="disk quota"))
    assert storage_seen(broken) == StorageSeen(1042, "failed", "disk quota")
    assert storage_seen(pod("Running", state=RUNNING)) is None


def test_storing_that_fails_while_the_task_runs_is_told() -> None:
    def storing(ready: bool, since: int, main: Any = RUNNING) -> Any:
        found = with_data("Running", main, terminated(0), RUNNING)
        found["status"]["initContainerStatuses"][1]["ready"] = ready
        found["status"]["conditions"] = [{"type": "Ready", "status": str(ready), "lastTransitionTime": at(since)}]
        return storage_seen(found)

    ready = StorageSeen(1042, "ready")
    assert storing(True, 7) == ready
    assert storing(False, 1) == ready, "it has just been started"
    assert storing(False, 20).state == "failed"
    assert storing(False, 20, terminated(0)) == StorageSeen(1042, "storing")


def test_input_that_cannot_be_fetched_fails_the_task_with_the_reason() -> None:
    failed = with_data("Failed", None, terminated(1, message="NoSuchBucket"), {"waiting": {}})
    found = task_seen(failed)
    assert found
    assert (found.phase, found.reason, found.message) == (
        "Failed",
        "Error",
        "The input could not be fetched: NoSuchBucket",
    )
    assert found.log_tail == "NoSuchBucket"


def test_a_task_whose_input_did_not_come_has_lost_no_output() -> None:
    """Its next attempt may store everything, but the run was reported to have lost it."""

    def not_stored(made: Any) -> str:
        mirror = Mirror()
        made["metadata"]["finalizers"] = ["gpu-cloud/metering"]
        mirror.note_pod("ADDED", made, time(9))
        return next(iter(mirror.pods.values())).not_stored

    assert not_stored(with_data("Failed", None, terminated(1, message="BadGateway"), {"waiting": {}})) == ""
    lost = with_data("Succeeded", terminated(0), terminated(0), terminated(1, message="disk quota"))
    assert not_stored(lost) == "disk quota"


def test_an_environment_that_cannot_be_made_names_the_package_and_what_to_do() -> None:
    wait = {"waiting": {"reason": "PodInitializing"}}
    ended = terminated(1, message="ERROR: none\n\nPackage absent was not found.")

    def making(phase: str, **status: Any) -> Any:
        made = pod(phase, state=wait if phase == "Pending" else None)
        made["status"]["initContainerStatuses"] = [{"name": "environment", **status}]
        return task_seen(made)

    found = making("Pending", state=RUNNING)
    assert (found.phase, found.reason) == ("Pending", "MakingEnvironment")
    said = "Package absent was not found.\nERROR: none"
    # Kubernetes restarts a service's pod endlessly, a batch run's as often as its retries allow. The run ends before that.
    found = making("Pending", state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended)
    assert (found.phase, found.reason, found.message) == ("Pending", "EnvironmentNotMade", said)
    found = making("Failed", state=ended)
    assert (found.phase, found.reason, found.message) == ("Failed", "EnvironmentNotMade", said)
    # Its node may have ended it.
    killed = terminated(137, message="Downloading")
    found = making("Pending", state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=killed)
    assert (found.phase, found.reason) == ("Pending", "MakingEnvironment")
    assert found.message.endswith("It is tried again.")
    found = making("Failed", state=killed)
    assert (found.phase, found.reason) == ("Failed", "Error")


def test_pods_that_are_not_ours_are_nothing() -> None:
    assert task_seen(pod(metadata={"labels": {"gpu-cloud/run-id": "seven"}})) is None
    assert task_seen(pod(metadata={"labels": None})) is None


def test_quantities() -> None:
    found = [quantity(text) for text in ("96", "500m", "768Gi", "2k", "1.5")]
    assert found == [96, 0.5, 768 * 2**30, 2000, 1.5]


RUN = RunRef(1042, "ops", "demo", "mnist", 3)


def owner(*finalizers: str, **metadata: Any) -> Any:
    labels = {
        "gpu-cloud/run-id": "1042",
        "gpu-cloud/run": "3",
        "gpu-cloud/appcode": "demo",
        "gpu-cloud/cluster": "mnist",
    }
    facts = {"name": "demo-mnist-3-1042-run", "namespace": "ops", "uid": "uid-owner", "labels": labels}
    return {"metadata": {**facts, "finalizers": list(finalizers), **metadata}}


def test_a_run_is_gone_when_its_owner_is_left_alone() -> None:
    mirror = Mirror()
    task = pod("Failed", state=terminated(143), metadata={"deletionTimestamp": at(9)})
    assert mirror.note_owner("ADDED", owner("gpu-cloud/told")) == [StorageSeen(1042, "none"), RunFound(1042, RUN)]
    mirror.note_pod("ADDED", task, time(9))
    deleted = {"deletionTimestamp": at(9)}
    assert mirror.note_owner("MODIFIED", owner("foregroundDeletion", "gpu-cloud/told", **deleted)) == []
    # The two watches are not in step: the owner may lose its last dependant before the last pod is seen to go.
    assert mirror.note_owner("MODIFIED", owner("gpu-cloud/told", **deleted)) == []
    assert mirror.note_pod("DELETED", task, time(10)) == [RunGone(1042)]
    assert not mirror.runs.left_behind


def test_output_that_was_not_stored_is_told_at_the_end() -> None:
    mirror = Mirror()
    notes = {"gpu-cloud/not-stored": "worker-0: disk quota"}
    found = mirror.note_owner("MODIFIED", owner("gpu-cloud/told", deletionTimestamp=at(9), annotations=notes))
    assert found[-1] == RunGone(1042, False, "worker-0: disk quota")


def test_an_owner_deleted_by_hand_while_tasks_run_leaves_them_behind() -> None:
    mirror = Mirror()
    mirror.note_owner("ADDED", owner("gpu-cloud/told"))
    mirror.note_pod("ADDED", pod("Running", state=RUNNING), time(6))
    mirror.note_owner("MODIFIED", owner("gpu-cloud/told", deletionTimestamp=at(9)))
    assert mirror.runs.left_behind == {1042}


def test_everything_else_of_a_run_goes_when_its_tasks_have_ended() -> None:
    mirror = Mirror()
    ending = owner("gpu-cloud/told", annotations={"gpu-cloud/ending": "true"})
    ended = pod("Failed", state=terminated(143), metadata={"deletionTimestamp": at(9)})
    mirror.note_owner("ADDED", owner("gpu-cloud/told"))
    mirror.note_pod("ADDED", pod("Running", state=RUNNING), time(6))
    mirror.note_owner("MODIFIED", ending)
    assert (mirror.runs.stopping, mirror.runs.left_behind) == ({1042}, set())
    [seen] = mirror.note_pod("MODIFIED", ended, time(9))
    assert isinstance(seen, TaskSeen)
    assert (seen.reason, mirror.runs.left_behind) == ("Stopped", {1042})
    mirror.note_owner("MODIFIED", owner("foregroundDeletion", "gpu-cloud/told", deletionTimestamp=at(9)))
    assert not mirror.runs.stopping


def test_pods_that_have_ended_are_looked_after_until_they_are_let_go() -> None:
    """Nothing tells the watch that their logs are open: while there are any, it does not rest for long."""
    mirror = Mirror()
    held = {"finalizers": ["gpu-cloud/metering"]}
    ended = pod("Succeeded", state=terminated(0), metadata=held)
    mirror.note_pod("ADDED", pod("Running", state=RUNNING, metadata=held), time(6))
    assert not mirror.held_ends
    mirror.note_pod("MODIFIED", ended, time(9))
    assert mirror.held_ends == {"uid-1"}
    mirror.note_pod("MODIFIED", pod("Succeeded", state=terminated(0)), time(9))
    assert not mirror.held_ends
    mirror.note_pod("MODIFIED", ended, time(9))
    mirror.note_pod("DELETED", pod("Succeeded", state=terminated(0), metadata={"deletionTimestamp": at(9)}), time(9))
    assert not mirror.held_ends


def test_a_run_without_tasks_is_not_waited_for() -> None:
    mirror = Mirror()
    mirror.note_owner("ADDED", owner("gpu-cloud/told", annotations={"gpu-cloud/ending": "true"}))
    assert mirror.runs.left_behind == {1042}


def test_each_state_is_told_once() -> None:
    mirror = Mirror()
    running = pod("Running", state=RUNNING)
    assert len(mirror.note_pod("ADDED", running, time(6))) == 1
    assert mirror.note_pod("MODIFIED", running, time(7)) == []


def event(kind: str, name: str, reason: str, message: str, **about: Any) -> Any:
    involved = {"kind": kind, "namespace": "ops", "name": name, **about}
    return {
        "metadata": {"resourceVersion": "1"},
        "involvedObject": involved,
        "reason": reason,
        "message": message,
        "lastTimestamp": at(8),
    }


def mirror_of_ops() -> Mirror:
    mirror = Mirror()
    mirror.note_namespace("ADDED", {"metadata": {"name": "ops"}})
    return mirror


def test_warnings_about_a_pod_that_does_not_start_are_told_until_it_does() -> None:
    mirror = mirror_of_ops()
    assert len(mirror.note_pod("ADDED", pod(), time(3))) == 1
    text = 'MountVolume.SetUp failed for volume "data0" : mount failed: exit status 32\nOutput: access denied by server'
    (told,) = mirror.troubles.note_event(event("Pod", "x", "FailedMount", text, uid="uid-1"), time(9))
    assert isinstance(told, TaskSeen)
    assert told.reason == "MountingVolume"
    assert told.message == (
        'Its volumes cannot be mounted yet: MountVolume.SetUp failed for volume "data0" : mount failed: exit status 32 '
        "Output: access denied by server."
    )
    assert mirror.troubles.note_event(event("Pod", "x", "FailedMount", text, uid="uid-1"), time(10)) == []
    assert mirror.note_pod("MODIFIED", pod(), time(11)) == []
    assert mirror.troubles.note_event(event("Pod", "x", "FailedMount", text, uid="uid-1"), time(9) + EVENT_AGE) == []
    (running,) = mirror.note_pod("MODIFIED", pod("Running", state=RUNNING), time(12))
    assert isinstance(running, TaskSeen)
    assert (running.phase, running.reason, running.message) == ("Running", "", "")


def test_what_controllers_say_of_refused_pods_in_words() -> None:
    assert refusal(
        'Error creating: pods "w-0" is forbidden: exceeded quota: team, requested: pods=1,requests.nvidia.com/gpu=2, '
        "used: pods=20,requests.nvidia.com/gpu=8, limited: pods=20,requests.nvidia.com/gpu=8",
        "ops",
    ) == (
        "NamespaceQuota",
        "The quota of namespace ops (team) is used up: pods 20 of 20, requests.nvidia.com/gpu 8 of 8 (a task needs 2).",
    )
    assert refusal(
        'Error creating: admission webhook "gate.example" denied the request: no GPUs on Sundays', "ops"
    ) == (
        "AdmissionDenied",
        "“gate.example” of the Kubernetes cluster does not admit its pods: no GPUs on Sundays.",
    )
    assert refusal(
        'Error creating: pods "w-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true', "ops"
    ) == (
        "AdmissionDenied",
        'Pod Security of namespace ops does not admit its pods: violates PodSecurity "restricted:latest": runAsNonRoot != true.',
    )


OF_A_JOB = {"f:parallelism": {}, "f:completions": {}, "f:suspend": {}}


def job(*, suspend: bool = False, at_once: int = 3, **status: Any) -> Any:
    labels = {"gpu-cloud/run-id": "1042", "gpu-cloud/run": "3", "gpu-cloud/role": "worker"}
    if suspend:
        labels["kueue.x-k8s.io/queue-name"] = "gpus"
    ours = {"manager": "gpu-cloud", "operation": "Apply", "fieldsV1": {"f:spec": OF_A_JOB}}
    metadata = {
        "name": "w",
        "namespace": "ops",
        "uid": "uid-job",
        "generation": 1,
        "labels": labels,
        "ownerReferences": [{"kind": "ConfigMap"}],
        "managedFields": [ours],
    }
    return {
        "metadata": metadata,
        "spec": {"completions": 3, "parallelism": at_once, "suspend": suspend},
        "status": status,
    }


def test_a_run_is_blocked_until_all_of_its_pods_are_made() -> None:
    mirror = mirror_of_ops()
    assert mirror.parts.note_workload("ADDED", "Job", job(active=1)) == []
    quota = "exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1"
    (blocked,) = mirror.troubles.note_event(event("Job", "w", "FailedCreate", quota), time(9))
    assert isinstance(blocked, RunBlocked)
    assert (blocked.run_id, blocked.reason) == (1042, "NamespaceQuota")
    assert mirror.troubles.note_event(event("Job", "w", "FailedCreate", quota), time(9)) == []
    assert mirror.parts.note_workload("MODIFIED", "Job", job(active=2)) == []
    assert mirror.parts.note_workload("MODIFIED", "Job", job(active=1, succeeded=1, failedIndexes="2")) == [
        RunBlocked(1042, "", "")
    ]
    # Late news of something that is over.
    assert mirror.troubles.note_event(event("Job", "w", "FailedCreate", quota), time(10)) == []


def test_of_a_run_whose_tasks_take_turns_a_later_pod_can_be_refused_too() -> None:
    mirror = mirror_of_ops()
    quota = "exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1"
    assert mirror.parts.note_workload("ADDED", "Job", job(at_once=1, active=1)) == []
    assert mirror.parts.note_workload("MODIFIED", "Job", job(at_once=1, succeeded=1)) == []
    (blocked,) = mirror.troubles.note_event(event("Job", "w", "FailedCreate", quota), time(9))
    assert isinstance(blocked, RunBlocked)
    assert mirror.parts.note_workload("MODIFIED", "Job", job(at_once=1, succeeded=2, active=1)) == [
        RunBlocked(1042, "", "")
    ]
    assert mirror.parts.note_workload("MODIFIED", "Job", job(at_once=1, succeeded=3)) == []
    assert mirror.troubles.note_event(event("Job", "w", "FailedCreate", quota), time(10)) == []


def test_a_suspended_job_waits_in_its_queue() -> None:
    mirror = mirror_of_ops()
    assert mirror.parts.note_workload("ADDED", "Job", job(suspend=True)) == [
        RunBlocked(1042, "QueuedByKueue", "Waits in Kueue's queue “gpus” of namespace ops.")
    ]
    assert mirror.parts.note_workload("MODIFIED", "Job", job(active=3)) == [RunBlocked(1042, "", "")]


def entry(manager: str, when: str, **fields: Any) -> Any:
    operation = "Apply" if manager == "gpu-cloud" else "Update"
    spec = {f"f:{name}": tree for name, tree in fields.items()}
    return {"manager": manager, "operation": operation, "time": when, "fieldsV1": {"f:spec": spec}}


IMAGE = {"f:spec": {"f:containers": {'k:{"name":"task"}': {"f:image": {}, "f:args": {}}}}}
PART_OF_IT = {"f:spec": {"f:containers": {'k:{"name":"task"}': {"f:image": {}}}}}


def test_what_others_take_is_told_once_and_what_they_add_is_left_alone() -> None:
    mirror = mirror_of_ops()
    mirror.note_owner("ADDED", owner("gpu-cloud/told"))
    told = [RunChanged(1042, "Job w was changed by hand.")]

    def note(*entries: Any, event: str = "MODIFIED") -> list[Any]:
        found = job(active=3)
        found["metadata"]["managedFields"] = list(entries)
        return mirror.parts.note_workload(event, "Job", found)

    whole: Any = {"parallelism": {}, "completions": {}, "suspend": {}, "template": IMAGE}
    assert note(entry("gpu-cloud", at(1), **whole), event="ADDED") == []
    added = entry("kubectl-edit", at(2), backoffLimit={}, template=PART_OF_IT)
    assert note(entry("gpu-cloud", at(1), **whole), added) == []
    for lost in ({"parallelism": {}, "completions": {}, "template": IMAGE}, whole | {"template": PART_OF_IT}):
        assert note(entry("gpu-cloud", at(1), **lost), added) == told
        assert note(entry("gpu-cloud", at(1), **lost), added) == []
        # Applied again, within the same second and later.
        assert note(entry("gpu-cloud", at(1), **whole), added) == []
    assert note(entry("gpu-cloud", at(3), **lost), added) == [], "the portal itself says less"
    # Kueue can be configured to manage all Jobs.
    theirs = entry("kueue", at(4), suspend={}, template=IMAGE)
    assert note(entry("gpu-cloud", at(3), parallelism={}, completions={}), theirs) == []
    assert note(entry("gpu-cloud", at(3), parallelism={}), theirs) == told
    assert note(event="DELETED") == [RunChanged(1042, "Job w was deleted by hand.")]
    mirror.note_owner("MODIFIED", owner("foregroundDeletion", "gpu-cloud/told", deletionTimestamp=at(9)))
    assert note(event="DELETED") == []


def test_who_was_there_while_nobody_watched_may_have_taken_something() -> None:
    mirror = mirror_of_ops()
    mirror.note_owner("ADDED", owner("gpu-cloud/told"))
    ours = entry("gpu-cloud", at(2), parallelism={}, completions={}, suspend={}, template=IMAGE)
    for when, news in ((1, []), (2, [RunChanged(1042, "Job w was changed by hand.")])):
        found = job(active=3)
        found["metadata"] |= {"uid": f"uid-{when}", "managedFields": [ours, entry("x", at(when), template=PART_OF_IT)]}
        assert mirror.parts.note_workload("ADDED", "Job", found) == news
        assert mirror.parts.note_workload("MODIFIED", "Job", found) == []


def test_an_object_that_the_listing_lacks_is_told_once_a_launch_has_had_its_time() -> None:
    mirror = mirror_of_ops()
    named = "Job/early Service/there Service/late NetworkPolicy/gone Secret/unwatched"
    part: Any = {
        "namespace": "ops",
        "labels": owner()["metadata"]["labels"],
        "ownerReferences": [{"kind": "ConfigMap"}],
        "managedFields": [entry("gpu-cloud", at(1), selector={}, ports={})],
    }
    early = job(active=1)
    early["metadata"]["name"] = "early"
    mirror.parts.note_workload("ADDED", "Job", early)
    mirror.note_owner("ADDED", owner("gpu-cloud/told", annotations={"gpu-cloud/objects": named}))
    mirror.note_part("ADDED", "Service", {"metadata": {**part, "name": "there", "uid": "uid-there"}})
    absent, began = mirror.parts.absent, 1000.0
    assert absent.news(began) == [], "the listing is not complete"
    absent.listed(began)
    assert absent.news(began + 1) == []
    mirror.note_part("ADDED", "Service", {"metadata": {**part, "name": "late", "uid": "uid-late"}})
    assert absent.news(began + PATIENCE) == [RunChanged(1042, "NetworkPolicy gone is missing.")]
    assert absent.news(began + 2 * PATIENCE) == []


def test_a_run_that_ends_misses_nothing() -> None:
    mirror = mirror_of_ops()
    named = {"gpu-cloud/objects": "Service/gone"}
    mirror.note_owner("ADDED", owner("gpu-cloud/told", annotations=named))
    mirror.parts.absent.listed(1000.0)
    mirror.note_owner("MODIFIED", owner("gpu-cloud/told", annotations={**named, "gpu-cloud/ending": "true"}))
    assert mirror.parts.absent.news(2000.0) == []


def test_labels_that_were_taken_off_are_put_back() -> None:
    mirror = mirror_of_ops()
    running = pod("Running", state=RUNNING, metadata={"finalizers": ["gpu-cloud/metering"]})
    mirror.note_pod("ADDED", running, time(6))
    # Without the watched label: the API server sends DELETED with the object's earlier state.
    assert mirror.note_pod("DELETED", running, time(7)) == []
    assert mirror.damages.found["uid-1"].metadata == {
        "uid": "uid-1",
        "labels": {"gpu-cloud/run-id": "1042", "gpu-cloud/role": "worker"},
        "finalizers": ["gpu-cloud/metering"],
    }
    assert mirror.note_pod("ADDED", running, time(8)) == []
    assert not mirror.damages.found
    bare = pod(
        "Running", state=RUNNING, metadata={"labels": {"gpu-cloud/portal": "x"}, "finalizers": ["gpu-cloud/metering"]}
    )
    assert mirror.note_pod("MODIFIED", bare, time(9)) == []
    assert mirror.damages.found["uid-1"].metadata["labels"]["gpu-cloud/run-id"] == "1042"


def node(ready: str, *taints: str) -> Any:
    """Returns a node whose kubelet last wrote its status at second 7."""
    conditions = [{"type": "Ready", "status": ready, "message": "no CNI", "lastHeartbeatTime": at(7)}]
    return {
        "metadata": {"name": "node-1"},
        "spec": {"taints": [{"key": key, "effect": "NoExecute"} for key in taints]},
        "status": {"conditions": conditions},
    }


@pytest.mark.parametrize("made", [pod("Running", state=RUNNING), pod("Pending")], ids=["running", "pending"])
def test_a_task_on_a_node_that_is_not_heard_of_says_so_and_what_to_do(made: Any) -> None:
    """Before and after the node falls silent, whether or not its program has started, and when the pod is deleted there."""
    mirror = mirror_of_ops()
    mirror.note_node("ADDED", node("True"))
    (before,) = mirror.note_pod("ADDED", made, time(6))
    (seen,) = mirror.note_node("MODIFIED", node("Unknown"), time(9))
    assert isinstance(before, TaskSeen)
    assert isinstance(seen, TaskSeen)
    assert (seen.phase, seen.reason) == (before.phase, "NodeLost")
    assert seen.message == (
        "Node node-1 does not answer (last heard at 2026-03-01 08:00:09 UTC); the task may still run there. If the machine is "
        "off and stays off, an administrator gives it up under Clouds, or by “kubectl taint node node-1 "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute”; “kubectl delete node node-1” if it never comes back. "
        "Kubernetes then starts its tasks elsewhere."
    )
    deleted = copy.deepcopy(made) | {"metadata": made["metadata"] | {"deletionTimestamp": at(20)}}
    assert mirror.note_pod("MODIFIED", deleted, time(20)) == []
    (again,) = mirror.note_node("MODIFIED", node("True"))
    assert isinstance(again, TaskSeen)
    assert (again.phase, again.message) == (before.phase, "")


def test_what_a_node_that_does_not_answer_held_ends_when_it_was_last_heard() -> None:
    """Holds if the node was deleted before, if only its status has the time, and if a new controller finds neither. The end
    is never before the task's start, and a node that reports itself as not ready still counts as heard."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "lastTransitionTime": at(50)}
    ended = pod("Failed", state=RUNNING, conditions=[target])

    def end(mirror: Mirror, made: Any = ended) -> tuple[Any, bool]:
        (seen,) = mirror.note_pod("ADDED", made, time(51))
        assert isinstance(seen, TaskSeen)
        return seen.finished_at, seen.estimated

    for heard, told in ((time(9), time(9)), (None, time(7)), (time(1), time(5))):
        mirror = mirror_of_ops()
        mirror.note_node("ADDED", node("Unknown"), heard)
        assert end(mirror) == (told, True)
        mirror = mirror_of_ops()
        mirror.note_node("ADDED", node("Unknown"), heard)
        mirror.note_node("DELETED", node("Unknown"))
        assert end(mirror) == (told, True)
    conditions = [
        {"type": "Ready", "status": "False", "lastTransitionTime": at(40)},
        {"type": "ContainersReady", "status": "True", "lastTransitionTime": at(5)},
    ]
    assert end(mirror_of_ops(), pod("Failed", state=RUNNING, conditions=[target, *conditions])) == (time(40), True)
    mirror = mirror_of_ops()
    mirror.note_node("ADDED", node("False"))
    assert end(mirror) == (time(50), True)
    seen_by_kubelet = pod("Failed", state=terminated(1))
    mirror.note_node("MODIFIED", node("Unknown"), time(9))
    assert end(mirror, seen_by_kubelet)[1] is False


def test_a_node_says_whether_it_is_silent_not_ready_or_given_up() -> None:
    given_up = "node.kubernetes.io/out-of-service"
    assert (node_of(node("Unknown"), heard=time(9)).note, node_of(node("Unknown"), heard=time(9)).silent_since) == (
        "It does not answer.",
        "2026-03-01T08:00:09+00:00",
    )
    assert node_of(node("Unknown")).silent_since == "?"
    assert node_of(node("False")).note == "It is not ready: no CNI"
    away = node_of(node("Unknown", given_up), heard=time(9))
    assert (away.note, away.silent_since) == ("It does not answer and was given up: its tasks start elsewhere.", "")
    back = node_of(node("True", given_up))
    assert back.note.endswith("It is back now: kubectl taint node node-1 node.kubernetes.io/out-of-service-")
    assert not any(node_of(each).takes_tasks for each in (node("Unknown"), node("False"), node("True", given_up)))


def test_capacity_follows_pods() -> None:
    mirror = mirror_of_ops()
    allocatable = {"nvidia.com/gpu": "8", "cpu": "96", "memory": "768Gi"}
    ready = [{"type": "Ready", "status": "True"}]
    node = {"metadata": {"name": "node-1"}, "spec": {}, "status": {"conditions": ready, "allocatable": allocatable}}
    mirror.note_node("ADDED", node)
    mirror.note_pod("ADDED", pod(node=""), time(1))
    assert mirror.capacity().nodes[0].gpus_free == 8
    mirror.note_pod("MODIFIED", pod("Running", state=RUNNING), time(6))
    assert mirror.capacity().nodes[0].gpus_free == 6
    mirror.note_pod("MODIFIED", pod("Succeeded", state=terminated(0)), time(30))
    assert mirror.capacity().nodes[0].gpus_free == 8
    mirror.note_node("MODIFIED", node | {"spec": {"unschedulable": True}})
    assert (mirror.capacity().nodes[0].gpus_free, mirror.capacity().nodes[0].note) == (0, "It takes no new tasks.")


def test_what_other_software_holds_is_told_apart_from_tasks_and_goes_with_it() -> None:
    mirror = Mirror()
    room = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"}
    status = {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    mirror.note_node("ADDED", {"metadata": {"name": "node-1"}, "spec": {}, "status": status})

    def others() -> tuple[int, int, int, int]:
        (node,) = mirror.capacity().nodes
        return node.gpus_free, node.gpus_others, node.cpu_milli_others, node.memory_mb_others

    def note(uid: str, kind: str = "ADDED", phase: str = "Running", node: str = "node-1", **asked: str) -> None:
        requests = {name.replace("gpu", "nvidia.com/gpu"): amount for name, amount in asked.items()}
        spec = {"nodeName": node, "containers": [{"name": "own", "resources": {"requests": requests}}]}
        mirror.note_other_pod(kind, {"metadata": {"uid": uid}, "spec": spec, "status": {"phase": phase}})

    mirror.note_pod("ADDED", pod("Running", state=RUNNING), MORNING)
    assert others() == (6, 0, 0, 0)
    note("one", gpu="1", cpu="100m", memory="1")
    note("two", cpu="200m", memory="1Mi")
    note("waits", node="", cpu="7")
    assert others() == (5, 1, 300, 2)
    # A task whose labels were taken off is still one.
    note("uid-1", gpu="2", cpu="1")
    assert others() == (5, 1, 300, 2)
    note("one", "MODIFIED", gpu="1", cpu="1100m", memory="1")
    assert others() == (5, 1, 1300, 2)
    note("one", "MODIFIED", "Succeeded", gpu="1", cpu="1100m", memory="1")
    note("two", "DELETED", cpu="200m", memory="1Mi")
    assert others() == (6, 0, 0, 0)
