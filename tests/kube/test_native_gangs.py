"""Runs whose pods kube-scheduler binds all or none, by its own PodGroups: on a control plane on which these are switched on.

The plane of the other tests has them switched off, as Kubernetes 1.36 has.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from clusters.clouds.drivers.base import Plan, RunRef
from clusters.clouds.drivers.kubernetes.api import probe
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import gangs, names
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.kube.following import ROLE, Following, portal_kubeconfig
from tests.kube.loops import Loops
from tests.kube.plane import Object, Plane
from tests.kube.plans import plan, role, run_ref
from tests.kube.test_faults import end_all
from tests.kube.test_fit import other_software
from tests.kube.test_registration import bound as bound_to

pytestmark = pytest.mark.kube

API = "scheduling.k8s.io/v1alpha2"
EVERYWHERE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane with 2 nodes of 8 GPUs each, instead of the shared one."""
    plane = Plane(tmp_path_factory.mktemp("gangs"), gangs=EVERYWHERE)
    plane.start()
    try:
        plane.add_nodes(2)
        yield plane
        plane.check()
    finally:
        plane.stop()


def groups(plane: Plane, namespace: str) -> dict[str, Object]:
    found = plane.request("GET", f"/apis/{API}/namespaces/{namespace}/podgroups")["items"]
    return {each["metadata"]["name"]: each for each in found}


def count(plane: Plane, made: Plan) -> int:
    """Returns how many pods of a run get nodes together now; 0 while its group is away, because another takes its place."""
    group = groups(plane, made.run.namespace).get(gangs.name(made.run))
    return int(group["spec"]["schedulingPolicy"]["gang"]["minCount"]) if group else 0


def bound(pods: dict[str, Object], made: Plan) -> int:
    mine = (each for each in pods.values() if names.run_id_of(each["metadata"]["labels"]) == made.run.id)
    return sum(bool(each["spec"].get("nodeName")) for each in mine)


def until_refused(plane: Plane, run: RunRef) -> None:
    """Waits until the scheduler says that it cannot bind all pods of the run."""

    def told(found: dict[str, Object]) -> bool:
        conditions = found.get(gangs.name(run), {}).get("status", {}).get("conditions", ())
        return [(each["status"], each["reason"]) for each in conditions] == [("False", "Unschedulable")]

    plane.until(f"/apis/{API}/namespaces/{run.namespace}/podgroups", told)


def left_of_trials(plane: Plane) -> list[str]:
    paths = ("/api/v1/configmaps", "/api/v1/pods", "/apis/batch/v1/jobs", f"/apis/{API}/podgroups")
    return [
        f"{path} {each['metadata']['name']}"
        for path in paths
        for each in plane.request("GET", path, labelSelector=names.PROBE)["items"]
    ]


@pytest.fixture
def line() -> str:
    """The namespace of a business line, which the portal makes."""
    return f"line-{secrets.token_hex(4)}"


def test_the_connection_test_tells_an_enforcing_scheduler_from_one_that_binds_one_by_one(
    plane: Plane, cloud: KubernetesCloud, line: str
) -> None:
    found = cloud.preflight([line])
    assert found.facts[probe.FACT] == {"enforced": True, "api": API, "message": f"{probe.ENFORCED} ({API})"}
    assert found.ok
    assert found.message.endswith(f"{probe.ENFORCED} ({API})")
    assert left_of_trials(plane) == []
    plane.gangs = EVERYWHERE[:-1]
    plane.restart_scheduler()
    try:
        found = cloud.preflight([line])
        assert found.facts[probe.FACT] == {"enforced": False, "api": "", "message": probe.STORED}
        assert found.ok
        plane.until("/api/v1/pods", lambda pods: not pods, labelSelector=names.PROBE)
    finally:
        plane.gangs = EVERYWHERE
        plane.restart_scheduler()


def test_of_a_gang_whose_last_place_others_take_no_pod_is_bound_until_all_find_room(
    plane: Plane, cloud: KubernetesCloud, namespace: str, line: str, following: Following
) -> None:
    nodes = tuple(plane.nodes())
    other_software(plane, namespace, "thief", nodes[0], 1, 1)
    made = plan(role("worker", 16, nodes=nodes), run=run_ref(line), gang=API)
    cloud.apply(made)
    until_refused(plane, made.run)
    pods = plane.until(f"/api/v1/namespaces/{line}/pods", lambda pods: len(pods) == 16)
    assert bound(pods, made) == 0
    following.until(lambda: any("together" in each.message for each in following.of(made.run)))
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/thief", gracePeriodSeconds="0")
    following.until(lambda: len(following.of(made.run, "Running")) == 16)
    cloud.delete(made.run)
    following.until(lambda: following.is_gone(made.run))
    assert gangs.name(made.run) not in groups(plane, line)


def test_of_two_gangs_for_the_same_room_one_is_bound_and_the_other_has_no_node(
    plane: Plane, cloud: KubernetesCloud, line: str, following: Following
) -> None:
    nodes = tuple(plane.nodes())
    both = [plan(role("worker", 9, nodes=nodes), run=run_ref(line), gang=API) for _ in range(2)]
    for made in both:
        cloud.apply(made)
    following.until(lambda: any(len(following.of(made.run, "Running")) == 9 for made in both))
    pods = plane.until(f"/api/v1/namespaces/{line}/pods", lambda pods: len(pods) == 18)
    assert sorted(bound(pods, made) for made in both) == [0, 9]
    for made in both:
        cloud.delete(made.run)
    following.until(lambda: all(following.is_gone(made.run) for made in both))


def test_a_failed_worker_starts_again_although_another_has_succeeded(
    plane: Plane, cloud: KubernetesCloud, namespace: str, line: str
) -> None:
    made = plan(role("master"), role("worker", 2), run=run_ref(line), gang=API)
    mine, index = (
        f"{names.selector(run_id=made.run.id)},{names.ROLE}=worker",
        "batch.kubernetes.io/job-completion-index",
    )
    with Following(cloud, acknowledges=False) as following:
        cloud.apply(made)
        following.until(lambda: len(following.of(made.run, "Running")) == 3)
        plane.end_pods(line, f"{mine},{index}=0", 0)
        plane.end_pods(line, f"{mine},{index}=1", 1)
        following.until(lambda: [(each.index, each.attempt) for each in following.of(made.run, "Pending")] == [(1, 1)])
        other_software(plane, namespace, "later", "", 1, 1)
        plane.until(f"/api/v1/namespaces/{namespace}/pods", lambda pods: bool(pods["later"]["spec"].get("nodeName")))
        pods = plane.request("GET", f"/api/v1/namespaces/{line}/pods", labelSelector=f"{mine},{index}=1")["items"]
        assert sum("nodeName" in pod["spec"] for pod in pods) == 1, (
            "Kubernetes takes no pod of a group that has ended into account"
        )
        assert count(plane, made) == 3
        following.acknowledges = True
        following.until(
            lambda: (
                [(each.index, each.attempt) for each in following.of(made.run, "Running") if each.role == "worker"]
                == [(1, 1)]
            )
        )
        assert count(plane, made) == gangs.OPEN
        cloud.apply(made)
        assert count(plane, made) == gangs.OPEN, "applied again, it stays open"
        cloud.delete(made.run)
        following.until(lambda: following.is_gone(made.run))


def test_a_service_whose_tasks_were_all_evicted_comes_back_even_if_its_group_was_deleted(
    plane: Plane, cloud: KubernetesCloud, line: str, following: Following
) -> None:
    made = plan(role("master", restart="Always"), role("worker", 2, restart="Always"), run=run_ref(line), gang=API)
    cloud.apply(made)
    following.until(lambda: len(following.of(made.run, "Running")) == 3)
    # The note on the owner goes last; until then an apply makes the group as it was at first.
    noted = names.owner_name(made.run)
    plane.until(
        f"/api/v1/namespaces/{line}/configmaps",
        lambda found: names.GANG not in found[noted]["metadata"]["annotations"],
    )
    assert count(plane, made) == gangs.OPEN
    group = f"/apis/{API}/namespaces/{line}/podgroups/{gangs.name(made.run)}"
    plane.request("DELETE", group)
    plane.request("PATCH", group, {"metadata": {"finalizers": None}})
    cloud.apply(made)
    assert count(plane, made) == gangs.OPEN
    before = {each.uid for each in following.of(made.run, "Running")}
    plane.request("DELETE", f"/api/v1/namespaces/{line}/pods", labelSelector=names.selector(run_id=made.run.id))
    following.until(lambda: len({each.uid for each in following.of(made.run, "Running")} - before) == 3)
    cloud.delete(made.run)
    following.until(lambda: following.is_gone(made.run))


def test_a_run_of_which_the_namespace_takes_no_group_starts_without_one(
    plane: Plane, cloud: KubernetesCloud, namespace: str, following: Following
) -> None:
    plane.request(
        "PATCH", f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {names.PORTAL: cloud._settings.portal}}}
    )
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/podgroups.scheduling.k8s.io": "0"}}}
    plane.request("POST", f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    body = gangs.manifest(run_ref(namespace), API, 2)
    plane.until_admitted(f"/apis/{API}/namespaces/{namespace}/podgroups", body, "exceeded quota")
    assert "exceeded quota" in cloud.preflight([namespace]).facts[probe.FACT]["message"]
    made = plan(role("worker", 2), run=run_ref(namespace), gang=API)
    cloud.apply(made)
    following.until(lambda: len(following.of(made.run, "Running")) == 2)
    assert groups(plane, namespace) == {}
    cloud.delete(made.run)
    following.until(lambda: following.is_gone(made.run))


def test_a_role_without_rights_to_groups_is_told_and_its_runs_start_without_one(plane: Plane, line: str) -> None:
    role_of_portal = yaml.safe_load(ROLE.read_text())
    role_of_portal["rules"] = [rule for rule in role_of_portal["rules"] if gangs.PLURAL not in rule["resources"]]
    config = bound_to(plane, f"older-{line}", role_of_portal)
    older = KubernetesCloud(Client.connect(yaml.safe_load(config)), Settings(portal=line))
    found = older.preflight([line])
    assert found.ok, found.message
    said = found.facts[probe.FACT]
    assert not said["enforced"]
    assert "the portal may not watch podgroups.scheduling.k8s.io, " in said["message"]
    made = plan(role("worker", 2), run=run_ref(line), gang=API)
    with Following(older) as following:
        older.apply(made)
        following.until(lambda: len(following.of(made.run, "Running")) == 2)
        older.delete(made.run)
        following.until(lambda: following.is_gone(made.run))


def test_what_a_connection_test_leaves_that_dies_goes_by_itself_or_with_the_next_one(
    plane: Plane, cloud: KubernetesCloud, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(probe, "LIFE", 1)
        patched.setattr(probe.Trial, "judge", lambda trial: trial._make() and probe.Proof("", "died"))
        cloud.preflight([line])
    of_trials = {"labelSelector": names.PROBE}
    plane.until(f"/apis/batch/v1/namespaces/{line}/jobs", lambda jobs: not jobs, **of_trials)
    plane.until(f"/api/v1/namespaces/{line}/pods", lambda pods: not pods, **of_trials)
    assert len(left_of_trials(plane)) == 2, "the owner and the group, which hold nothing"
    assert cloud.preflight([line]).facts[probe.FACT]["enforced"]
    assert len(left_of_trials(plane)) == 2, "it may be the trial of somebody who tests right now"
    monkeypatch.setattr(probe, "LEFT_OVER", dt.timedelta(0))
    assert cloud.preflight([line]).facts[probe.FACT]["enforced"]
    plane.until(f"/apis/{API}/namespaces/{line}/podgroups", lambda groups: not groups)
    assert left_of_trials(plane) == []


def test_independent_and_single_tasks_have_no_group() -> None:
    for roles in ((role("worker", 5, at_once=2),), (role("master"),)):
        assert gangs.size(plan(*roles, gang=API)) == 0
    assert gangs.size(plan(role("master"), role("worker", 4), gang="")) == 0
    assert gangs.size(plan(role("master"), role("worker", 4), gang=API)) == 5


@pytest.fixture
def loops(plane: Plane, people: Any) -> Iterator[Loops]:
    from clusters.catalog.models import Flavor
    from portal.models import Appcode

    loops = Loops(plane, f"gangs-{secrets.token_hex(4)}", yaml.safe_load(portal_kubeconfig(plane).read_text()))
    loops.catalogue()
    Flavor.objects.create(name="eight-gpus", title="8 GPUs", cpu_milli=100, memory_mb=128, gpus=8)
    Appcode.objects.update(gpu_quota=100)
    loops.start()
    try:
        yield loops
        end_all(loops)
    finally:
        loops.stop()


@pytest.mark.django_db(transaction=True)
def test_a_tested_cloud_binds_nothing_of_a_run_from_which_others_take_a_gpu_after_the_decision(
    plane: Plane, loops: Loops, people: Any, namespace: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusters.cloud_admin import actions
    from clusters.clouds.models import Cloud, CloudState
    from clusters.clouds.registry import run_ref as ref_of
    from clusters.runs.placing import places
    from portal.models import Event
    from tests.api.client import api_of

    monkeypatch.setattr(places, "BLINK", dt.timedelta(seconds=1))
    assert actions.try_connection(Cloud.objects.get(name="kubernetes")).ok
    told = api_of(people.root).get("/kubernetes/kubernetes")[1]["status"]["test"]["allOrNone"]
    assert told == {"enforced": True, "api": API, "message": f"{probe.ENFORCED} ({API})"}
    client.force_login(people.root)
    assert (
        f"all at once or none, by the PodGroups of <code>{API}</code>"
        in client.get("/admin/clouds/kubernetes/edit").content.decode()
    )
    loops.until(lambda: CloudState.objects.filter(capacity__nodes__1__isnull=False).exists())
    loops.stop_controller()  # It would see the pod before the decision.
    other_software(plane, namespace, "thief", min(plane.nodes()), 1, 1)
    gang = loops.create(people, "gang", workers=15)
    loops.until(lambda: loops.run(gang).applied_at)
    run = loops.run(gang)
    until_refused(plane, ref_of(run))
    mine = names.selector(portal=loops.portal, run_id=run.pk)
    pods = plane.until("/api/v1/pods", lambda pods: len(pods) == 16, labelSelector=mine)
    assert [name for name, pod in pods.items() if "nodeName" in pod["spec"]] == []
    loops.start_controller()
    loops.until(lambda: Event.objects.filter(verb="run.given_back").exists(), 60)
    loops.until(lambda: loops.left_of(run) == [])
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/thief", gracePeriodSeconds="0")
    loops.disable(people, gang)
