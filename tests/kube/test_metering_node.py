"""A hundred short tasks in real containers while the controller is killed again and again: the bill equals containerd's
records to the second.

The seed is printed; METERING_SEED repeats it, as far as real clocks allow.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.db.models import Sum
from django.utils import timezone

from tests.kube import archives
from tests.kube.following import portal_kubeconfig
from tests.kube.loops import Controller, Loops
from tests.kube.node import Container, Node

pytestmark = [pytest.mark.kube, pytest.mark.node, pytest.mark.timeout(1500), pytest.mark.django_db(transaction=True)]

# Clusters as (workers, flavor of all tasks): 110 tasks, of which the node runs some forty at a time.
CLUSTERS = [(16, "tiny")] * 6 + [(3, "tiny-gpu")] * 2
AT_LEAST = 100
# Clusters that are stopped midway; how many of their tasks ever run is random.
STOPPED = [(2, "tiny")] * 2
SECONDS = 1200.0


@pytest.fixture
def loops(node: Node, people: Any) -> Iterator[Loops]:
    """Workers in this process; the controllers are separate processes."""
    from clusters.catalog.models import Flavor, Image

    node.import_image(archives.busybox())
    loops = Loops(
        node.plane, f"short-{secrets.token_hex(4)}", yaml.safe_load(portal_kubeconfig(node.plane).read_text())
    )
    loops.catalogue()
    Image.objects.update(container=archives.BUSYBOX)
    for name, gpus in (("tiny", 0), ("tiny-gpu", 1)):
        Flavor.objects.create(name=name, title=name, cpu_milli=50, memory_mb=32, gpus=gpus)
    loops.start_workers()
    yield loops
    loops.stop()


def create(loops: Loops, people: Any, name: str, chance: random.Random, workers: int, flavor: str) -> Any:
    """Creates a cluster whose tasks sleep as long as the entry for their index says."""
    times = " ".join(f"{chance.uniform(1, 20):.2f}" for _ in range(workers))
    command = f"set -- {times}; shift $TASK_INDEX; exec sleep $1"
    return loops.create(people, name, workers=workers, flavor=flavor, command=command, completion="workers")


def test_what_is_billed_is_what_containerd_wrote_down(node: Node, loops: Loops, people: Any, tmp_path: Path) -> None:
    from clusters.runs.models import Run

    seed = int(os.environ.get("METERING_SEED") or secrets.randbelow(10**6))
    chance, prefix = random.Random(seed), f"short{secrets.token_hex(3)}"
    began = time.monotonic()
    for n, (workers, flavor) in enumerate(CLUSTERS):
        create(loops, people, f"{prefix}-{n}", chance, workers, flavor)
    doomed = {
        create(loops, people, f"{prefix}-stopped-{n}", chance, *each): chance.uniform(15, 45)
        for n, each in enumerate(STOPPED)
    }

    killed = 0
    while Run.objects.filter(gone=False).exists():
        controller = Controller(killed, tmp_path)
        try:
            # Start-up time depends on the machine, and the kill must hit a working controller.
            loops.until(lambda log=controller.log: b"following kubernetes" in log.read_bytes(), 120)  # type: ignore[misc]
            until = time.monotonic() + chance.uniform(0.5, 15.0)
            while time.monotonic() < until and Run.objects.filter(gone=False).exists():
                assert time.monotonic() < began + SECONDS, (
                    seed,
                    list(Run.objects.values("number", "phase", "message")),
                )
                for cluster in [each for each, at in doomed.items() if time.monotonic() > began + at]:
                    del doomed[cluster]
                    loops.disable(people, cluster)
                time.sleep(0.2)
        finally:
            controller.kill()
        killed += 1
    took = time.monotonic() - began

    records: dict[str, list[Container]] = {}
    for each in node.containers():
        if each.pod.startswith(f"ops-demo-{prefix}") and each.started_at:
            records.setdefault(each.pod_uid, []).append(each)
    print(f"seed {seed}: {len(records)} pods in {took:.0f} s, the controller was killed {killed} times")
    assert killed >= 3
    assert len(records) >= AT_LEAST
    billed_is(records)
    assert not node.plane.request(
        "GET", "/api/v1/namespaces/ops/pods", labelSelector=f"gpu-cloud/portal={loops.portal}"
    )["items"]
    assert not Run.objects.exclude(phase__in=("Succeeded", "Stopped")).exists()


def test_a_node_that_goes_away_is_named_until_it_is_given_up_and_is_not_billed_meanwhile(
    node: Node, loops: Loops, people: Any
) -> None:
    """Real Kubernetes handles the pods of a killed kubelet: it marks them, deletes them by taint and resumes, all without
    simulated nodes."""
    from billing.models import UsageSegment
    from clusters.cloud_admin import actions
    from clusters.clouds import registry
    from clusters.runs.models import Run

    prefix = f"dead{secrets.token_hex(3)}"
    loops.start_controller()
    going, stopped = (
        loops.create(people, f"{prefix}-{name}", flavor="tiny", command="sleep 900") for name in ("going", "stopped")
    )
    runs = [loops.until_running(each, seconds=120) for each in (going, stopped)]
    node.fall_silent()
    silent_at = timezone.now()
    try:
        loops.until(lambda: f"Node {node.name} does not answer" in loops.run(going).message, 90)
        # Kubernetes 1.36 waits for 50 s and checks every 5 s.
        assert timezone.now() - silent_at < timedelta(seconds=60)
        assert (loops.run(going).phase, loops.run(going).reason) == ("Running", "Degraded")
        loops.disable(people, stopped)
        loops.until(lambda: "Stopping, 1 task left." in loops.run(stopped).message, 30)
        assert f"Node {node.name} does not answer" in loops.run(stopped).message
        actions.give_up_node(registry.registered().get(), node.name, acting_user=people.root)
        loops.until(lambda: Run.objects.get(pk=runs[1].pk).gone, 90)
        loops.until(lambda: loops.run(going).reason == "WaitingForGPUs" or "node" in loops.run(going).message, 60)
        lost = [run.tasks.get(attempt=0) for run in runs]
        assert [each.phase for each in lost] == ["Failed", "Failed"]
        for segment in UsageSegment.objects.filter(uid__in=[each.uid for each in lost]):
            assert segment.ended <= silent_at
            assert silent_at - segment.ended < timedelta(seconds=15)
            assert segment.flags == ["end-estimated"]
    finally:
        node.come_back()
    loops.until_running(going, seconds=120)
    loops.disable(people, going)
    loops.until(lambda: Run.objects.get(pk=runs[0].pk).gone, 90)


def billed_is(records: dict[str, list[Container]]) -> None:
    """Asserts that each second from the start of a pod's program to the end of its last container is billed once, but not before
    all tasks of its run had nodes, and nothing else."""
    from billing.ledger import posting
    from billing.models import LedgerEntry, UsageSegment
    from clusters.runs.models import Task

    ran: dict[str, tuple[datetime, datetime]] = {
        uid: (min(each.started for each in found if each.name == "task"), max(each.finished for each in found))
        for uid, found in records.items()
    }
    last: dict[int, datetime] = {}
    rows = Task.objects.values_list("uid", "run_id", "run__phase", "run__whole_at")
    tasks = {uid: facts for uid, *facts in rows}
    for uid, (started, _) in ran.items():
        last[tasks[uid][0]] = max(started, last.get(tasks[uid][0], started))
    true: dict[str, tuple[datetime, datetime, list[str]]] = {}
    for uid, (started, ended) in ran.items():
        run, phase, whole = tasks[uid]
        if whole is None:
            assert phase == "Stopped"
            continue
        if phase == "Succeeded":
            assert whole <= last[run], "every pod had its node when its program started"
        if ended > whole:
            true[uid] = (max(started, whole), ended, [])
    segments = {each.uid: (each.started, each.ended, each.flags) for each in UsageSegment.objects.all()}
    # A pod that had ended when its run was whole costs nothing; its end may be told after the last node.
    for uid in segments.keys() - true.keys():
        started, ended, _ = segments.pop(uid)
        assert started == ended == tasks[uid][2]
    assert segments == true
    posting.post()
    seconds = {uid: 50 * int((ended - started).total_seconds()) for uid, (started, ended, _) in true.items()}
    lines = LedgerEntry.objects.filter(sku="cpu").values("uid").annotate(held=Sum("quantity"))
    assert {line["uid"]: line["held"] for line in lines} == {uid: held for uid, held in seconds.items() if held}
    call_command("replay", "--verify")
