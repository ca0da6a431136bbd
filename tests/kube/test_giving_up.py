"""A real API server that stays away is given up, and can come back with pods that still run."""

from __future__ import annotations

import datetime as dt
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

from tests.kube.following import portal_kubeconfig
from tests.kube.loops import Loops
from tests.kube.plane import Plane

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("brisk")]
SECONDS = 90.0


@pytest.fixture
def loops(plane: Plane, people: Any, settings: Any) -> Iterator[Loops]:
    """The loops with the real controller, which discovers clouds itself."""
    from clusters.runs.status.follower import follow_all

    settings.LOCAL_CLOUD_SOCKET = ""
    loops = Loops(plane, f"lost-{secrets.token_hex(4)}", yaml.safe_load(portal_kubeconfig(plane).read_text()))
    loops.catalogue()
    stopped = threading.Event()
    controller = threading.Thread(target=follow_all, args=[stopped], daemon=True)
    controller.start()
    loops.start_workers()
    try:
        yield loops
    finally:
        stopped.set()
        controller.join()
        loops.stop()


def test_a_lost_cluster_is_given_up_and_ended_when_it_comes_back(
    plane: Plane, loops: Loops, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from billing.models import UsageSegment
    from clusters.cloud_admin import actions, decommission
    from clusters.clouds.models import Cloud, CloudState
    from clusters.runs import quota
    from clusters.runs.models import Run
    from portal.errors import Conflict
    from portal.models import Event

    # Replaces a wait of five minutes by one of a watch interval.
    monkeypatch.setattr(decommission, "HEARD", dt.timedelta(seconds=8))
    one, two = loops.create(people, "one"), loops.create(people, "two", workers=1)
    runs = [loops.until_running(cluster, seconds=SECONDS) for cluster in (one, two)]
    row = Cloud.objects.get(kind="kubernetes")
    loops.until(lambda: Cloud.objects.filter(kind="kubernetes").exclude(uid="").exists(), SECONDS)
    with pytest.raises(CommandError, match="was heard"):
        call_command("give_up_cloud", "kubernetes", yes="kubernetes")
    plane.stop_apiserver()
    try:
        loops.until(lambda: CloudState.objects.exclude(trouble="").exists(), SECONDS)
        heard_at = CloudState.objects.get().heard_at
        loops.disable(people, one)
        loops.until(lambda: loops.run(one).reason == "Ending", SECONDS)
        with pytest.raises(Conflict, match="has 2 runs of ours"):
            actions.remove(row, acting_user=people.root)
        loops.until(lambda: decommission.is_silent(CloudState.objects.get().heard_at), SECONDS)
        call_command("give_up_cloud", "kubernetes", yes="kubernetes")
        assert (loops.run(one).phase, loops.run(one).reason) == ("Stopped", "Disabled")
        assert (loops.run(two).phase, loops.run(two).reason) == ("Failed", "Lost")
        assert not Run.objects.filter(gone=False).exists()
        assert quota.held(people.ops.pk).gpus == 0
        found = list(UsageSegment.objects.all())
        assert len(found) == 3
        assert {tuple(each.flags) for each in found} == {("end-estimated",)}
        assert {each.ended for each in found} == {heard_at.replace(microsecond=0)}
    finally:
        plane.start_apiserver()
    for run in runs:
        loops.until_nothing_is_left(run, SECONDS)
    loops.until(lambda: not Run.objects.filter(gone=False).exists(), SECONDS)
    assert (loops.run(one).phase, loops.run(two).phase) == ("Stopped", "Failed")
    assert Event.objects.filter(verb="run.found").count() == 2
    found = list(UsageSegment.objects.all())
    assert len(found) == 3, "nothing was adopted, and nothing is metered twice"
    assert {tuple(each.flags) for each in found} == {()}
    assert all(each.ended and each.ended > heard_at for each in found)
    actions.remove(Cloud.objects.get(kind="kubernetes"), acting_user=people.root)
    loops.until(lambda: not CloudState.objects.exists(), SECONDS)
