"""Services on this machine's real cloud: tiny models, served by the portal's own server. Routers are only rows with what a router
would report."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
import urllib.request
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from clusters.catalog.models import Flavor
from clusters.cluster import actions as clusters
from clusters.model_registry import actions as registry
from clusters.model_registry.models import ModelAlias, ModelVersion
from clusters.router import histograms, rows
from clusters.runs.models import Cluster, Run
from clusters.services import actions, notify
from clusters.services.controller import loop as serving
from clusters.services.controller.threads import Ear
from clusters.services.manifest import DeploySpec
from clusters.services.models import Replica, Revision, Rollout, Router, Service, ServiceMinute
from portal.models import Event
from tests.mortal import child

pytestmark = pytest.mark.django_db(transaction=True)

MODEL = """
class Model:
    inputs = [("x", "FP32", (-1,))]
    outputs = [("y", "FP32", (-1,))]

    def __init__(self, folder):
        self.by = float((folder / "by.txt").read_text())

    def predict(self, inputs):
        return {"y": inputs["x"] * self.by}
"""
SAMPLE = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [2]}]}
# The factor by which each version multiplies. The third crashes while loading.
FACTORS = {1: "10", 2: "20", 3: "no number", 4: "40"}


@pytest.fixture
def model(people: Any, catalogue: None, tmp_path: Any) -> Any:
    """digits with four versions in a folder of this machine; `champion` is the first."""
    from clusters.model_registry.models import RegisteredModel
    from datastores.models import AllowedFolder, Datastore, Version

    Flavor.objects.create(name="server", title="Server", cpu_milli=100, memory_mb=512)
    AllowedFolder.objects.create(path=str(tmp_path))
    disk = Datastore.objects.create(appcode=people.ops, name="disk", kind="local", spec={"path": str(tmp_path)})
    made = RegisteredModel.objects.create(appcode=people.ops, name="digits", version_count=4, created_by=people.bob)
    for number, factor in FACTORS.items():
        folder = tmp_path / f"v{number}"
        folder.mkdir()
        (folder / "model.py").write_text(MODEL)
        (folder / "by.txt").write_text(factor)
        frozen = Version.objects.create(
            datastore=disk, name=f"digits.{number}", folder=folder.name, digest="0", files=2, bytes=1
        )
        ModelVersion.objects.create(
            model=made, number=number, frozen=frozen, datastore="disk", folder=folder.name, files=[], size=1, format="python",
            state=ModelVersion.State.READY, sample=SAMPLE, created_by=people.bob,
        )  # fmt: skip
    registry.move_alias(made, "champion", 1, acting_user=people.bob)
    return made


class Serving:
    """The loop of services beside that of runs, with the report of a router."""

    def __init__(self, loop: Any, people: Any, logged: Any) -> None:
        self.loop, self.people, self.logged = loop, people, logged
        self.clock = dt.timedelta(0)

    @property
    def service(self) -> Service:
        return Service.objects.get()

    def now(self) -> dt.datetime:
        return timezone.now() + self.clock

    def tick(self) -> None:
        for service in Service.objects.all():
            said = {
                str(service.pk): {"route": service.route, "inFlight": {}, "waiting": 0, "stable": 0.0, "panic": 0.0}
            }
            Router.objects.update_or_create(name="one", defaults={"seen_at": self.now(), "services": said})
        serving.tick(self.now())
        assert not [each for each in self.logged.records if each.name == "clusters.services.controller.loop"], (
            self.logged.text
        )

    def until(self, condition: Any) -> None:
        def done() -> bool:
            self.tick()
            self.hold()
            return bool(condition())

        self.loop.until(done)

    def hold(self) -> None:
        """Asserts that every replica in the route is up at its address."""
        for each in self.led():
            assert each.run
            assert each.run.endpoints["predict"]["address"] == each.address

    def led(self) -> list[Replica]:
        rows = Replica.objects.filter(state="serving", revision__weight__gt=0).select_related("run", "revision")
        return list(rows)

    def answers(self) -> set[float]:
        """The predictions for 2 by all replicas in the route."""
        found = set()
        for each in self.led():
            url = f"http://{each.address}/v1/models/digits:predict"
            assert each.cluster
            proven = {"X-Portal-Gateway": each.cluster.proof}
            asked = urllib.request.Request(url, json.dumps({"instances": [2]}).encode(), proven)
            with urllib.request.urlopen(asked, timeout=30) as answer:
                found.add(json.load(answer)["predictions"][0])
        return found

    def deploy(self, version: int, **more: Any) -> Rollout | None:
        return actions.deploy(self.service, DeploySpec(version=version, **more), acting_user=self.people.bob)

    def move(self, version: int) -> None:
        model = ModelVersion.objects.get(number=version).model
        registry.move_alias(model, "champion", version, acting_user=self.people.bob)

    def rollouts(self) -> list[tuple[str, int, str]]:
        rows = Rollout.objects.order_by("number").values_list("kind", "to_revision__version__number", "phase")
        return list(rows)

    def is_quiet(self) -> bool:
        living = Replica.objects.exclude(state="gone")
        return (
            not Rollout.objects.filter(phase__in=Rollout.LIVING).exists()
            and not living.exclude(state="serving").exists()
        )


@pytest.fixture
def serve(loop: Any, people: Any, model: Any, caplog: Any) -> Any:
    found = Serving(loop, people, caplog)
    yield found
    for service in Service.objects.filter(deleted_at=None):
        actions.delete_service(service, acting_user=people.alice)
    loop.until(lambda: not Run.objects.filter(gone=False).exists())


@pytest.fixture
def create(serve: Any, service_manifest: Any, people: Any) -> Any:
    def make(**spec: Any) -> Any:
        rollout = {"keepWarm": 0, **spec.pop("rollout", {})}
        manifest = service_manifest(flavor="server", rollout=rollout, **spec)
        actions.create_service(manifest, acting_user=people.bob)
        serve.until(lambda: serve.service.phase == "Running")
        return serve

    return make


def test_from_the_first_version_to_the_next_and_back(create: Any) -> None:
    serve = create()
    assert serve.answers() == {20.0}
    one = Replica.objects.get()
    assert one.cluster
    assert (one.slot, one.cluster.name, one.cluster.part_of, one.cluster.origins) == (
        1,
        "digits-1",
        "services/digits",
        {},
    )
    assert one.run
    assert (one.run.phase, one.run.message, one.run.look_at) == ("Running", "1 task running.", None)
    before = serve.service.route

    serve.move(2)
    serve.until(serve.is_quiet)
    assert serve.rollouts() == [("rolling", 1, "Promoted"), ("rolling", 2, "Promoted")]
    assert serve.answers() == {40.0}
    assert serve.service.route > before
    serve.until(lambda: Replica.objects.filter(state="gone").count() == 1)
    gone = Replica.objects.get(state="gone")
    assert gone.pk == one.pk
    assert Run.objects.get(pk=one.run_id).stop_reason == "Replaced"
    assert Replica.objects.get(state="serving").slot == 2

    actions.rollback(serve.service, "It was better.", acting_user=serve.people.bob)
    serve.until(serve.is_quiet)
    assert serve.answers() == {20.0}
    back = Replica.objects.get(state="serving")
    # The cluster of the slot has its second run.
    assert (back.slot, back.cluster_id, back.run.number) == (1, one.cluster_id, 2)
    assert ModelAlias.objects.get(until=None).version.number == 1
    verbs = Event.objects.filter(object="service ops-demo/digits").values_list("verb", flat=True)
    assert {"service.rollout-begun", "service.rolled-out", "service.running"} <= set(verbs)


def test_a_version_that_crashes_while_loading_ends_and_the_old_one_goes_on(create: Any) -> None:
    serve = create()
    address = serve.led()[0].address
    serve.move(3)
    serve.until(lambda: Rollout.objects.filter(phase="Failed").exists())
    failed = Rollout.objects.get(phase="Failed")
    # The program's own error, without the number of running tasks and the end of the log.
    assert failed.message.startswith("ValueError: could not convert string to float")
    assert "\n" not in failed.message
    assert [each.address for each in serve.led()] == [address]
    assert serve.answers() == {20.0}
    serve.until(serve.is_quiet)
    assert not any(serve.tick() or Rollout.objects.filter(phase__in=Rollout.LIVING).exists() for _ in range(3))
    assert Event.objects.filter(verb="service.rollout-failed").count() == 1
    assert Revision.objects.get(version__number=3).weight == 0


def test_an_alias_that_moves_twice_cancels_what_it_began_first(create: Any) -> None:
    serve = create()
    serve.move(2)
    serve.tick()
    serve.move(4)
    serve.until(serve.is_quiet)
    assert serve.rollouts() == [("rolling", 1, "Promoted"), ("rolling", 2, "Cancelled"), ("rolling", 4, "Promoted")]
    assert Rollout.objects.get(phase="Cancelled").message == "Version 4 came before it was done."
    assert serve.answers() == {80.0}


def test_a_replica_whose_program_is_killed_leaves_the_route_and_comes_back_by_itself(create: Any) -> None:
    serve = create(replicas={"least": 2, "most": 2})
    one = serve.led()[0]
    clusters.end_part(one.cluster_id, "Disabled", "By a test.")
    serve.until(lambda: len(serve.led()) == 1)
    assert serve.service.phase == "Degraded"
    serve.until(lambda: len(serve.led()) == 2)
    assert serve.service.phase == "Running"
    # Its slot is reusable only after its run is over.
    assert {each.slot for each in serve.led()} == {2, 3}
    assert Replica.objects.get(state="gone").pk == one.pk


def test_old_ones_that_are_warm_answer_again_with_the_next_statement(create: Any) -> None:
    serve = create(rollout={"keepWarm": 600})
    serve.deploy(2)
    serve.until(lambda: serve.answers() == {40.0} and serve.is_quiet())
    assert Replica.objects.filter(state="serving").count() == 2
    # A user deployed it by hand; the alias follows.
    assert ModelAlias.objects.get(until=None).version.number == 2
    actions.rollback(serve.service, acting_user=serve.people.bob)
    assert serve.answers() == {20.0}
    serve.tick()
    assert serve.is_quiet()
    serve.clock = dt.timedelta(seconds=601)
    serve.until(lambda: Replica.objects.filter(state="serving").count() == 1)
    assert serve.answers() == {20.0}


@pytest.mark.parametrize(("errors", "phase", "factor"), [(50, "RolledBack", 20.0), (0, "Promoted", 40.0)])
def test_a_canary_is_compared_in_the_same_minutes(create: Any, errors: int, phase: str, factor: float) -> None:
    serve = create()
    serve.deploy(2, kind="canary", weight=20, minutes=1)
    serve.until(lambda: Rollout.objects.filter(phase="Comparing").exists())
    assert dict(Revision.objects.values_list("number", "weight")) == {1: 80, 2: 20}
    assert serve.answers() == {20.0, 40.0}
    minute = timezone.now().replace(second=0, microsecond=0) + dt.timedelta(minutes=1)
    for revision, failed in zip(Revision.objects.order_by("number"), (0, errors), strict=True):
        ServiceMinute.objects.create(
            service=serve.service, revision=revision, router="one", minute=minute, requests=100, errors=failed,
            latency=[0, 0, 100] + [0] * (histograms.BUCKETS - 3),
        )  # fmt: skip
    serve.clock = dt.timedelta(seconds=61)
    serve.until(serve.is_quiet)
    rollout = Rollout.objects.get(kind="canary")
    assert rollout.phase == phase
    assert rollout.judged["to"]["errors"] == errors
    assert serve.answers() == {factor}
    assert ModelAlias.objects.get(until=None).version.number == (2 if phase == "Promoted" else 1)


def test_who_may_start_nothing_any_more_is_said_and_the_old_one_goes_on(create: Any) -> None:
    from portal.models import Membership

    serve = create()
    Membership.objects.filter(user=serve.people.bob).delete()
    registry.move_alias(ModelVersion.objects.get(number=2).model, "champion", 2, acting_user=serve.people.alice)
    serve.until(serve.is_quiet)
    failed = Rollout.objects.get(phase="Failed")
    assert "may start nothing in ops-demo any more" in failed.message
    assert serve.answers() == {20.0}
    assert serve.service.phase == "Running"


def test_the_loop_may_be_killed_between_any_two_statements(create: Any) -> None:
    serve = create()
    serve.move(2)
    tries = 0
    while child(tries, lambda: serving.tick(timezone.now())):
        tries += 1
        assert Rollout.objects.filter(phase__in=Rollout.LIVING).count() <= 1
        assert Replica.objects.exclude(state="gone").count() <= 2
        assert Cluster.objects.count() <= 2
    assert tries > 20
    serve.until(serve.is_quiet)
    assert serve.rollouts() == [("rolling", 1, "Promoted"), ("rolling", 2, "Promoted")]
    assert serve.answers() == {40.0}


def test_two_loops_at_once_start_one_replica(create: Any) -> None:
    from django.db import connections

    serve = create()
    serve.move(2)
    gate = threading.Barrier(2)

    def look() -> None:
        gate.wait()
        serving.tick(timezone.now())
        connections.close_all()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert Replica.objects.exclude(state="gone").count() == 2
    assert Rollout.objects.count() == 2


def test_one_that_sleeps_wakes_when_a_router_has_somebody_waiting(create: Any) -> None:
    serve = create(replicas={"least": 0, "most": 1, "idleAfter": 30})
    serve.clock = dt.timedelta(seconds=31)
    serve.until(lambda: serve.service.phase == "Sleeping" and not Replica.objects.exclude(state="gone").exists())
    assert serve.service.scale["why"] == "Nobody has asked for 30 s."
    said = {str(serve.service.pk): {"route": 1, "waiting": 3, "stable": 0.1, "panic": 1.0}}
    Router.objects.update(seen_at=serve.now(), services=said)
    serving.tick(serve.now())
    assert Replica.objects.filter(state="starting").count() == 1
    serve.until(lambda: serve.answers() == {20.0})
    assert Event.objects.filter(verb="service.scaled").count() == 2


def test_the_end_of_its_last_replica_and_who_changes_it_wake_nobody_and_a_router_does(create: Any) -> None:
    serve = create(replicas={"least": 0, "most": 1, "idleAfter": 30})
    serve.clock = dt.timedelta(seconds=31)
    serve.until(lambda: serve.service.phase == "Sleeping" and not Replica.objects.exclude(state="gone").exists())
    stopped = threading.Event()
    ear = Ear(threading.Event(), stopped)
    ear.start()
    try:
        assert ear.heard.wait(10), "it listens"
        for hint, woken in (
            (lambda: serving.advance(serve.service.appcode_id, serve.service.name), 0),
            (lambda: notify.changed(serve.service.pk), 0),
            (lambda: rows.want(connection, [serve.service.pk]), 1),
        ):
            ear.heard.clear()
            hint()
            assert ear.heard.wait(10)
            serving.tick(serve.now(), **ear.taken(), all_of_them=False)
            assert Replica.objects.filter(state="starting").count() == woken
    finally:
        stopped.set()
        notify.changed(serve.service.pk)
        ear.join()


def test_a_disabled_one_drains_and_stops(create: Any) -> None:
    serve = create()
    actions.disable_service(serve.service, acting_user=serve.people.bob)
    serve.until(lambda: serve.service.phase == "Stopped")
    assert not serve.led()
    assert not Run.objects.filter(gone=False).exists()
    assert not serving.tick(timezone.now())
    actions.enable_service(serve.service, acting_user=serve.people.bob)
    serve.until(lambda: serve.service.phase == "Running")
    assert serve.answers() == {20.0}


def test_what_nothing_has_happened_to_is_looked_at_in_a_number_of_queries_that_does_not_grow(
    model: Any, people: Any, django_assert_max_num_queries: Any
) -> None:
    rows = [
        Service(
            appcode=people.ops, name=f"s{number}", label=f"s{number}-ops-demo", created_by=people.bob, phase="Running",
            spec={"model": "digits/1", "image": "python", "flavor": "server"}, message="1 replica answers.",
            scale={"replicas": 1, "why": "", "since": timezone.now().isoformat()},
        )
        for number in range(1000)
    ]  # fmt: skip
    Service.objects.bulk_create(rows)
    version = ModelVersion.objects.get(number=1)
    revisions = Revision.objects.bulk_create(
        Revision(service=each, number=1, version=version, model="digits/1", spec={}, weight=100, wanted=1)
        for each in rows
    )
    with transaction.atomic():
        cluster = [Cluster(appcode=people.ops, name=f"{each.name}-1", spec={"roles": {}}) for each in rows]
        Cluster.objects.bulk_create(cluster)
        at = {"predict": {"address": "127.0.0.1:1", "since": "", "routed": False}}
        runs = [
            Run(cluster=each, number=1, spec={}, resources={}, gpus=0, phase="Running", endpoints=at)
            for each in cluster
        ]
        Run.objects.bulk_create(runs)
        Replica.objects.bulk_create(
            Replica(service=s, revision=r, slot=1, cluster=c, run=run, state="serving", address="127.0.0.1:1")
            for s, r, c, run in zip(rows, revisions, cluster, runs, strict=True)
        )
    serving.tick(timezone.now())
    with django_assert_max_num_queries(8):
        assert serving.tick(timezone.now())
    # Between two full passes, none of them is read.
    began = time.perf_counter()
    with django_assert_max_num_queries(3):
        assert not serving.tick(timezone.now(), all_of_them=False)
    print(f"{(time.perf_counter() - began) * 1000:.0f} ms")
