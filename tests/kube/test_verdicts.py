"""Who ended a pod, according to watches that are not in step: every possible order of their news gives the same verdict."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from clusters.clouds.drivers.base import TaskSeen
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.watch import follower, reasons
from clusters.clouds.drivers.kubernetes.watch.mirror import Mirror
from clusters.clouds.drivers.kubernetes.watch.terminations import PATIENCE
from tests.kube.plane import Object
from tests.kube.plans import run_ref

RUN = run_ref("ops")
NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
# A kind and a watch event of it.
News = tuple[str, Object]


def text(seconds: int) -> str:
    return (NOW + dt.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def metadata(name: str, version: int, *finalizers: str, **more: Any) -> Object:
    labels = names.role_labels("test", RUN, "worker")
    return {
        "name": name, "namespace": "ops", "uid": f"uid-{name}", "resourceVersion": str(version), "labels": labels,
        "creationTimestamp": text(-60), "finalizers": list(finalizers), **more,
    }  # fmt: skip


def owner() -> News:
    return "ADDED", {"metadata": metadata("owner", 5, names.TOLD, annotations={})}


def job(
    version: int, kind: str = "MODIFIED", *, suspend: bool = False, resumed: int | None = None, **more: Any
) -> News:
    conditions = (
        [] if resumed is None else [{"type": "Suspended", "status": "False", "lastTransitionTime": text(resumed)}]
    )
    owners = [{"kind": "ConfigMap", "uid": "uid-owner"}]
    return kind, {
        "metadata": metadata("job", version, ownerReferences=owners, **more),
        "spec": {"parallelism": 1, "suspend": suspend},
        "status": {"conditions": conditions},
    }


def pod(version: int, phase: str, kind: str = "MODIFIED", *, deleted: bool = True) -> News:
    ended = {"exitCode": 143, "startedAt": text(-30), "finishedAt": text(-9)}
    state = {"terminated": ended} if phase == "Failed" else {"running": {"startedAt": text(-30)}}
    gone = {"deletionTimestamp": text(20), "deletionGracePeriodSeconds": 30} if deleted else {}
    return kind, {
        "metadata": metadata(
            "pod",
            version,
            names.METERING,
            ownerReferences=[{"kind": "Job", "uid": "uid-job", "name": "job"}],
            annotations={"batch.kubernetes.io/job-index-failure-count": "0"},
            **gone,
        ),
        "spec": {"nodeName": "machine-1", "containers": [{"name": "task"}]},
        "status": {
            "phase": phase,
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": text(-31)}],
            "containerStatuses": [{"name": "task", "state": state}],
        },
    }


ALIVE, LEAVING, ENDED = pod(15, "Running", "ADDED", deleted=False), pod(21, "Running"), pod(30, "Failed")
SUSPENDED, DELETED = (True, reasons.JOB_SUSPENDED), (True, reasons.JOB_DELETED)
BY_HAND = (False, reasons.POD_DELETED)
BOOKMARK: News = ("BOOKMARK", {"metadata": {"resourceVersion": "50"}})
# The pod is deleted at 21. Each story is the Job's news before and after that.
STORIES: dict[str, tuple[list[News], tuple[bool, str]]] = {
    "its Job was suspended": ([job(10, "ADDED"), job(20, suspend=True), job(33, suspend=True)], SUSPENDED),
    "and let go again": ([job(10, "ADDED"), job(20, suspend=True), job(28)], SUSPENDED),
    "its Job was suspended after it": ([job(10, "ADDED"), job(22), job(25, suspend=True)], BY_HAND),
    "suspended before it was made": ([job(9, "ADDED", suspend=True), job(12), job(24)], BY_HAND),
    "nothing but a bookmark": ([job(10, "ADDED"), BOOKMARK], BY_HAND),
    "its Job was deleted": ([job(10, "ADDED"), job(20, deletionTimestamp=text(-10)), job(32, "DELETED")], DELETED),
    "its Job was deleted at once": ([job(10, "ADDED"), job(20, "DELETED"), BOOKMARK], DELETED),
    "its Job was deleted after it": ([job(10, "ADDED"), job(23), job(26, "DELETED")], BY_HAND),
}  # fmt: skip


def orders(*lengths: int) -> Iterator[tuple[int, ...]]:
    """Yields every order in which streams of these lengths can be interleaved."""
    streams = [n for n, length in enumerate(lengths) for _ in range(length)]
    return iter(sorted(set(itertools.permutations(streams))))


def tell(mirror: Mirror, kind: str, news: News) -> list[TaskSeen]:
    """Passes the news on as `Follower.watch` does."""
    what, thing = news
    told = [] if what == "BOOKMARK" else follower.note(mirror, kind, what, thing)
    if kind == "Job":
        mirror.parts.jobs.hear(int(thing["metadata"]["resourceVersion"]))
    return tasks([*told, *mirror.decided(NOW)])


def tasks(items: Iterable[object]) -> list[TaskSeen]:
    return [item for item in items if isinstance(item, TaskSeen)]


@pytest.mark.parametrize("name", STORIES)
def test_the_verdict_is_the_same_in_every_order(name: str) -> None:
    story, verdict = STORIES[name]
    streams = {"ConfigMap": [owner()], "Job": story, "Pod": [ALIVE, LEAVING, ENDED]}
    kinds, lengths = list(streams), [len(each) for each in streams.values()]
    for order in orders(*lengths):
        mirror, rest = Mirror(), {kind: iter(each) for kind, each in streams.items()}
        told = [item for n in order for item in tell(mirror, kinds[n], next(rest[kinds[n]]))]
        ends = [(item.disrupted, item.message) for item in told if item.phase == "Failed"]
        assert ends == [verdict], order
        # Until then it is ending, and its finalizer must stay.
        assert told[-1].finished_at == NOW - dt.timedelta(seconds=9)
        assert {item.phase for item in told[:-1]} == {"Running"}
        assert mirror.pods["uid-pod"].over


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (job(25, "ADDED", suspend=True), SUSPENDED),
        (job(25, "ADDED", resumed=-10), SUSPENDED),
        (job(25, "ADDED", resumed=-20), BY_HAND),
        (None, DELETED),
    ],
)
def test_a_listing_knows_what_the_job_remembers(found: News | None, verdict: tuple[bool, str]) -> None:
    """The pod was deleted 10 s ago."""
    mirror = Mirror()
    told = tell(mirror, "Job", found) if found else []
    mirror.parts.jobs.hear(40)
    for kind, news in (("Pod", ("ADDED", ENDED[1])), ("ConfigMap", owner())):
        told += tell(mirror, kind, news)
    assert [(item.phase, item.reason) for item in told[:1]] == [("Running", "Stopping")]
    assert [(item.disrupted, item.message) for item in told[1:]] == [verdict]


def test_news_that_never_come_are_not_waited_for_for_ever() -> None:
    mirror = Mirror()
    # The watch takes the time itself on each event.
    before = dt.datetime.now(dt.UTC)
    for kind, news in (("ConfigMap", owner()), ("Job", job(10, "ADDED")), ("Pod", ALIVE), ("Pod", ENDED)):
        tell(mirror, kind, news)
    after = dt.datetime.now(dt.UTC)
    assert not mirror.pods["uid-pod"].over
    assert mirror.decided(before + PATIENCE / 2) == []
    (end,) = tasks(mirror.decided(after + PATIENCE))
    assert (end.disrupted, end.message) == BY_HAND
    assert mirror.decided(after + 2 * PATIENCE) == []


def test_a_pod_that_goes_meanwhile_is_decided_at_once() -> None:
    mirror = Mirror()
    news = [owner(), job(10, "ADDED"), ALIVE, ENDED, ("DELETED", ENDED[1])]
    told = [
        item
        for kind, each in zip(("ConfigMap", "Job", "Pod", "Pod", "Pod"), news, strict=True)
        for item in tell(mirror, kind, each)
    ]
    assert (told[-1].phase, told[-1].message) == ("Failed", reasons.POD_DELETED)
    assert not mirror.pods


def test_a_run_that_is_being_ended_stops_its_tasks() -> None:
    """The portal itself suspends its Job, which may be seen before the order to end the run."""
    ours = {"manager": names.MANAGER, "operation": "Update", "fieldsV1": {"f:spec": {"f:suspend": {}}}}
    mirror = Mirror()
    story = [
        ("ConfigMap", owner()), ("Job", job(10, "ADDED")), ("Pod", ALIVE),
        ("Job", job(20, suspend=True, managedFields=[ours])), ("Pod", ENDED),
    ]  # fmt: skip
    told = [item for kind, news in story for item in tell(mirror, kind, news)]
    told += tasks(mirror.decided(NOW))
    mirror.parts.jobs.hear(40)
    told += tasks(mirror.decided(NOW))
    assert (told[-1].phase, told[-1].reason, told[-1].disrupted) == ("Failed", "Stopped", False)
