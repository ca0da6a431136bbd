"""User actions on services, as rows: revisions, rollouts, replicas and tokens. Nothing is started here."""

import hashlib

import pytest
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404

from clusters.catalog.lookup import resolve
from clusters.catalog.models import Flavor, ServingRuntime
from clusters.cluster import actions as clusters
from clusters.manifest.cluster import ClusterSpec
from clusters.model_registry.models import ModelVersion
from clusters.runs.models import Cluster
from clusters.services import actions, revisions, tokens
from clusters.services.access import service_for, services_for
from clusters.services.manifest import TokenSpec
from clusters.services.models import Replica, Rollout, Service, ServiceToken
from portal.errors import Invalid
from portal.models import Event

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def heard():
    """heard() → (channel, payload) of the notifications since the last call."""
    import psycopg2

    connection.ensure_connection()
    listener = psycopg2.connect(**{**connection.get_connection_params(), "cursor_factory": None})
    listener.autocommit = True
    with listener.cursor() as cursor:
        cursor.execute("LISTEN services; LISTEN services_changed; LISTEN services_wanted")

    def since():
        # Notifications sent before this query arrive with its answer.
        with listener.cursor() as cursor:
            cursor.execute("SELECT 1")
        found = [(each.channel, each.payload) for each in listener.notifies]
        listener.notifies.clear()
        return found

    yield since
    listener.close()


def wrong(manifest, user, **more):
    with pytest.raises(Invalid) as found:
        actions.create_service(manifest, acting_user=user, **more)
    return {".".join(each.path): each.message for each in found.value.errors}


def test_a_service_begins_with_a_revision_of_what_its_alias_names(people, model, service_manifest, heard):
    made = actions.create_service(service_manifest(replicas={"least": 2, "most": 3}), acting_user=people.bob)
    revision, rollout = made.revisions.get(), made.rollouts.get()
    assert (made.label, made.phase, made.desired, made.acts_for) == (
        "digits-ops-demo",
        "Starting",
        "running",
        people.bob,
    )
    assert (revision.number, revision.model, revision.weight, revision.wanted) == (1, "digits/1", 100, 2)
    assert revision.spec["model"] == "digits/1"
    assert (rollout.kind, rollout.phase, rollout.from_revision, rollout.to_revision) == (
        "rolling",
        "Starting",
        None,
        revision,
    )
    assert Event.objects.get(verb="service.created").object == "service ops-demo/digits"
    assert set(heard()) == {("services", ""), ("services_changed", str(made.pk))}
    assert not Cluster.objects.exists()  # the loop creates them


def test_what_cannot_be_served_is_refused_at_its_field(people, model, service_manifest, heard):
    bob = people.bob
    assert wrong(service_manifest(model="digits@nobody"), bob) == {
        "spec.model": "ops-demo has no model “digits” of which “nobody” names a version."
    }
    assert "with a version 9" in wrong(service_manifest(model="digits/9"), bob)["spec.model"]
    assert "spec.image" in wrong(service_manifest(image="absent"), bob)
    assert "container reference" in wrong(service_manifest(image="container-only"), bob)["spec.image"]
    assert "spec.flavor" in wrong(service_manifest(flavor="absent"), bob)
    assert "spec.environment" in wrong(service_manifest(environment="absent"), bob)
    Flavor.objects.create(name="huge", title="Huge", cpu_milli=100, memory_mb=128, gpus=1000)
    assert "quota of ops-demo" in wrong(service_manifest(flavor="huge"), bob)["spec.flavor"]
    many = {"least": 1, "most": 50}
    assert "quota of ops-demo" in wrong(service_manifest(flavor="one-gpu", replicas=many), bob)["spec.replicas.most"]
    for flavor, said in (("one-gpu", "without one"), ("absent", "no flavor")):
        full = service_manifest(rollout={"whenFull": "cpu", "cpuFlavor": flavor})
        assert said in wrong(full, bob)["spec.rollout.cpuFlavor"]
    ModelVersion.objects.filter(number=1).update(state="Changed", message="a.txt is another one.")
    assert "a.txt is another one." in wrong(service_manifest(), bob)["spec.model"]
    assert not Service.objects.exists()
    assert not Event.objects.filter(verb__startswith="service.").exists()
    assert heard() == []  # a refusal sends no notification


def test_a_runtime_is_offered_serves_the_format_and_finds_containers_where_it_is_one(people, model, service_manifest):
    def refused(runtime, image=None, **more):
        return wrong(service_manifest(runtime=runtime, image=image, **more), people.bob)

    offered = "The catalogue offers no serving runtime “{}”."
    assert refused("absent") == {"spec.runtime": offered.format("absent")}
    assert refused("triton") == {"spec.runtime": offered.format("triton")}  # until an administrator enables it
    ServingRuntime.objects.filter(name__in=["triton", "tensorflow-serving"]).update(enabled=True)
    container = "“{}” is a container, and this machine runs none; choose another runtime."
    assert refused("tensorflow-serving") == {"spec.runtime": container.format("TensorFlow Serving")}
    both = refused("tensorflow-serving", "python", command="true")
    assert both.keys() == {"spec.image", "spec.command"}
    assert "leave this out" in both["spec.image"]
    assert "spec.image" in refused("portal")
    # The organisation's own runtime, which is no container, runs in any image.
    ServingRuntime.objects.create(
        name="own", title="Own", formats=["onnx"], protocols=["openai-v1"], command="own {model}"
    )
    why = "“Own” serves onnx, and version 1 of the model digits is of the format “saved-model”; choose another runtime."
    assert refused("own", "python") == {"spec.runtime": why}
    ServingRuntime.objects.filter(name="own").update(formats=["saved-model"], drain_seconds=7, env={"A": "1", "B": "1"})
    manifest = service_manifest(runtime="own", env={"B": "2"})
    revision = actions.create_service(manifest, acting_user=people.bob).revisions.get()
    assert (revision.drain_seconds, revision.spec["env"]) == (7, {"A": "1", "B": "2"})
    assert (revision.spec["image"], revision.spec["server"]["argv"]) == ("python", ["own", "digits"])
    # The runtime is disabled now; and only services may fill in this field.
    ServingRuntime.objects.filter(name="own").update(enabled=False)
    spec = ClusterSpec.model_validate(revision.spec)
    for by_routers, message in ((True, offered.format("own")), (False, "Only services say this of their replicas.")):
        with pytest.raises(Invalid) as found:
            resolve(spec, people.ops, by_routers=by_routers)
        assert message in [each.message for each in found.value.errors if each.path == ("spec", "server")]


def test_a_name_is_refused_that_another_service_or_a_cluster_of_its_replicas_has(
    people, service, service_manifest, manifest
):
    assert "already has a service" in wrong(service_manifest(), people.bob)["metadata.name"]
    clusters.create_cluster(manifest("even-2"), acting_user=people.bob)
    assert "There is a cluster “even-2”" in wrong(service_manifest("even"), people.bob)["metadata.name"]


def test_an_appcode_has_so_many_services_at_most(people, service, service_manifest, monkeypatch):
    monkeypatch.setattr(actions, "MOST", 1)
    assert "delete one" in wrong(service_manifest("more"), people.bob)["metadata.name"]
    actions.delete_service(service, acting_user=people.bob)
    actions.create_service(service_manifest("more"), acting_user=people.bob)


def test_two_services_never_have_one_address(people, model, service_manifest):
    people.ops.code = "demo"
    people.ops.save()
    one = actions.create_service(service_manifest("a-b", "demo"), acting_user=people.bob)
    people.ops.code = "b-demo"
    people.ops.save()
    other = actions.create_service(service_manifest("a", "b-demo"), acting_user=people.bob)
    assert one.label == "a-b-demo"
    assert other.label.startswith("a-b-demo-")
    assert len(other.label) == len("a-b-demo-") + 8


def test_who_may_not_creates_and_changes_nothing(people, service, service_manifest):
    with pytest.raises(PermissionDenied):
        actions.create_service(service_manifest("mine"), acting_user=people.victor)
    assert "no appcode" in wrong(service_manifest("mine"), people.mallory)["metadata.appcode"]
    for user in (people.victor, people.mallory):
        for act in (actions.disable_service, actions.enable_service, actions.delete_service):
            with pytest.raises(PermissionDenied):
                act(service, acting_user=user)
        with pytest.raises(PermissionDenied):
            tokens.create_token(service, TokenSpec(name="x"), acting_user=user)
    with pytest.raises(Http404):
        service_for(people.mallory, "ops-demo", "digits")
    assert service_for(people.victor, "ops-demo", "digits") == service_for(people.root, "ops-demo", "digits") == service
    assert list(services_for(people.mallory)) == []


def test_a_disabled_service_wants_nothing_and_comes_back_as_it_was(people, service, heard):
    heard()
    before = service.route
    for _ in range(2):
        actions.disable_service(service, acting_user=people.alice)
    service.refresh_from_db()
    assert (service.desired, service.route, service.rollouts.get().phase) == ("ended", before + 1, "Cancelled")
    assert service.revisions.get().wanted == 0
    assert heard().count(("services", "")) == 1
    for _ in range(2):
        actions.enable_service(service, acting_user=people.alice)
    service.refresh_from_db()
    revision = service.revisions.get()
    assert (service.desired, service.phase, service.acts_for, revision.wanted, revision.weight) == (
        "running",
        "Starting",
        people.alice,
        1,
        100,
    )
    assert [each.verb for each in Event.objects.filter(verb__startswith="service.").order_by("id")] == [
        "service.created",
        "service.disabled",
        "service.enabled",
    ]


def test_a_deleted_service_takes_everything_along_but_its_address_and_its_numbers(
    people, service, service_manifest, manifest, heard
):
    cluster = clusters.create_cluster(manifest("digits-1"), acting_user=people.bob, part_of=service.part_of)
    Replica.objects.create(
        service=service, revision=service.revisions.get(), slot=1, cluster=cluster, run=cluster.current_run
    )
    tokens.create_token(service, TokenSpec(name="checkout"), acting_user=people.bob)
    heard()
    actions.delete_service(service, acting_user=people.bob)
    assert ("services", "") in heard()
    cluster.refresh_from_db()
    assert cluster.deleted_at
    assert cluster.current_run.desired == "ended"
    assert service.replicas.get().state == "gone"
    assert not ServiceToken.objects.exists()
    with pytest.raises(Http404):
        service_for(people.root, "ops-demo", "digits")
    with pytest.raises(Http404):
        actions.delete_service(service, acting_user=people.bob)

    again = actions.create_service(service_manifest(model="digits/2"), acting_user=people.alice)
    assert (again.pk, again.label, again.created_by, again.tokens.count()) == (
        service.pk,
        "digits-ops-demo",
        people.alice,
        0,
    )
    new = again.revisions.first()
    assert (new.number, new.model, new.weight, again.rollouts.first().number) == (2, "digits/2", 100, 2)
    assert revisions.living(again).from_revision is None
    assert again.route > service.route


def test_a_token_is_known_once_and_only_by_who_made_it(people, service, heard):
    heard()
    spec = TokenSpec(name="checkout", per_second=10, at_once=2, days=30)
    row, token = tokens.create_token(service, spec, acting_user=people.bob)
    assert token.startswith("gps_")
    assert row.digest == hashlib.sha256(token.encode()).hexdigest()
    assert (row.begins, row.per_second, row.at_once) == (token[:12], 10, 2)
    assert (row.expires_at - row.created_at).days in (29, 30)
    assert heard() == [("services", "")]
    with pytest.raises(Invalid, match="already has a token “checkout”"):
        tokens.create_token(service, spec, acting_user=people.bob)
    tokens.delete_token(service, "checkout", acting_user=people.alice)
    with pytest.raises(Http404):
        tokens.delete_token(service, "checkout", acting_user=people.alice)
    service.refresh_from_db()
    assert service.route == 4
    said = " ".join(f"{each.message} {each.data}" for each in Event.objects.filter(verb__startswith="service.token"))
    assert token[4:] not in said
    assert token[:12] not in said


def test_a_service_has_so_many_tokens_at_most(people, service, monkeypatch):
    monkeypatch.setattr(tokens, "MOST_TOKENS", 1)
    tokens.create_token(service, TokenSpec(name="one"), acting_user=people.bob)
    with pytest.raises(Invalid, match="delete one"):
        tokens.create_token(service, TokenSpec(name="two"), acting_user=people.bob)


def test_of_two_versions_the_second_cancels_the_first(people, service, model):
    for number in (2, 3):
        revisions.begin_rollout(
            service, model.versions.get(number=number), kind="canary", weight=20, minutes=5, by_hand=False, reason="",
            by=people.bob,
        )  # fmt: skip
    first, second, third = service.rollouts.order_by("number")
    assert (first.phase, first.message) == ("Cancelled", "Version 2 came before it was done.")
    assert (second.phase, second.message) == ("Cancelled", "Version 3 came before it was done.")
    assert (third.phase, third.from_revision.number, third.to_revision.number) == ("Starting", 1, 3)
    assert (third.weight, third.minutes) == (20, 5)
    assert sum(each.weight for each in service.revisions.all()) == 100
    assert Rollout.objects.filter(phase__in=Rollout.LIVING).count() == 1
