"""Faults between the portal and Kubernetes, through the whole loop. It converges within 30 s after the fault; nothing is
left over, duplicated or metered twice; and the page reports the fault meanwhile.
"""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.kubernetes.api import client as kubernetes_client
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.repair import upkeep
from clusters.clouds.drivers.kubernetes.watch import follower
from tests.kube import stages
from tests.kube.loops import CONVERGED, Loops
from tests.kube.plane import Object, Plane, phase
from tests.kube.proxy import Proxy, is_write, proxied
from tests.kube.test_plane import indexed_job
from tests.kube.test_plane import pod as any_pod

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]

AWAY_SECONDS = 20.0
AGAIN = "is asked again: The API server does not answer"


@pytest.fixture
def proxy(plane: Plane) -> Iterator[Proxy]:
    with proxied(plane) as proxy:
        yield proxy


@pytest.fixture
def loops(plane: Plane, proxy: Proxy, people: Any) -> Iterator[Loops]:
    loops = Loops(plane, f"bad-{secrets.token_hex(4)}", proxy.config)
    loops.catalogue()
    loops.start()
    try:
        yield loops
        end_all(loops)
    finally:
        loops.stop()


def end_all(loops: Loops) -> None:
    from clusters.runs.models import Run

    runs = list(Run.objects.filter(gone=False))
    Run.objects.filter(gone=False).update(desired="ended", release_asked_at=None)
    loops.until(lambda: not Run.objects.filter(gone=False).exists(), seconds=60)
    for run in runs:
        loops.until_nothing_is_left(run)


def trouble() -> str:
    from clusters.clouds.models import CloudState

    return CloudState.objects.get(name="kubernetes").trouble


def silence() -> str:
    from django.utils.timezone import now

    from clusters.clouds.health import silence
    from clusters.clouds.models import CloudState

    return silence(CloudState.objects.get(name="kubernetes"), "Kubernetes", now())


def test_the_api_server_is_away_while_runs_are_made_ended_and_watched(
    plane: Plane, proxy: Proxy, loops: Loops, people: Any
) -> None:
    """It stops after the third write of a launch, while another run is being ended. etcd is compacted before it returns, so
    that no watch can resume."""
    ending, staying = loops.create(people, "ending", workers=1), loops.create(people, "staying", workers=1, ps=1)
    loops.until_running(ending)
    before = {pod["metadata"]["uid"] for pod in loops.pods(loops.until_running(staying))}
    # The first, which creates the owner, has no name in its path.
    writes, stop = itertools.count(2), threading.Event()

    def before_call(method: str, path: str) -> None:
        if "-making-" in path and is_write(method, path) and next(writes) == 3:
            plane.compact()
            plane.stop_apiserver()
            stop.set()

    proxy.before = before_call
    making = loops.create(people, "making", workers=2, ps=1)
    assert stop.wait(60)
    proxy.before = lambda method, path: None
    stopped = time.monotonic()
    try:
        loops.disable(people, ending)
        for cluster in (making, ending):
            loops.until(lambda run=cluster: AGAIN in loops.run(run).message)  # type: ignore[misc]
        loops.until(lambda: "does not answer" in trouble())
        assert loops.run(staying).phase == "Running"
        loops.until(lambda: silence().startswith("Kubernetes has not answered for"))
        time.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - stopped)))
    finally:
        plane.start_apiserver()

    back = time.monotonic()
    loops.until(lambda: loops.run(ending).phase == "Stopped")
    loops.until_nothing_is_left(loops.run(ending))
    loops.until_running(making)
    assert {pod["metadata"]["uid"] for pod in loops.pods(loops.until_running(staying))} == before
    assert time.monotonic() - back < 30
    assert not trouble()
    assert not silence()
    for cluster in (ending, making, staying):
        run = loops.run(cluster)
        # A new controller may have created one pod too many and removed it again, which counts as an attempt.
        tasks = set(run.tasks.values_list("role", "index"))
        assert len(tasks) == sum(facts["count"] for facts in run.roles.values())
        loops.check_usage(run)


def test_a_third_of_all_calls_fail_and_everything_still_happens_once(
    plane: Plane, proxy: Proxy, loops: Loops, people: Any
) -> None:
    proxy.failing = 0.3
    cluster = loops.create(people, workers=7, ps=1)
    run = loops.until_running(cluster, seconds=60)
    loops.end(run, "worker", 0)
    loops.until(lambda: run.tasks.filter(phase="Succeeded").count() == 7, seconds=60)
    loops.disable(people, cluster)
    loops.until_phase(cluster, "Stopped", seconds=60)
    loops.until_nothing_is_left(run, seconds=60)
    assert run.tasks.count() == 9
    loops.check_usage(run)
    assert proxy.failed > 5


def are_warnings_listed(proxy: Proxy) -> bool:
    """Warnings are for display only, so nothing waits for this watch."""
    return any(method == "GET" and "/events?" in path and "watch=1" in path for method, path in proxy.calls)


@pytest.mark.usefixtures("brisk")
def test_a_watch_that_falls_silent_is_noticed_and_begun_again(
    plane: Plane, proxy: Proxy, loops: Loops, people: Any
) -> None:
    cluster = loops.create(people, workers=1)
    run = loops.until_running(cluster)
    loops.until(lambda: are_warnings_listed(proxy))
    listed = len(proxy.lists)
    proxy.silent.set()
    loops.end(run, "worker", 0)
    loops.end(run, "master", 0)
    loops.until(lambda: silence() and trouble(), seconds=90)
    assert loops.run(cluster).phase == "Running"
    proxy.silent.clear()
    run = loops.until_phase(cluster, "Succeeded")
    assert not silence()
    assert len(proxy.lists) == listed, "a watch goes on where it was; nothing is listed"
    loops.check_usage(run)


@pytest.mark.usefixtures("brisk")
def test_nothing_is_listed_while_watches_are_well(proxy: Proxy, loops: Loops, people: Any) -> None:
    loops.until_running(loops.create(people, workers=1))
    loops.until(lambda: are_warnings_listed(proxy))
    listed, watched = len(proxy.lists), len(proxy.calls)

    def begun_again() -> Counter[str]:
        calls = (urlsplit(path) for method, path in proxy.calls[watched:])
        return Counter(call.path for call in calls if "watch=1" in call.query)

    paths = [source.path for source in follower.sources(loops.portal)]
    loops.until(lambda: all(begun_again()[path] > 1 for path in paths))
    assert proxy.lists[listed:] == []


def test_a_server_that_only_fails_is_an_error_within_seconds(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_client, "TRY_SECONDS", 3.0)
    with proxied(plane) as proxy:
        client = Client.connect(str(proxy.kubeconfig(tmp_path)))
        proxy.failing = 1.0
        with pytest.raises(CloudError, match="The proxy says no"):
            client.get("/api/v1/nodes")
        assert proxy.failed > 1


def test_what_is_changed_by_hand_is_put_right(plane: Plane, loops: Loops, people: Any) -> None:
    from clusters.runs.models import Task
    from portal.models import Event

    cluster = loops.create(people, workers=3, ps=1, retries=1)
    run = loops.until_running(cluster)

    # A smaller Job: the pod that it ended is not counted as a failure.
    job = f"{names_of(loops, run, 'worker')}"
    plane.request("PATCH", loops.path("Job", run, job), {"spec": {"parallelism": 2}})
    loops.until(lambda: spec_of(plane, loops.path("Job", run, job))["parallelism"] == 3)
    loops.until_running(cluster)
    loops.later(run)
    told = Event.objects.filter(verb="run.changed_by_hand").values_list("message", flat=True)
    assert any("was changed by hand. The run is applied again." in message for message in told)

    # A scaled Deployment with another image.
    ps = names_of(loops, run, "ps")
    path = loops.path("Deployment", run, ps)
    plane.request("PATCH", f"{path}/scale", {"spec": {"replicas": 0}})
    loops.until(lambda: spec_of(plane, path)["replicas"] == 1)
    loops.until_running(cluster)
    loops.later(run)
    image = {"spec": {"template": {"spec": {"containers": [{"name": "task", "image": "evil/miner:1"}]}}}}
    plane.request("PATCH", path, image, content_type="application/strategic-merge-patch+json")
    loops.until(lambda: "evil" not in str(spec_of(plane, path)["template"]["spec"]["containers"]))
    loops.until_running(cluster)
    loops.later(run)

    # Deleted parts.
    for kind, name in (("Service", names_of(loops, run)), ("NetworkPolicy", names_of(loops, run)), ("Deployment", ps)):
        plane.request("DELETE", loops.path(kind, run, name))
        loops.until(
            lambda kind=kind, name=name: name in [each["metadata"]["name"] for each in loops.objects(kind, run)]
        )  # type: ignore[misc]
        loops.later(run)
    loops.until_running(cluster)
    plane.request("DELETE", loops.path("Job", run, job), propagationPolicy="Background")
    loops.until(lambda: job in [each["metadata"]["name"] for each in loops.objects("Job", run)])
    loops.until_running(cluster)
    assert not run.tasks.filter(role="worker", phase="Failed", disrupted=False).exists()

    # Remove labels and finalizers, so that no watch sees its end. Pods of the deleted Job may still exist.
    pod = next(
        each
        for each in loops.pods(run)
        if each["metadata"]["labels"][names.ROLE] == "worker"
        and "deletionTimestamp" not in each["metadata"]
        and phase(each) == "Running"
    )
    path = loops.path("Pod", run, pod["metadata"]["name"])
    for taken in ([names.PORTAL], [names.RUN_ID], [names.ROLE, names.RUN_ID, names.PORTAL]):
        plane.request("PATCH", path, {"metadata": {"labels": dict.fromkeys(taken)}})
        loops.until(lambda: metadata_of(plane, path)["labels"].items() >= pod["metadata"]["labels"].items())
    plane.request("PATCH", path, {"metadata": {"finalizers": None}})
    loops.until(lambda: names.METERING in metadata_of(plane, path).get("finalizers", []))
    owner = loops.path("ConfigMap", run, f"{names_of(loops, run)}-run")
    plane.request("PATCH", owner, {"metadata": {"labels": None}})
    loops.until(lambda: names.RUN_ID in metadata_of(plane, owner).get("labels", {}))
    plane.request("PATCH", owner, {"metadata": {"finalizers": None}})
    loops.until(lambda: names.TOLD in metadata_of(plane, owner).get("finalizers", []))
    assert Task.objects.get(uid=pod["metadata"]["uid"]).phase == "Running"

    loops.until_running(cluster)
    loops.disable(people, cluster)
    run = loops.until_phase(cluster, "Stopped")
    loops.until_nothing_is_left(run)


def test_a_quota_that_is_used_up_is_told_and_tasks_start_when_it_is_raised(
    plane: Plane, loops: Loops, people: Any
) -> None:
    """Jobs, a Deployment and a StatefulSet: their own controllers would retry only after minutes."""
    first = loops.create(people, "first")
    loops.until_running(first)
    path = "/api/v1/namespaces/ops/resourcequotas"
    quota = {"metadata": {"name": "tests"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1", "pods": "1"}}}
    plane.request("POST", path, quota)
    try:
        plane.until(path, lambda found: found["tests"].get("status", {}).get("used", {}).get("pods") == "1")
        plane.until_admitted("/api/v1/namespaces/ops/pods", any_pod("tried"), "exceeded quota: tests")
        batch = loops.create(people, "batch", workers=1, ps=2)
        service = loops.create(people, "service", mode="service")
        for cluster in (batch, service):
            loops.until(lambda run=cluster: loops.run(run).reason == "NamespaceQuota")  # type: ignore[misc]
            run = loops.run(cluster)
            assert run.phase == "Queued"
            assert run.message.startswith("The quota of namespace ops (tests) is used up: ")
            assert "pods 1 of 1" in run.message or "requests.nvidia.com/gpu 1 of 1" in run.message
        # By then the controllers' back-off is long.
        time.sleep(8)
        plane.request("PATCH", f"{path}/tests", {"spec": {"hard": {"requests.nvidia.com/gpu": "9", "pods": "3"}}})
        loops.until(lambda: loops.run(batch).tasks.count() + loops.run(service).tasks.count() == 2)
        loops.until(lambda: {loops.run(batch).reason, loops.run(service).reason} & {"NamespaceQuota", "Degraded"})
        plane.request("PATCH", f"{path}/tests", {"spec": {"hard": {"requests.nvidia.com/gpu": "9", "pods": "9"}}})
        for cluster in (batch, service):
            run = loops.until_running(cluster)
            loops.until(lambda run=cluster: loops.run(run).blocked_message == "")  # type: ignore[misc]
            loops.check_usage(run)
    finally:
        plane.request("DELETE", f"{path}/tests")


def test_a_quota_of_objects_is_waited_for(plane: Plane, loops: Loops, people: Any) -> None:
    loops.until_running(loops.create(people, "first"))
    path = "/api/v1/namespaces/ops/resourcequotas"
    plane.request("POST", path, {"metadata": {"name": "tests"}, "spec": {"hard": {"count/jobs.batch": "1"}}})
    try:
        plane.until(path, lambda found: "used" in found["tests"].get("status", {}))
        jobs = "/apis/batch/v1/namespaces/ops/jobs"
        plane.until_admitted(jobs, indexed_job("tried", 1), "exceeded quota: tests")
        cluster = loops.create(people, "second")
        loops.until(lambda: "exceeded quota: tests" in loops.run(cluster).message)
        assert loops.run(cluster).reason == "CloudUnreachable"
    finally:
        plane.request("DELETE", f"{path}/tests")
    loops.until_running(cluster)


def test_what_admission_refuses_is_told_in_its_words(plane: Plane, loops: Loops, people: Any) -> None:
    loops.until_running(loops.create(people, "first"))
    limits = {"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]}
    path = "/api/v1/namespaces/ops/limitranges"
    plane.request("POST", path, {"metadata": {"name": "tests"}, "spec": limits})
    refusal = "maximum memory usage per Container is 64Mi"
    try:
        plane.until_admitted("/api/v1/namespaces/ops/pods", any_pod("tried"), refusal)
        cluster = loops.create(people, "refused", workers=1)
        loops.until(lambda: loops.run(cluster).reason == "AdmissionDenied")
        message = f"The limits of namespace ops do not allow its pods: {refusal}, but limit is"
        assert loops.run(cluster).message.startswith(message)
    finally:
        plane.request("DELETE", f"{path}/tests")


def test_a_pull_secret_reaches_living_runs_and_goes_with_them(plane: Plane, loops: Loops, people: Any) -> None:
    """A secret that is saved during a run and then removed. The API server stores it only in the Secret that pods name,
    neither in another object nor in an Event, and nothing of it is left after the run."""
    from clusters.pull_secrets import actions as pull_secrets
    from portal.models import Event

    cluster = loops.create(people, workers=1)
    run = loops.until_running(cluster)
    (name,) = {each["name"] for pod in loops.pods(run) for each in pod["spec"]["imagePullSecrets"]}

    def auths() -> Any:
        secret = plane.request("GET", loops.path("Secret", run, name))
        assert secret["type"] == "kubernetes.io/dockerconfigjson"
        return json.loads(base64.b64decode(secret["data"][".dockerconfigjson"]))["auths"]

    assert auths() == {}
    line = people.ops.org_node
    for host, password in (("registry.example.com:5000", "first-word"), ("docker.io", "second-word")):
        spec = pull_secrets.PullSecretSpec(username="robot", password=password)
        pull_secrets.save_secret(line, host, spec, acting_user=people.root)
    loops.until(lambda: len(auths()) == 2)
    assert auths()["registry.example.com:5000"] == {
        "username": "robot",
        "password": "first-word",
        "auth": base64.b64encode(b"robot:first-word").decode(),
    }
    assert auths()["https://index.docker.io/v1/"]["password"] == "second-word"
    pull_secrets.remove_secret(line.path, "docker.io", acting_user=people.root)
    loops.until(lambda: set(auths()) == {"registry.example.com:5000"})
    assert loops.until_running(cluster).pk == run.pk
    shown = [thing for kind in ("Pod", "Job", "ConfigMap") for thing in loops.objects(kind, run)]
    assert not any("-word" in json.dumps(thing) for thing in shown)
    assert not any("-word" in f"{each.message} {each.data}" for each in Event.objects.all())
    loops.disable(people, cluster)
    loops.until_nothing_is_left(run)


def test_a_pod_deleted_by_hand_comes_back(plane: Plane, loops: Loops, people: Any) -> None:
    cluster = loops.create(people, workers=1, ps=1, retries=1)
    run = loops.until_running(cluster)
    for role in ("worker", "ps"):
        (pod,) = [each for each in loops.pods(run) if each["metadata"]["labels"][names.ROLE] == role]
        plane.request("DELETE", loops.path("Pod", run, pod["metadata"]["name"]))
        loops.until(lambda role=role: run.tasks.filter(role=role, attempt=1, phase="Running").exists())  # type: ignore[misc]
        assert run.tasks.get(role=role, attempt=0).message == "Somebody deleted its pod."
    run = loops.until_running(cluster)
    assert "was started again once" in run.message
    loops.check_usage(run)


def test_pods_that_went_while_nobody_watched_end_when_they_were_last_seen(
    plane: Plane, loops: Loops, people: Any
) -> None:
    """Deleted by force and without finalizer: one pod of a run that goes on, and all pods of a run whose owner is gone too."""
    from billing.models import UsageSegment
    from clusters.clouds.models import CloudState

    going, gone = loops.create(people, "going", workers=1), loops.create(people, "gone")
    run, lost = loops.until_running(going), loops.until_running(gone)
    loops.stop_controller()
    heard_at = CloudState.objects.get(name="kubernetes").heard_at
    assert heard_at is not None
    (worker,) = [each for each in loops.pods(run) if each["metadata"]["labels"][names.ROLE] == "worker"]
    owner = loops.path("ConfigMap", lost, f"{names_of(loops, lost)}-run")
    plane.request("DELETE", owner)
    plane.request("PATCH", owner, {"metadata": {"finalizers": None}})
    for pod in [worker, *loops.pods(lost)]:
        path = f"/api/v1/namespaces/ops/pods/{pod['metadata']['name']}"
        plane.request("DELETE", path, gracePeriodSeconds="0")
        plane.request("PATCH", path, {"metadata": {"finalizers": None}})
    plane.until("/api/v1/namespaces/ops/pods", lambda pods: worker["metadata"]["name"] not in pods)
    time.sleep(2)
    loops.start_controller()
    segment = UsageSegment.objects.filter(uid=worker["metadata"]["uid"], ended__isnull=False)
    loops.until(segment.exists)
    found = segment.get()
    assert found.ended is not None
    assert found.ended <= heard_at
    assert "end-estimated" in found.flags
    loops.until_running(going, seconds=45)
    # The run that should still be running is started anew.
    loops.until_running(gone, seconds=45)
    assert UsageSegment.objects.filter(consumer=f"run {lost.pk}", ended__isnull=True).count() == 1


@pytest.mark.timeout(300)
def test_a_node_that_is_lost_says_so_and_its_tasks_start_elsewhere(plane: Plane, loops: Loops, people: Any) -> None:
    """Kubernetes checks nodes every 20 s and waits 40 s plus the time to the next check until it considers one lost, up to
    80 s in total. From then on the portal has 30 s."""
    from billing.models import UsageSegment
    from clusters.catalog.models import Flavor
    from clusters.cloud_admin import actions
    from clusters.clouds import registry
    from clusters.clouds.models import CloudState
    from portal.errors import Conflict

    def nodes() -> list[Any]:
        found: list[Any] = CloudState.objects.get(name="kubernetes").capacity["nodes"]
        return found

    (node,) = plane.add_nodes(1, model="NVIDIA-DOOMED")
    Flavor.objects.create(
        name="doomed", title="Doomed", cpu_milli=100, memory_mb=128, gpus=1, gpu_model="NVIDIA-DOOMED"
    )
    cluster = loops.create(people, workers=1, flavor="doomed")
    run = loops.until_running(cluster)
    cloud = registry.registered().get()
    with pytest.raises(Conflict, match=f"Node {node} answers"):
        actions.give_up_node(cloud, node, acting_user=people.root)
    plane.lose_node(node)
    loops.until(lambda: loops.run(cluster).reason == "Degraded")
    assert f"Node {node} does not answer" in loops.run(cluster).message
    lease = plane.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}")
    heard = dt.datetime.fromisoformat(lease["spec"]["renewTime"])
    silent = {"name": node, "silent_since": heard.isoformat(timespec="seconds")}
    loops.until(lambda: any(silent.items() <= each.items() for each in nodes()))
    plane.add_nodes(1, model="NVIDIA-DOOMED")
    actions.give_up_node(cloud, node, acting_user=people.root)
    loops.until(lambda: run.tasks.filter(phase="Failed").count() == 2, seconds=80 + CONVERGED)
    lost = run.tasks.filter(phase="Failed").first()
    assert (lost.reason, lost.disrupted) == ("Disrupted", True)
    loops.until_running(cluster)
    loops.check_usage(run)
    segments = UsageSegment.objects.filter(consumer=f"run {run.pk}").exclude(ended=None)
    assert len(segments) == 2
    for segment in segments:
        assert segment.ended <= max(segment.started, heard)
        assert "end-estimated" in segment.flags
    loops.until(lambda: any("given up" in each["note"] for each in nodes() if each["name"] == node))


def test_an_image_that_nodes_cannot_pull_ends_its_run_and_frees_its_gpus(
    plane: Plane, loops: Loops, people: Any
) -> None:
    """Through the whole loop, including a new controller: nothing is left or billed, and the run reports the kubelet's
    message."""
    from clusters.catalog.models import Flavor
    from clusters.clouds.models import Cloud

    loops.stop_controller()
    Cloud.objects.filter(name="kubernetes").update(settings={"portal": loops.portal, "image_seconds": 3}, revision=7)
    loops.start_controller()
    Flavor.objects.create(
        name="unpulled", title="Unpulled", cpu_milli=100, memory_mb=128, gpus=1, gpu_model="NVIDIA-UNPULLED"
    )
    # Pods are bound to its node and nothing starts them, until it is told of their images.
    (node,) = plane.add_nodes(1, model="NVIDIA-UNPULLED")
    plane.request("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": {stages.SIMULATED: None}}})
    cluster = loops.create(people, workers=1, flavor="unpulled")
    loops.until(lambda: sum("nodeName" in pod["spec"] for pod in loops.pods(loops.run(cluster))) == 2)
    run = loops.run(cluster)
    for pod in loops.pods(run):
        waits = {"metadata": {"annotations": {"plane/waiting": "ImagePullBackOff"}}}
        plane.request("PATCH", loops.path("Pod", run, pod["metadata"]["name"]), waits)
    plane.request("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": {stages.SIMULATED: "true"}}})
    ended = loops.until_phase(cluster, "Failed")
    assert ended.reason == "ImageNotPulled"
    assert ended.message.startswith(
        "Image example/tensorflow:2.21 cannot be fetched (ImagePullBackOff): ImagePullBackOff"
    )
    assert ended.message.endswith("It was tried for 1 minute.")
    assert (ended.gpu_seconds, ended.cost) == (0, 0)
    loops.check_usage(run)
    loops.until_nothing_is_left(run)


def test_an_order_that_comes_after_the_end_is_taken_back(plane: Plane, loops: Loops, people: Any) -> None:
    from billing.models import UsageSegment
    from clusters.clouds import registry
    from clusters.runs.models import Run
    from clusters.runs.reconcile import plan_of
    from portal.models import Event

    cluster = loops.create(people, workers=1)
    run = loops.until_running(cluster)
    loops.disable(people, cluster)
    run = loops.until_phase(cluster, "Stopped")
    loops.until_nothing_is_left(run)
    late = plan_of(Run.objects.select_related("cluster__appcode").get(pk=run.pk))
    registry.cloud("kubernetes").apply(late)
    loops.until(lambda: Event.objects.filter(verb="run.found").exists())
    loops.until(lambda: loops.run(cluster).gone)
    loops.until_nothing_is_left(run)
    assert loops.run(cluster).phase == "Stopped"
    # What the late pods used is metered, and has ended.
    assert not UsageSegment.objects.filter(ended=None).exists()


def test_runs_that_the_database_does_not_know_are_told_and_ended_by_command(
    plane: Plane, loops: Loops, people: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a restore from a backup."""
    from django.core.management import call_command

    from clusters.clouds import registry
    from clusters.runs.models import Run
    from clusters.runs.reconcile import plan_of
    from portal.models import Event

    known = loops.create(people, "known")
    run = loops.until_running(known)
    plan = plan_of(Run.objects.select_related("cluster__appcode").get(pk=run.pk))
    unknown = type(plan.run)(run.pk + 1000, "ops", "ops-demo", "forgotten", 4)
    registry.cloud("kubernetes").apply(type(plan)(unknown, plan.image, plan.roles, plan.mounts))
    loops.until(lambda: Event.objects.filter(verb="cloud.unknown_run").exists())
    assert loops.run(loops.create(people, "next")).pk > unknown.id
    loops.stop_controller()
    loops.start_controller()
    assert "ops-demo/forgotten" in Event.objects.get(verb="cloud.unknown_run").message
    call_command("unknown_runs")
    printed = capsys.readouterr().out
    assert "ops-demo/forgotten" in printed
    assert "ops-demo/known" not in printed
    call_command("unknown_runs", "--end")
    label = names.selector(portal=loops.portal, run_id=unknown.id)
    plane.until("/api/v1/namespaces/ops/configmaps", lambda found: not found, labelSelector=label)
    assert plane.request("GET", "/api/v1/namespaces/ops/pods", labelSelector=label)["items"] == []
    loops.until_running(known)


def test_what_could_not_be_started_any_more_goes_on_when_it_is_changed_by_hand(
    plane: Plane, loops: Loops, people: Any
) -> None:
    from clusters.catalog.models import Image
    from portal.models import Event

    cluster = loops.create(people, workers=1)
    run = loops.until_running(cluster)
    Image.objects.update(container="")
    plane.request("DELETE", loops.path("Service", run, names_of(loops, run)))
    loops.until(lambda: Event.objects.filter(verb="run.not_put_right").exists())
    assert loops.run(cluster).applied_at
    assert loops.until_running(cluster).message == "2 of 2 tasks running."


def test_a_server_that_asks_to_wait_is_not_asked_before(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxied(plane) as proxy:
        client = Client.connect(str(proxy.kubeconfig(tmp_path)))
        monkeypatch.setattr(proxy.random, "choice", lambda kinds: 429)
        # However slow this machine is, the call is tried three times.
        monkeypatch.setattr(kubernetes_client, "TRY_SECONDS", 60.0)
        times: list[float] = []

        def before_call(method: str, path: str) -> None:
            times.append(time.monotonic())
            proxy.failing = 1.0 if len(times) < 3 else 0.0

        proxy.before = before_call
        client.get("/api/v1/nodes")
    assert len(times) == 3
    assert all(1.0 <= later - earlier < 10.0 for earlier, later in itertools.pairwise(times))


def test_volumes_and_pods_that_nobody_owns_are_cleared_away(
    plane: Plane, loops: Loops, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late order creates a volume after its run has ended; a deletion with orphan policy leaves pods without their Job."""
    cluster = loops.create(people)
    run = loops.until_running(cluster)
    # By default the portal notices after 20 s that the Job cannot end the pod, and 10 s later that it has no owner.
    monkeypatch.setattr(upkeep, "STOP_SECONDS", 4.0)
    monkeypatch.setattr(upkeep, "STRAY_AGE", 2.0)
    plane.request("DELETE", loops.path("Job", run, names_of(loops, run, "master")), propagationPolicy="Orphan")
    loops.until(lambda: len(loops.objects("Job", run)) == 1)
    volume = {
        "metadata": {"name": f"stray-{run.pk}", "labels": names.run_labels(loops.portal, late_ref(run))},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "nfs": {"server": "nfs.example", "path": "/data"},
        },
    }
    loops.disable(people, cluster)
    run = loops.until_phase(cluster, "Stopped", seconds=120)
    plane.request("POST", "/api/v1/persistentvolumes", volume)
    loops.until_nothing_is_left(run)


def late_ref(run: Any) -> Any:
    from clusters.clouds.registry import run_ref

    return run_ref(run)


def names_of(loops: Loops, run: Any, role: str = "") -> str:
    ref = late_ref(run)
    return names.role_name(ref, role) if role else names.base_name(ref)


def spec_of(plane: Plane, path: str) -> Object:
    found: Object = plane.request("GET", path)["spec"]
    return found


def metadata_of(plane: Plane, path: str) -> Object:
    found: Object = plane.request("GET", path)["metadata"]
    return found
