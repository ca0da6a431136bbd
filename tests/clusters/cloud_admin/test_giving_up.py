"""Giving up a cluster that is lost for good: its runs and volumes are no longer billed, and runs that come back are ended."""

import datetime as dt
import io
import json
import uuid

import pytest
from django.core.management import CommandError, call_command
from django.utils.timezone import now

from billing.models import UsageSegment
from clusters.catalog.models import Image
from clusters.cloud_admin import actions as cloud_actions
from clusters.cloud_admin import decommission
from clusters.clouds import registry
from clusters.clouds.drivers.base import Batch, Capacity, Node, RunFound, RunGone, TaskSeen
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.models import Cloud, CloudState
from clusters.clouds.registry import run_ref
from clusters.cluster import actions
from clusters.runs import quota, reconcile
from clusters.runs.models import Run, Task
from clusters.runs.status import observe
from clusters.volumes import metering
from datastores.models import Datastore, Volume
from portal.errors import Conflict, Invalid
from portal.models import Event

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 2**30
CONFIG = (
    '{"apiVersion": "v1", "kind": "Config", "current-context": "it", "contexts": [{"name": "it", "context": {"cluster": "it", '
    '"user": "it"}}], "users": [{"name": "it", "user": {"token": "t"}}], "clusters": [{"name": "it", "cluster": {"server": '
    '"http://127.0.0.1:1"}}]}'
)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    """The API server never answers, so a long timeout only costs time."""
    monkeypatch.setattr("clusters.clouds.drivers.kubernetes.api.client.TRY_SECONDS", 0.2)


@pytest.fixture
def training(catalogue, people):
    """A cluster whose API server is gone: no server listens at its address."""
    Image.objects.update(container="example/python:3")
    return Cloud.objects.create(
        kind="kubernetes", name="training", title="Training", credentials=CONFIG, uid="the-lost-one", is_default=True
    )


@pytest.fixture
def lost_at():
    """Time of its last contact."""
    return (now() - dt.timedelta(hours=3)).replace(microsecond=0)


@pytest.fixture
def run(training, people, manifest, lost_at):
    """A run whose only pod, with one GPU, has run for an hour when the cluster falls silent."""
    return running(people, manifest, "demo", lost_at)


def running(people, manifest, name, lost_at, **spec):
    cluster = actions.create_cluster(manifest(name, flavor="one-gpu", **spec), acting_user=people.bob)
    Run.objects.filter(current_of=cluster).update(admitted_at=now(), applied_at=lost_at)
    run = Run.objects.get(current_of=cluster)
    tell(seen(run, "Running", lost_at - dt.timedelta(hours=1)))
    capacity = Capacity((Node("node-1", "H200", 8, 7, 64_000, 512_000),))
    observe.save_capacity("training", capacity)
    silent_since(lost_at)
    return Run.objects.get(pk=run.pk)


def seen(run, phase, began_at, **more):
    return TaskSeen(
        run_id=run.pk, role="master", index=0, attempt=0, uid=f"uid-{run.pk}", phase=phase, node="node-1", gpus=("0",),
        gpu_model="H200", scheduled_at=began_at, began_at=began_at, started_at=began_at, **more,
    )  # fmt: skip


def tell(*items):
    observe.apply_batch("training", Batch("somewhere", items))


def silent_since(at):
    CloudState.objects.filter(name="training").update(heard_at=at, trouble="Training does not answer.")


def segment(run):
    return UsageSegment.objects.get(uid=f"uid-{run.pk}")


def test_a_run_there_ends_as_lost_when_it_was_last_heard_and_its_gpus_are_free(run, training, people, lost_at):
    assert quota.held(people.ops.pk).gpus == 1
    assert segment(run).ended is None
    loss = decommission.give_up(training, acting_user=people.root)
    assert (loss.runs, loss.gpus, loss.volumes, loss.heard_at) == (1, 1, 0, lost_at)
    run.refresh_from_db()
    assert (run.phase, run.reason, run.gone) == ("Failed", "Lost", True)
    assert run.message == f"Training is lost and was given up by {people.root.display_name}."
    assert run.roles["master"] == {"ready": 0, "count": 1}
    task = Task.objects.get(run=run)
    assert (task.phase, task.reason, task.finished_at) == ("Failed", "Lost", lost_at)
    assert (segment(run).ended, segment(run).flags) == (lost_at, ["end-estimated"])
    assert (run.gpu_rate, run.cost_rate) == (0, 0)
    assert run.gpu_seconds == 3600
    assert quota.held(people.ops.pk).gpus == 0
    training.refresh_from_db()
    assert (training.enabled, training.is_default) == (False, False)
    assert CloudState.objects.get().capacity == {}
    told = {event.verb: event for event in Event.objects.filter(verb__endswith="given_up")}
    assert told.keys() == {"run.given_up", "kubernetes.given_up"}
    assert {event.actor for event in told.values()} == {people.root}
    assert told["run.given_up"].data == {"run": 1}
    assert "1 run with 1 GPU and 0 volumes" in told["kubernetes.given_up"].message
    cloud_actions.remove(training, acting_user=people.root)


def test_what_people_had_asked_for_is_done(training, people, manifest, lost_at):
    run, other, waiting = (
        running(people, manifest, "one", lost_at),
        running(people, manifest, "two", lost_at, output=None),
        actions.create_cluster(manifest("three"), acting_user=people.bob).current_run,
    )
    actions.disable(run.cluster, acting_user=people.bob)
    actions.delete_cluster(other.cluster, acting_user=people.bob)
    silent_since(lost_at)
    run.refresh_from_db()
    assert run.reason == "Ending"
    decommission.give_up(training, acting_user=people.root)
    found = {each.cluster.name: each for each in Run.objects.select_related("cluster")}
    assert (found["one"].phase, found["one"].reason) == ("Stopped", "Disabled")
    assert (found["two"].phase, found["two"].reason) == ("Stopped", "Deleted")
    assert (found["three"].phase, found["three"].reason) == ("Failed", "Lost")
    assert waiting.pk == found["three"].pk
    assert all(each.gone for each in found.values())
    assert segment(run).ended == segment(other).ended == lost_at
    reconcile.purge(other.cluster_id)
    other.cluster.refresh_from_db()
    assert other.cluster.purged


def test_output_of_which_nothing_is_known_is_not_called_stored(training, people, manifest, lost_at):
    run = running(people, manifest, "demo", lost_at)
    Run.objects.update(spec={**run.spec, "output": "store"}, verdict="Succeeded", verdict_reason="Completed")
    decommission.give_up(training, acting_user=people.root)
    run.refresh_from_db()
    assert (run.phase, run.reason, run.stored) == ("Failed", "OutputNotStored", False)
    assert "Nobody can tell what was stored." in run.message


def test_what_is_heard_is_not_given_up(run, training, people, lost_at, monkeypatch):
    silent_since(now() - dt.timedelta(minutes=4))
    with pytest.raises(Conflict, match="Training was heard 4 minutes ago"):
        decommission.give_up(training, acting_user=people.root)
    silent_since(lost_at)
    monkeypatch.setattr(KubernetesCloud, "identity", lambda _: "the-lost-one")
    with pytest.raises(
        Conflict, match=r"Training answers\. If nothing is heard of it, see whether the controller runs"
    ):
        decommission.give_up(training, acting_user=people.root)
    run.refresh_from_db()
    training.refresh_from_db()
    assert (run.gone, training.enabled) == (False, True)
    # A different cluster at the same address does not prove that the lost one is alive.
    monkeypatch.setattr(KubernetesCloud, "identity", lambda _: "a-new-one")
    decommission.give_up(training, acting_user=people.root)
    run.refresh_from_db()
    assert run.gone


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, b"", "Training answers, but does not accept the portal: .* have expired or were revoked"),
        (403, b'{"message": "portal cannot list namespaces"}', r"portal cannot list namespaces\. An administrator"),
        (503, b"no healthy upstream", "Training answers, but does not accept the portal: no healthy upstream"),
        (200, b"<html>Welcome</html>", "What answers at this address is not the API server"),
    ],
)
def test_one_that_does_not_accept_the_portal_is_alive(run, training, people, answers, status, body, why):
    Cloud.objects.filter(kind="kubernetes").update(
        credentials=CONFIG.replace("http://127.0.0.1:1", answers(status, body))
    )
    training.refresh_from_db()
    with pytest.raises(Conflict, match=why):
        decommission.give_up(training, acting_user=people.root)
    with pytest.raises(CommandError, match="give_up_cloud --force"):
        call_command("give_up_cloud", "training", yes="training", stdout=io.StringIO())
    run.refresh_from_db()
    training.refresh_from_db()
    assert (run.gone, training.enabled) == (False, True)
    call_command("give_up_cloud", "training", yes="training", force=True, stdout=io.StringIO())
    run.refresh_from_db()
    assert (run.reason, run.gone) == ("Lost", True)


def test_one_whose_credentials_cannot_be_read_is_not_given_up_without_force(run, training, people, monkeypatch):
    Cloud.objects.filter(kind="kubernetes").update(credentials="not what was written")
    training.refresh_from_db()
    with pytest.raises(
        Conflict, match="Training cannot be asked whether it is lost: The kubeconfig of training cannot"
    ):
        decommission.give_up(training, acting_user=people.root)
    # Force does not overrule a cluster that is alive.
    readable = KubernetesCloud(Client.connect(json.loads(CONFIG)), Settings())
    monkeypatch.setattr(registry, "connect", lambda _: readable)
    monkeypatch.setattr(KubernetesCloud, "identity", lambda _: "the-lost-one")
    with pytest.raises(CommandError, match=r"Training answers\."):
        call_command("give_up_cloud", "training", yes="training", force=True, stdout=io.StringIO())
    run.refresh_from_db()
    assert not run.gone


def test_one_that_answers_meanwhile_is_left_alone(run, training, people, manifest, lost_at, monkeypatch):
    """Giving up stops after the first portion of runs, once the cluster has been heard again. A later call finishes it."""
    other = running(people, manifest, "other", lost_at)
    monkeypatch.setattr(decommission, "PORTION", 1)
    end_runs = decommission._end_runs

    def and_then(happens):
        def some(*arguments):
            end_runs(*arguments)
            happens()
            return True

        monkeypatch.setattr(decommission, "_end_runs", some)

    and_then(tell)
    with pytest.raises(Conflict, match="was heard again meanwhile"):
        decommission.give_up(training, acting_user=people.root)
    assert list(Run.objects.order_by("pk").values_list("gone", flat=True)) == [True, False]
    silent_since(lost_at)
    monkeypatch.setattr(decommission, "_end_runs", end_runs)
    training.refresh_from_db()
    decommission.give_up(training, acting_user=people.root)
    other.refresh_from_db()
    assert (other.phase, other.reason) == ("Failed", "Lost")
    assert Event.objects.filter(verb="run.given_up").count() == 2
    assert Event.objects.filter(verb="kubernetes.given_up").count() == 2
    # Repeating changes nothing and records no event.
    before = Event.objects.count(), list(Run.objects.order_by("pk").values()), segment(run).ended
    assert not decommission.give_up(training, acting_user=people.root)
    assert before == (Event.objects.count(), list(Run.objects.order_by("pk").values()), segment(run).ended)


def test_a_worker_that_was_telling_the_cloud_has_nothing_to_say_any_more(run, training, people):
    token = uuid.uuid4()
    Run.objects.update(claim_token=token, claimed_until=now() + dt.timedelta(minutes=1), applied_at=None)
    decommission.give_up(training, acting_user=people.root)
    reconcile._told(run.pk, token, "applied_at")
    run.refresh_from_db()
    assert (run.applied_at, run.gone) == (None, True)
    assert not Run.objects.filter(reconcile.unsettled(now())).exists()


def test_a_volume_there_is_paid_for_until_then_and_its_datastore_gets_a_new_one(training, people, run, lost_at):
    spec = {"storage_class": "", "access_mode": "ReadWriteMany", "size": "20Gi"}
    store = Datastore.objects.create(appcode=people.ops, name="data", kind="volume", spec=spec)
    facts = {
        "cloud": "training", "namespace": "ops", "appcode": people.ops.code, "access_mode": "ReadWriteMany",
        "size": "20Gi", "told_size": "20Gi", "told_at": lost_at,
    }  # fmt: skip
    volume = Volume.objects.create(datastore=store, name="data", **facts)
    going = Volume.objects.create(datastore=None, name="old", **facts)
    metering.meter(volume.pk, "20Gi", lost_at - dt.timedelta(days=1))
    with pytest.raises(Conflict, match=r"has 1 run and 2 volumes of ours\..*lost for good, give it up first"):
        cloud_actions.remove(training, acting_user=people.root)
    decommission.give_up(training, acting_user=people.root)
    assert not Volume.objects.exists()
    held = UsageSegment.objects.get(consumer=metering.consumer(volume.pk))
    assert (held.ended, held.flags) == (lost_at, ["end-estimated"])
    events = {event.object: event for event in Event.objects.filter(verb="datastore.volume_lost")}
    assert events.keys() == {"datastore ops-demo/data", "datastore ops-demo/old"}
    assert f"claim ops-demo-data-{volume.pk}-data in namespace ops" in events["datastore ops-demo/data"].message
    assert "A run that needs it gets a new, empty one." in events["datastore ops-demo/data"].message
    assert "A run that needs it" not in events["datastore ops-demo/old"].message
    assert going.appcode == events["datastore ops-demo/old"].appcode


def test_one_that_comes_back_has_its_runs_ended_and_their_times_corrected(run, training, people, lost_at):
    decommission.give_up(training, acting_user=people.root)
    assert "training" in registry.followed(), "who follows it is who notices"
    assert CloudState.objects.get().position == "", "with a listing"
    began, back = lost_at - dt.timedelta(hours=1), now()
    run = Run.objects.select_related("cluster__appcode").get(pk=run.pk)
    alive = seen(run, "Running", began)
    observe.apply_listing("training", Batch("1", (RunFound(run.pk, run_ref(run)), alive)), back)
    run.refresh_from_db()
    assert (run.phase, run.reason, run.gone) == ("Failed", "Lost", False)
    assert Run.objects.filter(reconcile.unsettled(now()), pk=run.pk).exists(), "the cloud is to be told to end it"
    assert quota.held(people.ops.pk).gpus == 1, "its pod holds what it holds"
    assert Event.objects.filter(verb="run.found").count() == 1
    ended = now().replace(microsecond=0)
    tell(seen(run, "Failed", began, finished_at=ended, reason="Stopped"), RunGone(run.pk))
    run.refresh_from_db()
    assert (run.phase, run.reason, run.gone) == ("Failed", "Lost", True)
    assert (segment(run).ended, segment(run).flags) == (ended, [])
    assert run.gpu_seconds == int((ended - began).total_seconds())
    assert quota.held(people.ops.pk).gpus == 0
    # Enabled again, the cluster is like any other.
    training.refresh_from_db()
    cloud_actions.change(training, cloud_actions.manifest_of(training, enabled=True), acting_user=people.root)
    training.refresh_from_db()
    assert training.given_up_at is None


def test_nothing_is_made_on_one_that_was_just_given_up(training, people, manifest, monkeypatch):
    resolve = actions.resolve

    def resolve_and_be_late(*arguments, **named):
        found = resolve(*arguments, **named)
        Cloud.objects.filter(kind="kubernetes").update(enabled=False, is_default=False, given_up_at=now())
        return found

    monkeypatch.setattr(actions, "resolve", resolve_and_be_late)
    with pytest.raises(Invalid) as caught:
        actions.create_cluster(manifest("late"), acting_user=people.bob)
    assert caught.value.errors[0].message == "An administrator has just given up Training; try again."
    assert not Run.objects.exists()


def test_the_command_says_what_ends_and_asks_for_the_name(run, training, people, lost_at):
    out = io.StringIO()
    with pytest.raises(CommandError, match="Say it again to do that: --yes training"):
        call_command("give_up_cloud", "training", stdout=out)
    assert out.getvalue().startswith(f"Training was heard last at {lost_at:%Y-%m-%d %H:%M:%S} UTC. 1 run with 1 GPU")
    with pytest.raises(CommandError, match="not its name"):
        call_command("give_up_cloud", "training", yes="trainings", stdout=out)
    with pytest.raises(CommandError, match=r"no cloud “serving”\. Registered: training"):
        call_command("give_up_cloud", "serving", stdout=out)
    run.refresh_from_db()
    assert not run.gone
    call_command("give_up_cloud", "training", yes="training", stdout=out)
    run.refresh_from_db()
    assert (run.phase, run.reason) == ("Failed", "Lost")
    [event] = Event.objects.filter(verb="kubernetes.given_up")
    assert event.message.startswith("Given up by ")
    assert "at the portal's machine" in event.message
    silent_since(now())
    with pytest.raises(CommandError, match=r"was heard \d+ s ago"):
        call_command("give_up_cloud", "training", yes="training", stdout=out)


def test_the_page_says_what_ends_and_asks_for_the_name(run, training, people, client):
    client.force_login(people.bob)
    address = "/admin/clouds/training/give-up"
    assert client.post(address, {"name": "training"}).status_code == 404
    client.force_login(people.root)
    assert address in client.get("/admin/clouds").content.decode()
    assert "1 run with 1 GPU" in client.get(address).content.decode()
    assert "Type “training”." in client.post(address, {"name": "Training"}).content.decode()
    run.refresh_from_db()
    assert not run.gone
    assert client.post(address, {"name": "training"}).headers["Location"] == "/admin/clouds"
    run.refresh_from_db()
    assert run.gone
    page = client.get("/admin/clouds").content.decode()
    assert "given up" in page
    assert address not in page
    # A volume that a concurrent request created meanwhile is still there.
    Volume.objects.create(
        cloud="training", namespace="ops", appcode="ops-demo", name="late", size="1Gi", told_size="1Gi"
    )
    assert address in client.get("/admin/clouds").content.decode()
    assert client.post(address, {"name": "training"}).headers["Location"] == "/admin/clouds"
    assert not Volume.objects.exists()
    Cloud.objects.filter(kind="kubernetes").update(enabled=True, given_up_at=None)
    silent_since(now())
    assert address not in client.get("/admin/clouds").content.decode()
    assert "Training was heard" in client.get(address).content.decode()


def test_rest_wants_the_name_once_more(run, training, people, client):
    address = "/api/v1/kubernetes/training/give-up"
    client.force_login(people.bob)
    assert client.post(address, {"name": "training"}, content_type="application/json").status_code == 404
    client.force_login(people.root)
    answer = client.post(address, {"name": "other"}, content_type="application/json")
    assert answer.status_code == 422, answer.content
    assert answer.json()["errors"][0]["path"] == "name"
    silent = CloudState.objects.get().heard_at
    silent_since(now())
    assert client.post(address, {"name": "training"}, content_type="application/json").status_code == 409
    silent_since(silent)
    answer = client.post(address, {"name": "training"}, content_type="application/json")
    assert answer.status_code == 200, answer.content
    assert answer.json()["status"]["givenUp"]
    assert answer.json()["status"]["runs"] == 0
    run.refresh_from_db()
    assert run.gone
