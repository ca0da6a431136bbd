"""The loop of services whose replicas start, wait and fail as the test decides; runs are rows only."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.utils import timezone

from clusters.catalog.models import Flavor
from clusters.clouds.models import CloudState
from clusters.model_registry.actions import delete_version, move_alias
from clusters.model_registry.models import ModelVersion
from clusters.router import histograms
from clusters.runs.models import Run
from clusters.services import actions
from clusters.services.controller import loop, observations
from clusters.services.manifest import DeploySpec
from clusters.services.models import Replica, Revision, Rollout, Router, Service, ServiceMinute
from portal.errors import Conflict

pytestmark = pytest.mark.django_db(transaction=True)
MINUTE = dt.timedelta(minutes=1)


class Rows:
    """A service, one router, and a cloud that obeys the test; `now` is the clock of the loop."""

    def __init__(self, people: Any) -> None:
        self.people = people
        self.now = timezone.now()
        # Revisions whose replicas don't start → phase and message of their runs.
        self.stuck: dict[int, tuple[str, str]] = {}

    @property
    def service(self) -> Service:
        return Service.objects.get()

    @property
    def rollout(self) -> Rollout:
        found = Rollout.objects.first()
        assert found
        return found

    def tick(self, seconds: float = 1) -> None:
        """One turn of the loop. Asserts that services which are not due have nothing to do."""
        self.now += dt.timedelta(seconds=seconds)
        said = {"route": self.service.route, "inFlight": {}, "waiting": 0, "stable": 0.0, "panic": 0.0}
        services = {str(self.service.pk): said}
        Router.objects.update_or_create(name="one", defaults={"seen_at": self.now, "services": services})
        is_due = bool(observations.due(frozenset(loop._moved_aliases()), self.now))
        before = self.written()
        loop.tick(self.now)
        assert is_due or self.written() == before

    def written(self) -> list[Any]:
        tables = (Service, Revision, Rollout, Replica)
        return [list(table.objects.order_by("pk").values()) for table in tables]  # type: ignore[attr-defined]

    def cloud(self) -> None:
        """Runs asked to end are over, and starting runs are up."""
        for run in Run.objects.filter(replica__isnull=False).exclude(phase__in=("Stopped", "Failed")):
            number = run.replica.revision.number
            if run.desired == "ended":
                Run.objects.filter(pk=run.pk).update(phase="Stopped", endpoints={})
            elif number in self.stuck:
                phase, message = self.stuck[number]
                Run.objects.filter(pk=run.pk).update(
                    phase=phase, message=message, reason="Unschedulable", created_at=self.now
                )
                Run.objects.filter(pk=run.pk).update(created_at=self.now - MINUTE)
            else:
                at = {"predict": {"address": f"127.0.0.1:{20_000 + run.pk}", "since": "", "routed": False}}
                Run.objects.filter(pk=run.pk).update(phase="Running", endpoints=at)

    def settle(self, turns: int = 12, seconds: float = 1) -> None:
        for _ in range(turns):
            self.tick(seconds)
            self.cloud()

    def deploy(self, version: int, **more: Any) -> None:
        actions.deploy(self.service, DeploySpec(version=version, **more), acting_user=self.people.bob)

    def move(self, number: int) -> None:
        move_alias(ModelVersion.objects.get(number=number).model, "champion", number, acting_user=self.people.bob)

    def led(self) -> dict[str, int]:
        """Number of replicas in the route, by model version."""
        rows = Replica.objects.filter(state="serving", revision__weight__gt=0).values_list("revision__model", flat=True)
        return {each: list(rows).count(each) for each in rows}

    def count(self, number: int, *, errors: int = 0, mirrored: bool = False, requests: int = 200) -> None:
        ServiceMinute.objects.create(
            service=self.service, revision=Revision.objects.get(number=number), router="one", mirrored=mirrored, errors=errors,
            minute=self.now.replace(second=0, microsecond=0), requests=requests,
            latency=[requests] + [0] * (histograms.BUCKETS - 1),
        )  # fmt: skip


@pytest.fixture
def rows(people: Any, model: Any) -> Rows:
    Flavor.objects.create(name="two-gpus", title="2 GPUs", cpu_milli=100, memory_mb=128, gpus=2)
    return Rows(people)


@pytest.fixture
def create(rows: Rows, service_manifest: Any) -> Any:
    def make(*, rollout: dict[str, Any] | None = None, **spec: Any) -> Rows:
        manifest = service_manifest(rollout={"keepWarm": 0, **(rollout or {})}, **spec)
        actions.create_service(manifest, acting_user=rows.people.bob)
        rows.settle(4)
        assert rows.led() == {"digits/1": spec.get("replicas", {}).get("least", 1)}
        assert rows.service.phase == "Running"
        return rows

    return make


@pytest.mark.parametrize(("errors", "phase"), [(0, "Promoted"), (9, "RolledBack")])
def test_a_shadow_is_judged_by_the_copies_and_answers_nobody_before(create: Any, errors: int, phase: str) -> None:
    rows = create()
    rows.deploy(2, kind="shadow", minutes=1)
    rows.settle(4)
    assert rows.rollout.phase == "Comparing"
    new = Revision.objects.get(number=2)
    assert (new.weight, new.mirrored, rows.led()) == (0, True, {"digits/1": 1})
    rows.count(1)
    rows.count(1, mirrored=True, errors=200)
    rows.count(2, mirrored=True, errors=errors)
    rows.count(2, errors=200)
    rows.settle(12, 6)
    assert rows.rollout.phase == phase
    assert rows.rollout.judged["to"] == {"requests": 200, "errors": errors, "p99Ms": rows.rollout.judged["to"]["p99Ms"]}
    assert rows.rollout.judged["from"]["errors"] == 0
    assert rows.led() == ({"digits/2": 1} if phase == "Promoted" else {"digits/1": 1})
    assert not Revision.objects.filter(mirrored=True).exists()


def test_behind_a_gate_nothing_starts_before_somebody_agrees_and_the_alias_may_move_on(create: Any) -> None:
    rows = create(rollout={"follow": "gate"})
    rows.move(2)
    rows.settle(4)
    assert (rows.rollout.phase, Replica.objects.count(), rows.led()) == ("Gated", 1, {"digits/1": 1})
    rows.move(3)
    rows.settle(2)
    assert list(Rollout.objects.values_list("phase", flat=True)) == ["Gated", "Cancelled", "Promoted"]
    actions.deploy(rows.service, DeploySpec(), acting_user=rows.people.alice)
    rows.settle()
    assert (rows.rollout.phase, rows.led()) == ("Promoted", {"digits/3": 1})


def test_where_that_was_chosen_and_no_gpu_is_free_new_replicas_answer_without_one(create: Any) -> None:
    node = {"name": "a", "gpu_model": "", "gpus": 1, "gpus_free": 1, "cpu_milli": 4000, "memory_mb": 8000}
    CloudState.objects.create(name="local", capacity={"nodes": [node]})
    rows = create(flavor="one-gpu", rollout={"whenFull": "cpu", "cpuFlavor": "small"})
    flavors = lambda: [each.spec["roles"]["server"]["flavor"] for each in Revision.objects.order_by("number")]  # noqa: E731
    assert flavors() == ["one-gpu"]
    node |= {"gpus_free": 0, "gpus_others": 1}
    CloudState.objects.update(capacity={"nodes": [node]})
    rows.deploy(2)
    rows.settle()
    assert (flavors(), rows.led()) == (["one-gpu", "small"], {"digits/2": 1})


def test_where_that_was_chosen_an_old_one_ends_for_a_new_one_that_has_no_room(create: Any) -> None:
    rows = create(rollout={"whenFull": "replace"}, replicas={"least": 2, "most": 2})
    rows.stuck[2] = ("Queued", "No GPU is free.")
    rows.deploy(2)
    rows.settle(5)
    assert rows.rollout.message == "No GPU is free."
    # The room of one replica is free then, for any run; the last old replica goes on.
    rows.settle(5, 10)
    assert (rows.led(), rows.service.phase) == ({"digits/1": 1}, "Degraded")
    rows.stuck.clear()
    rows.settle()
    assert (rows.rollout.phase, rows.led()) == ("Promoted", {"digits/2": 2})


def test_what_needs_more_memory_than_its_flavor_fails_and_says_so_and_is_not_to_be_deleted_before(create: Any) -> None:
    rows = create()
    said = "It needed more memory than its flavor has."
    rows.stuck[2] = ("Starting", "")
    rows.deploy(2)
    rows.settle(3)
    with pytest.raises(Conflict, match="Version 2 is used by digits-2"):
        delete_version(ModelVersion.objects.get(number=2), acting_user=rows.people.bob)
    rows.stuck[2] = ("Failed", said)
    rows.settle(3)
    assert (rows.rollout.phase, rows.rollout.message, rows.led()) == ("Failed", said, {"digits/1": 1})
    assert (rows.service.phase, rows.service.message) == ("Running", "1 replica answers.")


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_a_clock_that_jumps_in_the_middle_of_a_canary_leaves_somebody_to_answer_and_the_canary_comes_to_its_end(
    create: Any, jump: int
) -> None:
    rows = create(rollout={"keepWarm": 60})
    rows.deploy(2, kind="canary", minutes=1)
    rows.settle(4)
    assert rows.rollout.phase == "Comparing"
    rows.tick(jump)
    for _ in range(30):
        rows.settle(1, 7)
        assert rows.led()
    assert (rows.rollout.phase, rows.led()) == ("Promoted", {"digits/2": 1})
    assert Replica.objects.exclude(state="gone").count() == 1
