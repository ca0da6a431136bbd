"""Runs that wait in a Kueue queue: whole or not at all. tests/kube/kueue.py says what stands in for Kueue."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from clusters.clouds.drivers.base import Plan, RunBlocked, RunChanged, RunDecided, RunRef
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.api.errors import Refused
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import manifests, names
from clusters.clouds.drivers.kubernetes.settings import GPU, Settings
from clusters.clouds.drivers.kubernetes.watch import workloads
from tests.kube import kueue
from tests.kube.following import Following, portal_kubeconfig
from tests.kube.kueue import Kueue
from tests.kube.plane import Object, Plane
from tests.kube.plans import plan, role, run_ref

pytestmark = pytest.mark.kube


@pytest.fixture(scope="module")
def served(plane: Plane) -> Iterator[None]:
    with kueue.installed(plane):
        kueue.make_flavor(plane, {"kubernetes.io/os": "linux"}, "kept-for-queues")
        yield


@pytest.fixture
def cloud(plane: Plane, served: None) -> KubernetesCloud:
    settings = Settings(portal=f"test-{secrets.token_hex(4)}", kueue_queue="gpus")
    return KubernetesCloud(Client.connect(str(portal_kubeconfig(plane))), settings)


@pytest.fixture
def space(plane: Plane) -> Iterator[str]:
    name = f"line-{secrets.token_hex(4)}"
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


class Portal(Following):
    """Applies a run again when it is told to, as the loop does."""

    plans: dict[int, Plan]

    def start(self, wanted: Plan) -> None:
        self.plans = {**getattr(self, "plans", {}), wanted.run.id: wanted}
        self.cloud.apply(wanted)

    def _take(self, items: tuple[object, ...]) -> None:
        super()._take(items)  # type: ignore[arg-type]
        for item in items:
            if isinstance(item, RunChanged | RunDecided) and (wanted := getattr(self, "plans", {}).get(item.run_id)):
                self.cloud.apply(wanted)

    def why(self, run: RunRef) -> str:
        """Returns why the run waits, "" if it does not."""
        said = [each for each in self.told if isinstance(each, RunBlocked) and each.run_id == run.id]
        return said[-1].message if said else ""


@pytest.fixture
def following(cloud: KubernetesCloud) -> Iterator[Portal]:
    with Portal(cloud) as following:
        yield following


def three_roles(space: str, workers: int) -> Plan:
    """Returns a run with a Job, a Deployment, and a Job of several tasks."""
    ps = role("ps", restart="Always", gpus=0)
    return plan(role("master", gpus=1), ps, role("worker", workers, gpus=2), run=run_ref(space))


def pods_of(plane: Plane, run: RunRef) -> list[Object]:
    selector = f"{names.RUN_ID}={run.id}"
    return plane.request("GET", f"/api/v1/namespaces/{run.namespace}/pods", labelSelector=selector)["items"]


def end(following: Portal, *runs: RunRef) -> None:
    for run in runs:
        following.plans.pop(run.id, None)
        following.cloud.delete(run)
    following.until(lambda: all(following.is_gone(run) for run in runs))


def test_of_two_runs_of_which_one_fits_one_is_whole_and_the_other_has_no_pod(
    plane: Plane, following: Portal, space: str
) -> None:
    first, second = three_roles(space, 2), three_roles(space, 3)
    following.start(first)
    with Kueue(plane, space, {GPU: 8}) as queue:
        queue.until(names.workload_name(first.run), "Admitted")
        following.start(second)
        following.until(lambda: len(following.of(first.run, "Running")) == 4)
        following.until(lambda: "too few free" in following.why(second.run))
        said = f"Waits in Kueue's queue “gpus” of namespace {space}. Of its quota there are too few free: "
        assert following.why(second.run) == f"{said}4 GPUs of “{kueue.FLAVOR}”."
        assert following.why(first.run) == ""
        assert not pods_of(plane, second.run)
        for pod in pods_of(plane, first.run):
            assert pod["spec"]["nodeSelector"]["kubernetes.io/os"] == "linux"
            assert any(each.get("key") == "kept-for-queues" for each in pod["spec"]["tolerations"])
        # It ends: the other one gets all that it needs, at once.
        end(following, first.run)
        following.until(lambda: len(following.of(second.run, "Running")) == 5)
        end(following, second.run)


def test_what_is_taken_back_ends_then_waits_and_runs_again(plane: Plane, following: Portal, space: str) -> None:
    wanted = three_roles(space, 2)
    name = names.workload_name(wanted.run)
    following.start(wanted)
    with Kueue(plane, space, {GPU: 8}) as queue:
        following.until(lambda: len(following.of(wanted.run, "Running")) == 4)
        queue.until(name, "PodsReady")
        first = {task.uid for task in following.of(wanted.run)}
        queue.quota[GPU] = 0
        queue.evict(name)
        freed = queue.until(name, "QuotaReserved", "False")
        # Not before all of its pods have ended.
        assert not [pod for pod in pods_of(plane, wanted.run) if pod["status"]["phase"] in ("Pending", "Running")]
        assert "admission" not in freed["status"]
        assert kueue.status_of(freed, "Requeued") == "True"
        following.until(lambda: "too few free" in following.why(wanted.run))
        assert "It ran before: its GPUs were taken back for a run that goes before it." in following.why(wanted.run)
        ended = [task for task in following.of(wanted.run) if task.uid in first]
        assert all(task.disrupted and task.reason == "Disrupted" for task in ended), ended
        queue.quota[GPU] = 8
        # Kueue now chooses other nodes.
        kueue.make_flavor(plane, {"kubernetes.io/arch": "amd64"})
        following.until(lambda: len(following.of(wanted.run, "Running")) == 4)
        again = [pod for pod in pods_of(plane, wanted.run) if pod["metadata"]["uid"] not in first]
        assert {pod["spec"]["nodeSelector"].get("kubernetes.io/arch") for pod in again} == {"amd64"}
        assert not [each for each in following.told if isinstance(each, RunChanged)], "nobody changed anything by hand"
        end(following, wanted.run)


def test_a_workload_deleted_by_hand_is_made_again_and_its_run_waits_for_it(
    plane: Plane, following: Portal, space: str
) -> None:
    wanted = plan(role("worker", 2, gpus=1), run=run_ref(space))
    name = names.workload_name(wanted.run)
    following.start(wanted)
    with Kueue(plane, space, {GPU: 2}) as queue:
        following.until(lambda: len(following.of(wanted.run, "Running")) == 2)
        first = queue.workload(name)["metadata"]["uid"]
        plane.request("DELETE", f"/apis/{kueue.GROUP}/{kueue.VERSION}/namespaces/{space}/workloads/{name}")
        following.until(lambda: RunChanged(wanted.run.id, f"Workload {name} was deleted by hand.") in following.told)
        assert queue.until(name, "Admitted")["metadata"]["uid"] != first
        following.until(lambda: len(following.of(wanted.run, "Running")) == 2)
        path = f"/apis/{kueue.GROUP}/{kueue.VERSION}/namespaces/{space}/workloads/{name}"
        plane.request("PATCH", path, {"spec": {"queueName": "another"}})
        following.until(lambda: RunChanged(wanted.run.id, f"Workload {name} was changed by hand.") in following.told)
        plane.until(path.rpartition("/")[0], lambda found: found[name]["spec"]["queueName"] == "gpus")
        end(following, wanted.run)


def test_what_a_set_of_tasks_has_done_is_given_back_before_it_ends(plane: Plane, following: Portal, space: str) -> None:
    wanted = plan(role("trial", 3, gpus=1), run=run_ref(space))
    following.start(wanted)
    with Kueue(plane, space, {GPU: 4}) as queue:
        following.until(lambda: len(following.of(wanted.run, "Running")) == 3)
        later = plan(role("worker", 2, gpus=1), run=run_ref(space))
        following.start(later)
        following.until(lambda: "too few free" in following.why(later.run))
        plane.end_pods(space, f"{names.RUN_ID}={wanted.run.id},batch.kubernetes.io/job-completion-index=0", 0)
        following.until(lambda: len(following.of(later.run, "Running")) == 2)
        assert len(following.of(wanted.run, "Running")) == 2
        assert queue.workload(names.workload_name(wanted.run))["status"]["reclaimablePods"] == [
            {"name": "trial", "count": 1}
        ]
        end(following, wanted.run, later.run)


def test_where_a_job_that_ran_takes_no_other_nodes_it_is_made_as_if_it_never_had(
    plane: Plane, following: Portal, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older releases of Kubernetes refuse other nodes for it. The Job keeps what it has done."""
    wanted = plan(role("trial", 2, gpus=1), run=run_ref(space))
    name = names.workload_name(wanted.run)
    following.start(wanted)
    job = f"/apis/batch/v1/namespaces/{space}/jobs/{names.role_name(wanted.run, 'trial')}"
    with Kueue(plane, space, {GPU: 2}) as queue:
        following.until(lambda: len(following.of(wanted.run, "Running")) == 2)
        plane.end_pods(space, f"{names.RUN_ID}={wanted.run.id},batch.kubernetes.io/job-completion-index=0", 0)
        following.until(lambda: len(following.of(wanted.run, "Succeeded")) == 1)
        client = following.cloud._client
        refused: list[Object] = []

        def apply(manifest: Object, **query: str) -> Object:
            if manifest["kind"] == "Job" and not refused:
                refused.append(plane.request("GET", job)["spec"])
                raise Refused(422, "spec.template: field is immutable")
            return Client.apply(client, manifest, **query)

        monkeypatch.setattr(client, "apply", apply)
        first = {task.uid for task in following.of(wanted.run)}
        queue.evict(name)
        following.until(lambda: [task for task in following.of(wanted.run, "Running") if task.uid not in first])
        assert [each["suspend"] for each in refused] == [True]
        assert {task.index for task in following.of(wanted.run) if task.uid not in first} == {1}
        end(following, wanted.run)


# -- runs that an earlier release started: the name of the queue is on what makes their pods, and Kueue resumes that -----------


def start_as_before(cloud: KubernetesCloud, wanted: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "run_manifests", functools.partial(_as_before, manifests.run_manifests))
        patch.setattr(manifests, "workloads", lambda _: [])
        cloud.apply(wanted)


def _as_before(
    render: Callable[[Plan, str, Settings], list[Object]], wanted: Plan, uid: str, settings: Settings
) -> list[Object]:
    made = render(wanted, uid, replace(settings, kueue_queue=""))
    for each in made:
        if names.ROLE in each["metadata"]["labels"]:
            each["metadata"]["labels"][workloads.QUEUE] = settings.kueue_queue
        if each["kind"] == "Job":
            each["spec"]["suspend"] = True
    return made


class KueueOfBefore:
    """Changes a Job as Kueue does when it admits or evicts one."""

    def __init__(self, plane: Plane, run: RunRef, role_name: str) -> None:
        self.plane = plane
        self.path = f"/apis/batch/v1/namespaces/{run.namespace}/jobs/{names.role_name(run, role_name)}"

    def job(self) -> Object:
        return self.plane.request("GET", self.path)

    def admit(self, pool: str) -> None:
        """Admits the Job as Kueue's controller does, which also selects nodes for its pods."""
        self._patch({"suspend": False, "template": {"spec": {"nodeSelector": {"kubernetes.io/os": pool}}}})

    def evict(self) -> None:
        self._patch({"suspend": True})

    def _patch(self, spec: Object) -> None:
        self.plane.request("PATCH", self.path, {"spec": spec}, fieldManager="kueue")


def test_a_run_of_an_earlier_release_is_left_to_kueue(
    plane: Plane, cloud: KubernetesCloud, following: Portal, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = plan(role("master"), role("ps", restart="Always", gpus=0), run=run_ref(space))
    start_as_before(cloud, whole, monkeypatch)
    queue = KueueOfBefore(plane, whole.run, "master")
    assert queue.job()["spec"]["suspend"] is True
    cloud.apply(whole)
    assert queue.job()["spec"]["suspend"] is True
    following.until(lambda: following.why(whole.run) == f"Waits in Kueue's queue “gpus” of namespace {space}.")
    queue.admit("linux")
    following.until(lambda: [task.role for task in following.of(whole.run, "Running")] == ["master", "ps"])
    cloud.apply(whole)
    job = queue.job()
    assert job["spec"]["suspend"] is False
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    cloud.delete(whole.run)
    following.until(lambda: following.is_gone(whole.run))


def test_what_kueue_takes_back_from_a_run_of_an_earlier_release_has_not_failed(
    plane: Plane, cloud: KubernetesCloud, following: Portal, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = plan(role("worker", 2, retries=0), run=run_ref(space))
    start_as_before(cloud, whole, monkeypatch)
    queue = KueueOfBefore(plane, whole.run, "worker")
    queue.admit("linux")
    following.until(lambda: len(following.of(whole.run, "Running")) == 2)
    queue.evict()
    following.until(lambda: len(following.of(whole.run, "Failed")) == 2)
    assert [(task.reason, task.disrupted) for task in following.of(whole.run, "Failed")] == [("Disrupted", True)] * 2
    queue.admit("linux")
    following.until(lambda: len(following.of(whole.run, "Running")) == 2)
    assert all(task.disrupted for task in following.of(whole.run, "Failed"))
    cloud.delete(whole.run)
    following.until(lambda: following.is_gone(whole.run))
