"""One portal with several clouds: this machine and Kubernetes clusters, a business line on each, one of them unreachable.

The real controller runs a thread per cloud, the workers do what Celery's would, and users view pages.
"""

from __future__ import annotations

import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.test import Client

from clusters.clouds.drivers.kubernetes.render import names
from tests.kube.following import hand_over, portal_kubeconfig, registered
from tests.kube.loops import Rounds, told
from tests.kube.plane import Plane

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]
SECONDS = 60.0


class Portal:
    """Workers and controllers in threads of this process, and the actions of users."""

    def __init__(self, plane: Plane, people: Any) -> None:
        self.plane, self.people = plane, people
        self.label = f"several-{secrets.token_hex(4)}"
        self._stopped = threading.Event()
        self._stops: list[threading.Event] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self.first_controller = self.start_controller()
        self._start(self._work, self._stopped)

    def start_controller(self) -> threading.Event:
        """Starts a controller. Returns the event that ends it."""
        from clusters.runs.status.follower import follow_all

        self._stops.append(threading.Event())
        self._start(follow_all, self._stops[-1])
        return self._stops[-1]

    def stop(self) -> None:
        for event in (*self._stops, self._stopped):
            event.set()
        for thread in self._threads:
            thread.join()

    def _start(self, target: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _work(self, stopped: threading.Event) -> None:
        from django.db import connections
        from django.db.models import Q
        from django.utils.timezone import now

        from clusters.clouds.registry import cloud_names
        from clusters.runs import quota, reconcile
        from clusters.runs.models import Run
        from clusters.runs.placing import places

        # The thread's database connection ends with it.
        with ThreadPoolExecutor(4) as threads:
            for _ in Rounds(stopped):
                for appcode in (self.people.ops, self.people.flight):
                    quota.admit_waiting(appcode.pk)
                for cloud in cloud_names():
                    places.place(cloud)
                free = Q(claimed_until=None) | Q(claimed_until__lt=now())
                for run_id in list(Run.objects.filter(reconcile.unsettled(now()), free).values_list("pk", flat=True)):
                    threads.submit(reconcile.reconcile, run_id)
        connections.close_all()

    # -- what people do and see --------------------------------------------------------------------------------------

    def create(self, name: str, appcode: str, command: str = "exec sleep 600", **spec: Any) -> Any:
        from clusters.cluster.actions import create_cluster
        from clusters.manifest.cluster import ClusterManifest

        body = {"image": "python", "command": command, "roles": {"master": {"flavor": "one-gpu"}}, **spec}
        document = {"kind": "cluster", "metadata": {"name": name, "appcode": appcode}, "spec": body}
        return create_cluster(ClusterManifest.model_validate(document), acting_user=self.people.root)

    def disable(self, cluster: Any) -> None:
        from clusters.cluster import actions

        actions.disable(cluster, acting_user=self.people.root)

    def page(self, address: str) -> str:
        browser = Client()
        browser.force_login(self.people.root)
        answer = browser.get(address)
        assert answer.status_code == 200
        return answer.content.decode()

    def until(self, happened: Callable[[], object], seconds: float = SECONDS) -> float:
        began = time.monotonic()
        while not happened():
            assert time.monotonic() < began + seconds, told()
            time.sleep(0.2)  # a page takes half of that
        return time.monotonic() - began

    def until_phase(self, cluster: Any, *phases: str, seconds: float = SECONDS) -> Any:
        from clusters.runs.models import Run

        self.until(lambda: Run.objects.get(current_of=cluster).phase in phases, seconds)
        return Run.objects.get(current_of=cluster)

    def place(self, line: str, cloud: str | None) -> None:
        from clusters.cloud_admin import actions as cloud_actions
        from portal.models import OrgNode

        cloud_actions.place(OrgNode.objects.get(path=line), cloud, acting_user=self.people.root)

    def state(self, cloud: str) -> Any:
        from clusters.clouds.models import CloudState

        return CloudState.objects.filter(name=cloud).first()


@pytest.fixture
def portal(plane: Plane, people: Any, node_agent: Any) -> Iterator[Portal]:
    """OPS runs on this machine, Flight on the Kubernetes cluster `training`."""
    from clusters.catalog.models import Flavor, Image
    from clusters.runs.models import Run

    Flavor.objects.create(name="one-gpu", title="Middle + 1 GPU", cpu_milli=100, memory_mb=128, gpus=1)
    Image.objects.create(name="python", title="Python", environment=sys.prefix, container="example/python:3")
    portal = Portal(plane, people)
    # A follower manages all namespaces that it finds, so it must not find those that a test hands to another portal.
    registered(plane, "training", portal=portal.label, namespace="flight")
    portal.place("qunarcorp.flight", "training")
    portal.start()
    try:
        yield portal
        Run.objects.filter(gone=False).update(desired="ended", release_asked_at=None, claimed_until=None)
        portal.until(lambda: not Run.objects.filter(gone=False).exists(), 60)
    finally:
        portal.stop()


def owners(plane: Plane, label: str) -> list[Any]:
    """Returns the owners that runs of this portal left behind."""
    path = "/api/v1/namespaces/flight/configmaps"
    return list(plane.request("GET", path, labelSelector=names.selector(portal=label))["items"])


def test_two_lines_run_on_two_clouds_at_once(plane: Plane, portal: Portal) -> None:
    from billing.models import UsageSegment
    from clusters.runs.models import Run

    here, there = portal.create("here", "ops-demo"), portal.create("there", "flight-demo")
    portal.until(lambda: Run.objects.filter(phase="Running").count() == 2)
    run_here, run_there = (Run.objects.get(current_of=cluster) for cluster in (here, there))
    assert (run_here.cloud, run_here.namespace) == ("local", "ops")
    assert (run_there.cloud, run_there.namespace) == ("training", "flight")
    assert portal.state("local").position != portal.state("training").position
    assert "training/flight" in portal.page("/clusters/flight-demo/there")
    assert "Nodes of Training" in portal.page("/admin/flavors")
    plane.end_pods("flight", names.selector(portal=portal.label, run_id=run_there.pk), 0)
    portal.disable(here)
    portal.until_phase(there, "Succeeded")
    portal.until_phase(here, "Stopped")
    held = dict(UsageSegment.objects.filter(ended__isnull=False).values_list("consumer", "gpus"))
    assert held == {f"run {run_here.pk}": 1, f"run {run_there.pk}": 1}
    portal.until(lambda: not owners(plane, portal.label))


def test_an_api_server_that_is_away_stops_nobody_else_and_what_was_wanted_meanwhile_comes_true(
    plane: Plane, portal: Portal
) -> None:
    from clusters.runs.models import Run

    there = portal.create("there", "flight-demo")
    portal.until_phase(there, "Running")
    plane.stop_apiserver()
    try:
        portal.disable(there)
        late = portal.create("late", "flight-demo")
        portal.until(lambda: portal.state("training").trouble)
        for name in ("one", "two"):
            assert portal.until_phase(portal.create(name, "ops-demo", "echo done"), "Succeeded").cloud == "local"
        portal.until(lambda: "what you see is from then" in portal.page("/clusters/flight-demo/there"))
        told = portal.page("/clusters/flight-demo/there/head")
        assert re.search(r"Training has not answered for \d+ (s|minutes?);", told)
        assert "what you see is from then" in portal.page("/")
        assert "what you see is from then" not in portal.page("/clusters/ops-demo/two/head")
        portal.until(lambda: Run.objects.get(current_of=late).reason == "CloudUnreachable")
        assert "does not answer" in portal.state("training").trouble
        assert not portal.state("local").trouble
    finally:
        plane.start_apiserver()
    portal.until_phase(there, "Stopped")
    portal.until_phase(late, "Running")
    assert not portal.state("training").trouble
    assert "what you see is from then" not in portal.page("/")


def test_a_node_agent_that_is_away_stops_nobody_else(portal: Portal, settings: Any) -> None:
    here = portal.create("here", "ops-demo")
    portal.until_phase(here, "Running")
    address = settings.LOCAL_CLOUD_SOCKET
    settings.LOCAL_CLOUD_SOCKET = f"{address}.away"
    portal.disable(here)
    portal.until(lambda: portal.state("local").trouble)
    portal.until_phase(portal.create("there", "flight-demo"), "Running")
    settings.LOCAL_CLOUD_SOCKET = address
    portal.until_phase(here, "Stopped")


def test_running_processes_use_new_credentials_at_once(plane: Plane, portal: Portal) -> None:
    """Without a restart: workers and controller notice new and removed clouds themselves."""
    from clusters.cloud_admin import actions as cloud_actions
    from clusters.cloud_admin.manifest import read_manifest
    from clusters.clouds.models import CloudState

    def manifest(kubeconfig: str) -> Any:
        spec = {"kubeconfig": kubeconfig, "settings": {"portal": f"{portal.label}-new"}}
        return read_manifest({"metadata": {"name": "fresh"}, "spec": spec})

    hand_over(plane, f"{portal.label}-new", "ops")
    stranger = plane.kubeconfig_for(f"stranger-{secrets.token_hex(3)}").read_text()
    row = cloud_actions.register(manifest(stranger), acting_user=portal.people.root)
    portal.until(lambda: "cannot list" in getattr(portal.state("fresh"), "trouble", ""))
    portal.place("qunarcorp.ops", "fresh")
    cluster = portal.create("there", "ops-demo")
    portal.until(lambda: "cannot" in portal.page("/clusters/ops-demo/there/head"))
    cloud_actions.try_connection(row)
    row.refresh_from_db()
    assert not row.test["ok"]
    row = cloud_actions.change(row, manifest(portal_kubeconfig(plane).read_text()), acting_user=portal.people.root)
    run = portal.until_phase(cluster, "Running")
    assert run.cloud == "fresh"
    portal.until(lambda: not portal.state("fresh").trouble)
    portal.place("qunarcorp.ops", None)
    portal.disable(cluster)
    portal.until_phase(cluster, "Stopped")
    cloud_actions.remove(row, acting_user=portal.people.root)
    portal.until(lambda: not any(thread.name == "follow-fresh" for thread in threading.enumerate()))
    assert not CloudState.objects.filter(name="fresh").exists()


def test_a_second_controller_waits_and_takes_over(portal: Portal) -> None:
    """Each cloud has a lock of its own."""
    from django.db import connection

    def locks(granted: bool) -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted = %s AND database = "
                "(SELECT oid FROM pg_database WHERE datname = current_database())",
                [granted],
            )
            return int(cursor.fetchone()[0])

    portal.start_controller()
    portal.until(lambda: (locks(True), locks(False)) == (2, 2))
    portal.first_controller.set()
    portal.until(lambda: (locks(True), locks(False)) == (2, 0))
    portal.until_phase(portal.create("here", "ops-demo", "echo done"), "Succeeded")
    portal.until_phase(portal.create("there", "flight-demo"), "Running")


def test_two_kubernetes_clusters_side_by_side(plane: Plane, portal: Portal) -> None:
    """Two rows for one API server with different labels: neither sees objects of the other."""
    from clusters.runs.models import Run

    registered(plane, "serving", portal=f"{portal.label}-two", namespace="ops")
    portal.place("qunarcorp.ops", "serving")
    one, two = portal.create("one", "flight-demo"), portal.create("two", "ops-demo")
    portal.until(lambda: Run.objects.filter(phase="Running").count() == 2)
    assert {run.cloud: run.cluster.name for run in Run.objects.all()} == {"training": "one", "serving": "two"}
    portal.disable(one)
    portal.until_phase(one, "Stopped")
    assert Run.objects.get(current_of=two).phase == "Running"
    portal.disable(two)
    portal.until_phase(two, "Stopped")
