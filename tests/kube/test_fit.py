"""The preview decides like the real scheduler when other software uses GPUs and cores and some nodes are tainted."""

from __future__ import annotations

import random
import secrets
from typing import Any

import pytest

from clusters.admission.packing import asking, fill, group
from clusters.clouds.drivers.base import Capacity
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.runs.placing.known import Known
from clusters.runs.placing.pools import Asked, kept
from clusters.runs.placing.room import Wanted, free_for, snapshot
from tests.kube.following import Following
from tests.kube.plane import Plane
from tests.kube.plans import plan, role, run_ref
from tests.kube.test_plane import of, pod

pytestmark = pytest.mark.kube

ONE, OTHER = "NVIDIA-FIT-ONE", "NVIDIA-FIT-OTHER"


def other_software(plane: Plane, namespace: str, name: str, node: str, gpus: int, cores: int) -> None:
    """Creates a pod on this node that the portal does not know."""
    made: dict[str, Any] = pod(name)
    held = {"cpu": str(cores), "memory": "1Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    made["spec"]["containers"][0]["resources"] = {"requests": held, "limits": held}
    made["spec"]["nodeName"] = node
    plane.request("POST", of(namespace), made)


def test_what_fits_is_what_the_scheduler_places(
    plane: Plane, cloud: KubernetesCloud, following: Following, namespace: str
) -> None:
    chance = random.Random(14)
    gpu_taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    nodes = [
        *plane.add_nodes(2, model=ONE),
        *plane.add_nodes(1, model=ONE, taints=[gpu_taint]),
        *plane.add_nodes(1, model=OTHER),
        *plane.add_nodes(1, model=OTHER, taints=[{"key": "team", "value": "others", "effect": "NoSchedule"}]),
    ]
    held = {}
    for number, name in enumerate(nodes):
        held[name] = gpus, cores = (6, 70) if number == 0 else (chance.randint(1, 7), chance.choice((0, 40, 90)))
        other_software(plane, namespace, f"other-{number}", name, gpus, cores)

    def capacity() -> Capacity:
        """As it is stored where no flavor tolerates a taint."""
        return kept(cloud.capacity(), Asked())

    def is_seen() -> bool:
        seen = {node.name: (node.gpus_free, node.gpus_others) for node in capacity().nodes}
        free = {name: 8 - held[name][0] if name != nodes[4] else 0 for name in nodes}
        return all(seen.get(name) == (free[name], held[name][0]) for name in nodes)

    following.until(is_seen)
    answers = []
    for _ in range(10):
        tasks = asking(
            "worker", chance.randint(1, 3), chance.choice((1, 2, 4)), chance.choice((ONE, OTHER)),
            chance.choice((500, 20_000, 60_000)), 512,
        )  # fmt: skip
        known = capacity()
        verdict = free_for([tasks], Known(known))
        free = group(
            (each.name, each.free) for each in snapshot(Known(known), also=Wanted.of([tasks])).nodes if each.ready
        )
        missing = fill([tasks], free).missing
        run = run_ref(f"test-{secrets.token_hex(4)}")
        asked = {"gpus": tasks.gpus, "gpu_model": tasks.gpu_model, "cpu_milli": tasks.cpu_milli}
        cloud.apply(plan(role("worker", tasks.count, **asked), run=run))
        following.until(
            lambda run=run, tasks=tasks: (  # type: ignore[misc]
                sum(bool(task.node) or task.reason == "Unschedulable" for task in following.of(run)) == tasks.count
            )
        )
        waiting = sum(not task.node for task in following.of(run))
        assert waiting == (missing.count if missing else 0), (tasks, verdict, known)
        assert (verdict.fits == "now") == (waiting == 0)
        answers.append(verdict.fits)
        cloud.delete(run)
        following.until(lambda run=run: following.is_gone(run))  # type: ignore[misc]
        plane.request("DELETE", f"/api/v1/namespaces/{run.namespace}")
        following.until(is_seen)
    assert {"now", "waits"} <= set(answers), answers
