"""Objects that somebody edits behind the portal's back, through the whole loop: they are as wanted again within 30 s, and people
are told of it once for each edit."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from clusters.clouds.kubernetes import kubeconfig
from tests.kube.following import portal_kubeconfig
from tests.kube.loops import Loops
from tests.kube.plane import Object, Plane
from tests.kube.test_faults import end_all, names_of, spec_of

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def loops(plane: Plane, people: Any) -> Iterator[Loops]:
    """With the rights that the portal asks for."""
    config = kubeconfig.read(portal_kubeconfig(plane).read_text())
    loops = Loops(plane, f"hand-{secrets.token_hex(4)}", config)
    loops.catalogue()
    loops.start()
    try:
        yield loops
        end_all(loops)
    finally:
        loops.stop()


def path_of(loops: Loops, run: Any, kind: str, role: str = "") -> str:
    return loops.path(kind, run, names_of(loops, run, role))


def told(text: str, verb: str = "run.changed_by_hand") -> int:
    from portal.models import Event

    return Event.objects.filter(verb=verb, message__contains=text).count()


def edit(plane: Plane, path: str, spec: Object, content_type: str = "") -> Object:
    """As `kubectl edit` does. Returns what it is then."""
    edited: Object = plane.request(
        "PATCH", path, {"spec": spec}, content_type=content_type, fieldManager="kubectl-edit"
    )
    return edited["spec"]


def test_who_opens_the_fence_of_a_run_finds_it_closed_again(plane: Plane, loops: Loops, people: Any) -> None:
    cluster = loops.create(people, workers=1)
    run = loops.until_running(cluster)

    def put_right(kind: str, spec: Object, number: int) -> None:
        path = path_of(loops, run, kind)
        before = spec_of(plane, path)
        assert edit(plane, path, spec) != before
        loops.until(lambda: spec_of(plane, path) == before)
        loops.until(lambda: told(f"{kind} {names_of(loops, run)} was changed by hand.") == number)
        loops.until(lambda: loops.run(cluster).applied_at)

    for number, spec in enumerate(({"ingress": [{}], "egress": [{}]}, {"egress": None}), 1):
        put_right("NetworkPolicy", spec, number)
    # The same one twice: a Service counts no generations.
    for number, spec in enumerate(
        ({"selector": {"app": "evil"}}, {"selector": {"app": "evil"}}, {"selector": None}), 1
    ):
        put_right("Service", spec, number)
    loops.until_running(cluster)
    # What the portal itself changes when it ends the tasks is nobody's edit.
    loops.disable(people, cluster)
    loops.until_phase(cluster, "Stopped")
    assert told("") == 5
