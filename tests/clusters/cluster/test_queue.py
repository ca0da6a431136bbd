"""The queue: waiting runs show the same reason as the preview; of other appcodes only sums are shown."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from clusters.clouds.drivers.base import Capacity, Node, Waiting
from clusters.runs.models import Cluster, Run


@pytest.fixture
def busy(make_cluster: Any, people: Any) -> None:
    """Two nodes with four free GPUs each. In ops-demo one run waits in the cloud, two wait for quota, and one holds three GPUs;
    in flight-demo one waits and one holds five GPUs."""
    from clusters.runs.status.observe import save_capacity

    nodes = tuple(Node(f"gpu-{n}", "A100", 8, 4, 64_000, 1 << 18) for n in (1, 2))
    save_capacity("local", Capacity(nodes))
    now = dt.datetime.now(dt.UTC)
    big = {"flavor": "large", "gpus": 8, "gpu_model": "", "cpu_milli": 1000, "memory_mb": 1024}
    make_cluster(
        "block", run={"admitted_at": now, "resources": {"master": big}, "gpus": 8, "message": "Waits for 8 GPUs."}
    )
    for name in ("quota-1", "quota-2"):
        make_cluster(name, workers=3, run={"wait_reason": "QuotaExceeded", "message": "It waits for quota."})
    make_cluster("holder", phase="Running", workers=2, run={"gpu_rate": 3, "admitted_at": now})
    for name, facts in (("theirs-1", {}), ("theirs-2", {"phase": "Running", "gpu_rate": 5, "admitted_at": now})):
        cluster = make_cluster(name, by=people.alice)
        Run.objects.filter(cluster=cluster).update(**facts)
        Cluster.objects.filter(pk=cluster.pk).update(appcode=people.flight)


@pytest.mark.django_db
def test_what_waits_says_why_and_where_it_stands(
    busy: None, people: Any, as_person: Any, django_assert_max_num_queries: Any
) -> None:
    client = as_person(people.victor)
    client.get("/queue")
    with django_assert_max_num_queries(10):
        page = " ".join(client.get("/queue").content.decode().split())
    assert "It needs 8 GPUs on one node; the largest free block is 4 on gpu-1." in page
    assert [page.index(f">quota-{n}<") < page.index(f'data-label="Place" class="num">{n} <') for n in (1, 2)] == [
        True
    ] * 2
    assert 'data-label="GPUs" class="num">3</td> <td data-label="State">' in page
    assert "Other appcodes: 1 run holds 5 GPUs, 1 waits for 1." in page
    assert "theirs" not in page
    assert "flight-demo" not in page.split('id="queues"')[1]
    assert "theirs-1" in as_person(people.root).get("/queue").content.decode()


@pytest.mark.django_db
def test_rest_says_the_same(busy: None, people: Any) -> None:
    from clusters.runs.status.observe import save_capacity
    from tests.api.client import api_of

    (queue,) = api_of(people.victor).get("/queue")[1]["items"]
    assert [(run["cluster"], run["place"]) for run in queue["waiting"]] == [
        ("block", None),
        ("quota-1", 1),
        ("quota-2", 2),
    ]
    assert queue["waiting"][0]["message"] == "It needs 8 GPUs on one node; the largest free block is 4 on gpu-1."
    assert [(run["cluster"], run["gpus"]) for run in queue["holding"]] == [("holder", 3)]
    assert queue["others"] == {"waiting": 1, "waitingGpus": 1, "holding": 1, "heldGpus": 5}
    # A cloud that starts runs in order reports the place and reason itself.
    block = Run.objects.get(cluster__name="block")
    here = (Node("here", "A100", 8, 4, 64_000, 1 << 18),)
    save_capacity("local", Capacity(here, (Waiting(0, 1, ""), Waiting(block.pk, 8, "")), in_order=True))
    (queue,) = api_of(people.victor).get("/queue")[1]["items"]
    assert [queue["waiting"][0][name] for name in ("place", "placeIn", "message")] == [2, "cloud", "Waits for 8 GPUs."]


@pytest.mark.django_db
def test_a_run_that_has_started_in_part_waits_with_all_that_it_lacks(make_cluster: Any, people: Any) -> None:
    """`partly` has two of nine workers placed; for `refused` the cloud refuses to create the others. `whole` is not listed as
    waiting: all its tasks have nodes."""
    from clusters.runs.models import Task
    from clusters.runs.status.observe import save_capacity
    from tests.api.client import api_of

    save_capacity("local", Capacity(tuple(Node(f"gpu-{n}", "A100", 8, 0, 64_000, 1 << 18) for n in (1, 2))))
    now = dt.datetime.now(dt.UTC)
    small = {"flavor": "small", "gpus": 0, "gpu_model": "", "cpu_milli": 1000, "memory_mb": 1024}
    held = {"ps": small, "worker": small | {"gpus": 1}}
    roles = {"ps": {"count": 1, "ready": 1}, "worker": {"count": 9, "ready": 2}}
    facts = {"admitted_at": now, "resources": held, "roles": roles, "gpus": 9, "gpu_rate": 2}

    def make(name: str, placed: int, **more: Any) -> None:
        cluster = make_cluster(name, phase="Starting", run={**facts, **more})
        run = Run.objects.get(cluster=cluster)
        run.tasks.all().delete()
        unplaced = 0 if "blocked_message" in more else 9 - placed
        states = [("ps", 0, "Running", "gpu-1", "")]
        states += [("worker", n, "Running", "gpu-1", "") for n in range(placed)]
        states += [("worker", placed + n, "Pending", "", "Unschedulable") for n in range(unplaced)]
        Task.objects.bulk_create(
            Task(
                run=run,
                role=role,
                index=n,
                attempt=0,
                uid=f"{name}-{role}-{n}",
                phase=phase,
                node=node,
                reason=reason,
                observed_at=now,
            )
            for role, n, phase, node, reason in states
        )

    make("partly", 2)
    make("refused", 2, blocked_reason="NamespaceQuota", blocked_message="Used up.", message="Used up.")
    make("whole", 9)
    (queue,) = api_of(people.victor).get("/queue")[1]["items"]
    assert {run["cluster"]: run["message"] for run in queue["waiting"]} == {
        "partly": "Lacks 7 GPUs for 7 of 10 tasks. It needs 7 GPUs; 0 of 16 are free. It starts as soon as enough are.",
        "refused": "Lacks 7 GPUs for 7 of 10 tasks. Used up.",
    }
    assert {run["cluster"] for run in queue["holding"]} == {"partly", "refused", "whole"}
    Cluster.objects.update(appcode=people.flight)
    (queue,) = api_of(people.victor).get("/queue")[1]["items"]
    assert queue["others"] == {"waiting": 2, "waitingGpus": 14, "holding": 3, "heldGpus": 6}
