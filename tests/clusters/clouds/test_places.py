"""Which cloud gets a run, what may be used there, and that the run stays there."""

import threading

import pytest
from django.db import connection, connections, transaction

from clusters.catalog.lookup import resolve
from clusters.catalog.models import Image
from clusters.cloud_admin import actions as cloud_actions
from clusters.clouds import registry
from clusters.clouds.drivers.base import CloudError
from clusters.clouds.models import Cloud, Placement
from clusters.clouds.placement import place_of
from clusters.cluster import actions
from clusters.runs.models import Run
from clusters.runs.queries.preview import preview
from datastores.models import AllowedFolder, Datastore, Version
from portal.errors import Conflict, Invalid
from portal.models import Event, OrgNode

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def training(catalogue, people):
    return Cloud.objects.create(kind="kubernetes", name="training", title="Training", server="https://k.example.com")


@pytest.fixture
def ops_line(people):
    return OrgNode.objects.get(path="qunarcorp.ops")


def refused(call):
    with pytest.raises(Invalid) as caught:
        call()
    return {".".join(error.path): error.message for error in caught.value.errors}


def test_without_any_registered_cluster_everything_runs_here(people):
    assert (place_of(people.ops).cloud, place_of(people.ops).namespace) == ("local", "ops")


def test_a_line_is_placed_and_the_others_go_to_the_default(training, people, ops_line):
    cloud_actions.place(ops_line, "training", acting_user=people.root)
    assert (place_of(people.ops).cloud, place_of(people.ops).title) == ("training", "Training")
    assert place_of(people.flight).cloud == "local"
    Cloud.objects.filter(kind="kubernetes").update(is_default=True)
    assert place_of(people.flight).cloud == "training"
    cloud_actions.place(ops_line, "local", acting_user=people.root)
    assert place_of(people.ops).cloud == "local"
    cloud_actions.place(ops_line, None, acting_user=people.root)
    assert place_of(people.ops).cloud == "training"
    assert not Placement.objects.exists()
    assert list(Event.objects.filter(verb="org.placed").order_by("pk").values_list("data", flat=True)) == [
        {"was": None, "cloud": "training"},
        {"was": "training", "cloud": "local"},
        {"was": "local", "cloud": None},
    ]


def test_the_nearest_line_decides(training, people, ops_line):
    cloud_actions.place(ops_line, "training", acting_user=people.root)
    below = OrgNode.objects.create(path="qunarcorp.ops.dev", title="Dev")
    people.ops.org_node = below
    assert (place_of(people.ops).cloud, place_of(people.ops).namespace) == ("training", "ops")
    below.namespace = "ops-dev"
    below.save()
    assert (place_of(people.ops).cloud, place_of(people.ops).namespace) == ("local", "ops-dev")


@pytest.mark.parametrize("namespace", [None, "default", "kube-system"])
def test_a_line_without_a_namespace_of_its_own_runs_on_no_kubernetes_cluster(training, people, ops_line, namespace):
    Cloud.objects.filter(kind="kubernetes").update(is_default=True)
    OrgNode.objects.filter(pk=ops_line.pk).update(namespace=namespace)
    assert "administrator" in refused(lambda: place_of(people.ops))["metadata.appcode"]


def test_nowhere_to_run_is_said_at_the_appcode(catalogue, people, manifest, settings):
    settings.LOCAL_CLOUD_SOCKET = ""
    errors = refused(lambda: actions.create_cluster(manifest(), acting_user=people.bob))
    assert "no cloud to run on" in errors["metadata.appcode"]
    assert registry.cloud_names() == []
    with pytest.raises(CloudError):
        registry.cloud("local")


def test_a_disabled_cluster_takes_no_new_runs_and_is_followed_as_long_as_runs_live_there(
    training, people, ops_line, manifest
):
    cloud_actions.place(ops_line, "training", acting_user=people.root)
    cluster = actions.create_cluster(manifest(image="container-only"), acting_user=people.bob)
    Cloud.objects.filter(kind="kubernetes").update(enabled=False)
    errors = refused(lambda: actions.create_cluster(manifest("other", image="container-only"), acting_user=people.bob))
    assert "Training, which takes no new runs" in errors["metadata.appcode"]
    assert "training" in registry.followed()
    Run.objects.filter(current_of=cluster).update(gone=True)
    assert "training" not in registry.followed()
    assert "training" in registry.cloud_names(), "its logs can still be read"


def test_what_can_be_used_depends_on_where_it_lands(training, people, ops_line, manifest, tmp_path):
    AllowedFolder.objects.create(path=str(tmp_path))
    Datastore.objects.create(appcode=people.ops, name="folder", kind="local", spec={"path": str(tmp_path)})
    here, there = manifest(input="folder"), manifest(image="container-only", output="folder")
    assert resolve(here.spec, people.ops).place.is_local
    errors = refused(lambda: preview(there, acting_user=people.bob))
    assert errors == {
        "spec.image": "“Container only” has only a container reference and cannot run on this machine; choose another image."
    }
    cloud_actions.place(ops_line, "training", acting_user=people.root)
    assert (
        "local environment and cannot run on Training" in refused(lambda: resolve(here.spec, people.ops))["spec.image"]
    )
    errors = refused(lambda: preview(there, acting_user=people.bob))
    assert errors.keys() == {"spec.output"}
    assert errors["spec.output"].startswith(
        "“folder” is of kind Folder of this machine, which Training cannot reach; choose"
    )


def test_an_input_is_cached_there_where_an_administrator_offers_it_and_a_version_is_named(
    training, people, ops_line, manifest
):
    spec = {"server": "https://s3.example", "bucket": "tmp", "prefix": "", "access_key": "x", "region": "us-east-1"}
    store = Datastore.objects.create(appcode=people.ops, name="digits", kind="s3", spec=spec, secret="x")
    Version.objects.create(datastore=store, name="1", folder="train", digest="a" * 64, files=1, bytes=2**40)
    small = Version.objects.create(datastore=store, name="2", folder="train", digest="a" * 64, files=1, bytes=10)

    def reading(**said):
        return manifest(image="container-only", input={"datastore": "digits", "mode": "cache", **said}).spec

    def why(**said):
        return refused(lambda: resolve(reading(**said), people.ops))

    assert resolve(manifest(input={"datastore": "digits", "mode": "cache"}).spec, people.ops).place.is_local
    cloud_actions.place(ops_line, "training", acting_user=people.root)
    assert "An administrator has to name a storage class" in why(version="2")["spec.input.mode"]
    Cloud.objects.filter(pk=training.pk).update(settings={"cache_class": "cephfs"})
    assert "Make a version" in why()["spec.input.mode"]
    assert "has no version 3" in why(version="3")["spec.input.version"]
    assert "a volume may have at most 1Ti" in why(version="1")["spec.input.mode"]
    assert resolve(reading(version="2"), people.ops).input.version == small


def test_more_tasks_than_one_variable_can_name_there_are_refused_at_the_field(training, people, ops_line, manifest):
    small = {"flavor": "small", "count": 1}
    roles = {"master": small, "ps": {**small, "count": 300}, "worker": {**small, "count": 1000}}
    many = manifest(image="container-only", roles=roles)
    assert resolve(manifest(roles=roles).spec, people.ops).place.is_local, "addresses are short there"
    cloud_actions.place(ops_line, "training", acting_user=people.root)
    errors = refused(lambda: resolve(many.spec, people.ops))
    assert errors.keys() == {"spec.roles.worker.count"}
    assert "it names all 1,301 tasks; about 1,210 fit" in errors["spec.roles.worker.count"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "s3.localhost", "[::1]", "0x7f.1"])
def test_a_server_that_only_this_machine_reaches_serves_nobody_else(training, people, ops_line, manifest, host):
    spec = {"server": f"http://{host}:9000", "bucket": "tmp", "prefix": "", "access_key": "x", "region": "us-east-1"}
    Datastore.objects.create(appcode=people.ops, name="mine", kind="s3", spec=spec, secret="x")
    assert resolve(manifest(input="mine").spec, people.ops).place.is_local
    cloud_actions.place(ops_line, "training", acting_user=people.root)
    errors = refused(lambda: resolve(manifest(image="container-only", input="mine").spec, people.ops))
    assert "lies on the portal's own machine" in errors["spec.input"]


def test_a_run_stays_where_it_was_made(training, people, ops_line, manifest):
    cluster = actions.create_cluster(manifest(), acting_user=people.bob)
    cloud_actions.place(ops_line, "training", acting_user=people.root)
    actions.disable(cluster, acting_user=people.bob)
    with pytest.raises(Invalid):
        actions.deploy(cluster, acting_user=people.bob)
    other = actions.create_cluster(manifest("other", image="container-only"), acting_user=people.bob)
    OrgNode.objects.filter(pk=ops_line.pk).update(namespace="renamed")
    cloud_actions.place(OrgNode.objects.get(pk=ops_line.pk), None, acting_user=people.root)
    places = {run.cluster_id: (run.cloud, run.namespace) for run in Run.objects.all()}
    assert places == {cluster.pk: ("local", "ops"), other.pk: ("training", "ops")}


@pytest.mark.parametrize(
    ("path", "cloud", "field"),
    [
        ("qunarcorp.ops", "nowhere", "cloud"),
        ("qunarcorp", "training", "businessLine"),
        ("qunarcorp.ops", "training", "cloud"),
    ],
)
def test_lines_are_placed_where_they_can_run(training, people, path, cloud, field):
    OrgNode.objects.get_or_create(path="qunarcorp")
    Cloud.objects.filter(kind="kubernetes").update(enabled=path == "qunarcorp")
    assert field in refused(lambda: cloud_actions.place(OrgNode.objects.get(path=path), cloud, acting_user=people.root))


def test_runs_of_other_clouds_are_nobodys_business(training, people, manifest):
    """Reports about another cloud's run are ignored, and a listing makes only its own cloud's runs vanish."""
    from django.utils.timezone import now

    from clusters.clouds.drivers.base import Batch, RunGone
    from clusters.runs.status.observe import apply_batch, apply_listing

    cluster = actions.create_cluster(manifest(), acting_user=people.bob)
    run = cluster.current_run
    Run.objects.update(applied_at=now(), admitted_at=now())
    apply_batch("training", Batch("1", (RunGone(run.pk),)))
    apply_listing("training", Batch("2", ()), now())
    run.refresh_from_db()
    assert not run.gone
    assert run.applied_at


def aside(call):
    """Runs `call` in a thread with its own database connection; returns the thread, and a list for its error."""
    raised = []

    def work():
        try:
            call()
        except (Conflict, Invalid) as error:
            raised.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    return thread, raised


def test_a_cluster_that_is_removed_while_a_run_is_made_gets_no_run(training, people, ops_line, manifest, monkeypatch):
    cloud_actions.place(ops_line, "training", acting_user=people.root)
    Image.objects.update(container="example/python:3")

    def remove():
        cloud_actions.place(ops_line, "local", acting_user=people.root)
        cloud_actions.remove(training, acting_user=people.root)

    def resolve_and_be_late(*arguments, **named):
        found = resolve(*arguments, **named)
        thread, raised = aside(remove)
        thread.join(60)
        assert not thread.is_alive()
        assert not raised
        return found

    monkeypatch.setattr(actions, "resolve", resolve_and_be_late)
    errors = refused(lambda: actions.create_cluster(manifest(), acting_user=people.bob))
    assert errors == {"metadata.appcode": "An administrator has just removed Training; try again."}
    assert not Run.objects.exists()


def test_a_cluster_on_which_a_run_is_being_made_is_not_removed(training, people, ops_line, manifest):
    cloud_actions.place(ops_line, "training", acting_user=people.root)
    Image.objects.update(container="example/python:3")

    def remove():
        cloud_actions.place(ops_line, "local", acting_user=people.root)
        cloud_actions.remove(training, acting_user=people.root)

    with transaction.atomic():
        actions.create_cluster(manifest(), acting_user=people.bob)
        thread, raised = aside(remove)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        with connection.cursor() as cursor:
            for _ in range(6000):
                cursor.execute(waits)
                if cursor.fetchone()[0] or not thread.is_alive():
                    break
                cursor.execute("SELECT pg_sleep(0.01), pg_stat_clear_snapshot()")
        assert thread.is_alive()
    thread.join(60)
    assert str(raised[0]).startswith("Training has 1 run of ours.")
    assert Cloud.objects.filter(name="training").exists()


def test_a_class_is_chosen_where_the_portal_orders_runs(training, people, ops_line, manifest):
    urgent, spare, normal = (
        manifest(image="container-only", priorityClass=name) for name in ("urgent", "spare", "normal")
    )
    here = manifest(priorityClass="spare")
    assert resolve(here.spec, people.ops).spec.priority_class == "spare"
    cloud_actions.place(ops_line, "training", acting_user=people.root)
    assert resolve(urgent.spec, people.ops).place.cloud == "training"
    Cloud.objects.filter(pk=training.pk).update(settings={"nodes_on_demand": True})
    assert resolve(normal.spec, people.ops).place.cloud == "training"
    sentence = "Training decides itself which run goes first and which gives way; choose normal."
    for each in (urgent, spare):
        assert refused(lambda spec=each.spec: resolve(spec, people.ops)) == {"spec.priorityClass": sentence}
    cloud_actions.place(ops_line, "local", acting_user=people.root)
    always = refused(lambda: resolve(here.spec, people.ops, by_routers=True))
    assert always["spec.priorityClass"] == "Replicas of a service answer people: they are always normal."


def test_what_is_spare_may_be_larger_than_the_quota(catalogue, people, manifest):
    people.ops.gpu_quota = 1
    people.ops.save()
    assert refused(lambda: preview(manifest(flavor="one-gpu", workers=1), acting_user=people.bob)).keys() == {
        "spec.roles.master.flavor"
    }
    spare = manifest(flavor="one-gpu", workers=1, priorityClass="spare")
    assert preview(spare, acting_user=people.bob).gpus == 2
