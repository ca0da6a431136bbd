"""A due run starts once, following its policy, in the name of the user who created or last changed the schedule."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from clusters.cluster import actions as cluster_actions
from clusters.pipelines import actions as pipeline_actions
from clusters.pipelines.loop import advance as advance_pipeline
from clusters.pipelines.manifest import PipelineManifest
from clusters.runs.models import Cluster, Run
from clusters.schedules import actions
from clusters.schedules.loop import advance, resync
from clusters.schedules.manifest import ScheduleManifest
from clusters.schedules.models import Schedule
from portal.errors import Invalid
from portal.manifests import parse
from portal.models import Event, Membership

pytestmark = pytest.mark.django_db(transaction=True)
SPEC = {"image": "python", "command": "sleep 600", "roles": {"master": {"flavor": "small"}}}


def schedule(people, by=None, **spec):
    body = {"metadata": {"name": "night"}, "spec": {"cron": "30 2 * * *", **spec}}
    manifest = parse(ScheduleManifest, body, appcode="ops-demo")
    return actions.create_schedule(manifest, people.ops, acting_user=by or people.bob)


def come(made, **late):
    """Makes the schedule due (or overdue by `late`) and advances it; returns the result."""
    Schedule.objects.update(next_at=timezone.now() - dt.timedelta(**(late or {"seconds": 1})))
    advance(made.appcode_id, made.name)
    advance(made.appcode_id, made.name)
    made.refresh_from_db()
    assert made.next_at > timezone.now()
    return made.last_result


def runs(cluster):
    return list(Run.objects.filter(cluster=cluster).order_by("number").values_list("number", "desired"))


def test_a_cluster_is_deployed_once_and_what_still_goes_on_is_treated_as_was_said(loop, people, manifest):
    cluster = cluster_actions.create_cluster(manifest("train", "true"), acting_user=people.alice)
    made = schedule(people, cluster="train")
    assert come(made) == "Run 1 was still going on."
    loop.until_phase(cluster, "Succeeded")
    assert come(made) == "Run 2 was started."
    assert Run.objects.get(cluster=cluster, number=2).created_by == people.bob
    loop.until_phase(cluster, "Succeeded")
    assert come(made, hours=3) == "The portal did not run at that time."
    with pytest.raises(Invalid, match="has no cluster “other”"):
        actions.change_schedule(
            made,
            parse(
                ScheduleManifest,
                {"metadata": {"name": "night"}, "spec": {"cron": "* * * * *", "cluster": "other"}},
                appcode="ops-demo",
            ),
            acting_user=people.bob,
        )
    Schedule.objects.update(spec={**made.spec, "missed": "once", "overlapping": "queue"})
    assert come(made, days=3) == "Run 3 was started."
    assert come(made) == "The next run starts as soon as run 3 is over."
    assert runs(cluster)[2:] == [(3, "running")]
    assert Cluster.objects.get().next_by == people.bob
    Schedule.objects.update(spec={**made.spec, "overlapping": "cancel"})
    assert come(made) == "The next run starts as soon as run 3 is over, which was ended for it."
    # Run 3 had not started yet, so it ended at once and run 4 followed. No further run is requested.
    assert runs(cluster)[2:] == [(3, "ended"), (4, "running")]
    assert Cluster.objects.get().next_by is None
    Membership.objects.filter(user=people.bob).delete()
    assert come(made).startswith("Nothing was started: You need to be developer or owner")
    kinds = Event.objects.filter(verb__startswith="schedule.").order_by("pk").values_list("verb", flat=True)
    assert [kind.partition(".")[2] for kind in kinds] == [
        "created", "skipped", "started", "skipped", "started", "started", "started", "failed",
    ]  # fmt: skip


def test_a_pipeline_is_run_and_the_next_one_waits_for_it(catalogue, people, monkeypatch):
    from clusters import wakeups

    body = {"metadata": {"name": "nightly"}, "spec": {"stages": [{"name": "train", "spec": SPEC}]}}
    pipeline = pipeline_actions.create_pipeline(
        parse(PipelineManifest, body, appcode="ops-demo"), people.ops, acting_user=people.alice
    )
    made = schedule(people, pipeline="nightly", overlapping="queue")
    assert come(made) == "Run 1 was started."
    assert come(made) == "The next run starts as soon as run 1 is over."
    assert pipeline.runs.count() == 1
    pipeline_actions.cancel_pipeline(pipeline, acting_user=people.alice)
    assert come(made) == "Run 2 was started.", "whoever cancels wants no next one either"
    assert come(made) == "The next run starts as soon as run 2 is over."
    pipeline.runs.filter(number=2).update(finished_at=timezone.now(), phase="Failed")
    advance_pipeline(people.ops.pk, "nightly")
    assert list(pipeline.runs.order_by("number").values_list("number", "created_by__username", "newest")) == [
        (1, "bob", True),
        (2, "bob", True),
        (3, "bob", True),
    ]
    woken = []
    monkeypatch.setattr(wakeups, "wake_whole", lambda *whole: woken.append(whole))
    paused = actions.pause_schedule(made, acting_user=people.bob, paused=True)
    assert paused.next_at is None
    resync()
    assert not woken
    actions.pause_schedule(made, acting_user=people.bob, paused=False)
    Schedule.objects.update(next_at=timezone.now())
    resync()
    assert woken == [(people.ops.pk, "schedules/night")]
