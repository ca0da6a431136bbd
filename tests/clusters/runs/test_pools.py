"""Pools on a real database: what of a cloud's nodes is stored and what release 1.0 reads of it, what runs hold of slices, and who
is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from django.db.models import Q

from clusters.admission.packing import Sizes
from clusters.clouds.drivers.base import Capacity, Node, Slices
from clusters.clouds.models import CloudState
from clusters.runs.models import Run
from clusters.runs.placing import known, places, pools
from clusters.runs.placing.known import capacity_from, capacity_json
from clusters.runs.placing.pools import Asked, kept
from clusters.runs.status import observe
from tests.api.client import api_of
from tests.clusters.gangs import gang, node
from tests.clusters.runs.placing import gone, older, pod, see, started, submit, tell, told_by

MIG, TAINT = "nvidia.com/mig-1g.10gb", "team=ml:NoSchedule"
LABELS = (("kubernetes.io/hostname", "n1"), ("zone", "eu"))
RICH = node(
    labels=LABELS, taints=(TAINT,), slices=(Slices(MIG, 14, 12, 1), Slices("rdma/hca", 2, 2), Slices("x.y/z", 1, 1))
)
ASKED = Asked(frozenset({"zone"}), frozenset({"rdma/hca"}), frozenset({frozenset({"team"}), frozenset()}))


def test_only_what_somebody_asks_for_is_stored() -> None:
    [found] = kept(Capacity((RICH,)), ASKED).nodes
    assert (found.labels, found.slices, found.takes_tasks, found.gpus_free) == (LABELS[1:], RICH.slices[:2], True, 8)


def test_a_node_whose_taints_nobody_tolerates_takes_no_tasks() -> None:
    [found] = kept(Capacity((RICH,)), Asked(tolerated=frozenset({frozenset({"team:NoExecute"}), frozenset()}))).nodes
    assert (found.labels, found.takes_tasks, found.gpus_free, found.taints) == ((), False, 0, ())
    assert found.note == "It takes no tasks: taint team keeps them away."
    plain = node("n2")
    assert kept(Capacity((plain,)), ASKED).nodes[0] is plain, "most nodes are not even copied"


def test_release_1_0_reads_nodes_that_it_can_use_and_this_one_reads_all() -> None:
    amd = node("n2", gpu_model="MI300X", resource="amd.com/gpu")
    every = Capacity((RICH, amd, node("n3")))
    stored = capacity_json(every)
    assert capacity_from(stored) == every
    new = {"gpus_others", "cpu_milli_others", "memory_mb_others", "resource", "labels", "taints", "slices", "domains"}
    assert all(each.keys() == {field.name for field in fields(Node)} - new for each in stored["nodes"])
    assert [(each["gpus"], each["gpus_free"], each["takes_tasks"]) for each in stored["nodes"]] == [
        (8, 0, False), (0, 0, True), (8, 8, True)
    ]  # fmt: skip
    assert stored["pools"].keys() == {"n1", "n2"}


@pytest.fixture
def flavors(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told_by(monkeypatch)
    from clusters.catalog.models import Flavor

    facts: dict[str, dict[str, Any]] = {
        "mig": {"gpus": 2, "gpu_model": "H100 1g.10gb", "resource": MIG, "extra": {"rdma/hca": 1}},
        "eu": {"gpus": 1, "node_labels": {"zone": "eu"}},
        "part": {"gpus": 1, "gpu_model": "A100-MIG-1g.5gb"},
    }
    for name, each in facts.items():
        Flavor.objects.create(name=name, title=name, cpu_milli=100, memory_mb=128, **each)


def of(flavor: str) -> dict[str, Any]:
    return {"roles": {"master": {"flavor": flavor}}}


@pytest.mark.django_db
def test_a_run_keeps_what_it_was_submitted_with_and_slices_are_no_gpus_of_its_quota(flavors: Any, people: Any) -> None:
    from clusters.catalog.models import Flavor

    run = submit(people, "mig", 1, **of("mig"))
    assert run.gpus == 0
    assert {name: run.resources["master"][name] for name in ("resource", "extra")} == {
        "resource": MIG,
        "extra": {"rdma/hca": 1},
    }
    Flavor.objects.filter(name="mig").update(resource="amd.com/gpu", extra={})
    assert known.waiting("training")[0].tasks[0].resource == MIG
    assert pools.asked().devices == {"rdma/hca"}, "also what no flavor asks for any more"
    usual = submit(people, "usual", 1)
    assert not {"resource", "node_labels", "tolerations", "extra"} & usual.resources["master"].keys(), (
        "as in release 1.0"
    )
    assert submit(people, "part", 1, **of("part")).gpus == 0, "slices with the name of GPUs"


@pytest.mark.django_db
def test_slices_that_runs_hold_or_are_promised_are_not_given_twice(flavors: Any, people: Any, as_person: Any) -> None:
    see(node("n1", slices=(Slices(MIG, 5, 5), Slices("rdma/hca", 9, 9))))
    first = started(people, "first", 1, **of("mig"))
    second = started(people, "second", 1, **of("mig"))
    third = submit(people, "third", 1, **of("mig"))
    tell(first, pod(first, at="n1"))
    places.place("training")
    third.refresh_from_db()
    assert known.taken_on(Q(run__cloud="training"))["training"]["n1"] == Sizes(0, 100, 128, ((MIG, 2), ("rdma/hca", 1)))
    assert third.placed_at is None
    assert third.wait_message == "It needs 2 mig-1g.10gb; 1 of 5 are free. It starts as soon as enough are free."
    assert second.layout == {"master": {"n1": 1}}
    assert (
        '<td data-label="GPUs" class="num">2 × mig-1g.10gb</td>' in as_person(people.bob).get("/queue").content.decode()
    )


@pytest.mark.django_db
def test_spare_slices_are_taken_back_and_the_queue_counts_slices_by_state(flavors: Any, people: Any) -> None:
    see(node("n1", slices=(Slices(MIG, 5, 4, 1), Slices("rdma/hca", 9, 9))))
    spare = started(people, "spare", 1, **of("mig"), priorityClass="spare")
    tell(spare, pod(spare, at="n1"))
    older(spare, places.PATIENCE)
    usual = started(people, "usual", 1, **of("mig"))

    def slices(person: Any) -> dict[str, int]:
        [queue] = [each for each in api_of(person).get("/queue")[1]["items"] if each["cloud"] == "training"]
        [found] = queue["nodes"][0]["slices"]
        assert found.pop("resource") == MIG
        return {state: count for state, count in found.items() if count}

    assert slices(people.bob) == {"total": 5, "mine": 2, "otherSoftware": 1, "promised": 2}
    tell(usual, pod(usual, at="n1"))
    wanted = submit(people, "wanted", 1, **of("mig"))
    places.place("training")
    for run in (spare, usual, wanted):
        run.refresh_from_db()
    assert (spare.given_back_at is not None, usual.given_back_at, wanted.placed_at) == (True, None, None)
    assert spare.wait_message.startswith("wanted/1, of a higher class, needs its GPUs.")
    assert wanted.wait_message.startswith(
        "It needs 2 mig-1g.10gb. A run that borrowed its GPUs, or is of a lower class, gives them back for it; it starts as soon "
        "as they are free, at "
    )
    tell(spare, gone(spare))
    places.place("training")
    wanted.refresh_from_db()
    assert wanted.layout == {"master": {"n1": 1}}


@pytest.mark.django_db
def test_a_slice_has_the_price_of_its_flavor_and_not_of_its_node(flavors: Any, people: Any) -> None:
    from django.utils.timezone import now

    from billing.models import UsageSegment

    see(node("n1", slices=(Slices(MIG, 5, 5), Slices("rdma/hca", 9, 9))))
    run, at = started(people, "first", 1, **of("mig")), now()
    tell(run, replace(pod(run, at="n1"), phase="Running", gpu_model="H100", began_at=at, started_at=at))
    segment = UsageSegment.objects.get()
    assert (segment.gpu_model, segment.gpus, run.tasks.get().gpu_model) == ("H100 1g.10gb", 2, "H100 1g.10gb")


@pytest.mark.django_db
def test_labels_that_a_new_flavor_names_are_stored_from_then_on(flavors: Any, people: Any) -> None:
    observe.save_capacity("training", Capacity((node("n1", labels=LABELS),)))
    assert CloudState.objects.get(name="training").capacity["pools"] == {"n1": {"labels": [["zone", "eu"]]}}
    run = submit(people, "eu", 1, **of("eu"))
    places.place("training")
    assert Run.objects.get(pk=run.pk).layout == {"master": {"n1": 1}}


@pytest.mark.django_db
def test_this_machine_refuses_flavors_that_demand_what_it_has_not(catalogue: Any, people: Any) -> None:
    from clusters.catalog.models import Flavor

    Flavor.objects.create(name="mig", title="MIG", cpu_milli=100, memory_mb=128, gpus=1, resource=MIG)
    body = gang(1)
    body["spec"] |= {"image": "python", "roles": {"master": {"flavor": "mig"}}}
    status, answer = api_of(people.bob).post("/appcodes/ops-demo/clusters", body)
    assert (status, answer["errors"][0]["path"]) == (422, "spec.roles.master.flavor")
    assert "demands labels, taints or devices that" in answer["errors"][0]["message"]
