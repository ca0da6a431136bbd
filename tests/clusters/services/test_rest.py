"""Services over REST: access by role, refusals at their fields, and the contents of documents."""

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from clusters.router.histograms import BUCKETS, bucket
from clusters.runs.models import Cluster, Run
from clusters.services import revisions, summary
from clusters.services.models import Replica, Router, Service, ServiceMinute, ServiceToken
from tests.api.client import api_of

pytestmark = pytest.mark.django_db(transaction=True)
BASE = "/appcodes/ops-demo/services"
DIGITS = f"{BASE}/digits"


def body(name="digits", **spec):
    spec = {"model": "digits@champion", "image": "python", "flavor": "small", **spec}
    return {"kind": "service", "metadata": {"name": name}, "spec": spec}


def wrong(answer):
    status, said = answer
    assert status == 422, said
    return {each["path"]: each["message"] for each in said["errors"]}


def counted(service, revision, minute, requests, *, ms, errors=0, mirrored=False, router="one"):
    latency = [0] * BUCKETS
    latency[bucket(ms)] = requests
    ServiceMinute.objects.create(
        service=service, revision=revision, minute=minute, router=router, requests=requests, errors=errors, latency=latency,
        mirrored=mirrored,
    )  # fmt: skip


@pytest.fixture
def bob_api(people):
    return api_of(people.bob)


def test_a_service_lives_by_rest_from_its_manifest_to_its_end(people, model, bob_api):
    status, made = bob_api.post(BASE, body(replicas={"least": 1, "most": 2}))
    assert status == 201, made
    assert bob_api.last["Location"].endswith(f"/api/v1{DIGITS}")
    said = made["status"]
    assert said["address"].startswith("http://digits-ops-demo.serve.")
    assert (said["phase"], said["desired"], said["revision"], said["model"]) == ("Starting", "running", 1, "digits/1")
    assert (said["rollout"]["to"], said["rollout"]["from"], said["rollout"]["phase"]) == (1, None, "Starting")
    # The document that was read can be sent back as it is.
    status, again = bob_api("PUT", DIGITS, made)
    assert (status, again["spec"], again["metadata"]) == (200, made["spec"], made["metadata"])

    assert bob_api.post(f"{DIGITS}/deploy", {"version": 2, "kind": "canary", "reason": "better"})[1]["status"][
        "rollout"
    ]["kind"] == ("canary")
    assert bob_api.post(f"{DIGITS}/promote")[0] == 409
    status, back = bob_api.post(f"{DIGITS}/rollback", {"reason": "worse"})
    assert (status, back["status"]["rollout"], back["status"]["rollouts"][0]["phase"]) == (202, None, "RolledBack")
    status, scaled = bob_api.post(f"{DIGITS}/scale", {"least": 2})
    assert (status, scaled["spec"]["replicas"]["least"], scaled["status"]["scale"]["replicas"]) == (202, 2, 2)
    assert bob_api.post(f"{DIGITS}/disable")[1]["status"]["desired"] == "ended"
    assert bob_api.post(f"{DIGITS}/enable")[1]["status"]["desired"] == "running"
    assert [each["metadata"]["name"] for each in bob_api.get("/services?search=digits")[1]["items"]] == ["digits"]
    assert bob_api.delete(DIGITS)[0] == 204
    assert bob_api.get(DIGITS)[0] == bob_api.post(f"{DIGITS}/deploy")[0] == 404
    assert bob_api.get(BASE)[1]["items"] == []
    assert bob_api.post(BASE, body())[1]["status"]["revision"] == 3


def test_bad_input_is_refused_at_its_field_and_changes_nothing(people, model, bob_api):
    post = bob_api.post
    assert set(wrong(post(BASE, body("Digits!", replicas={"least": 9, "most": 2})))) == {
        "metadata.name",
        "spec.replicas.most",
    }
    assert "another thing" in wrong(post(BASE, body("preview")))["metadata.name"]
    assert set(wrong(post(BASE, body(rollout={"whenFull": "cpu"})))) == {"spec.rollout.cpuFlavor"}
    assert set(wrong(post(BASE, body(env={"PORT": "1"})))) == {"spec.env"}
    assert set(wrong(post(BASE, body(extra=1)))) == {"spec.extra"}
    assert not Service.objects.exists()
    post(BASE, body())
    assert set(wrong(post(f"{DIGITS}/deploy", {"version": 9}))) == {"version"}
    assert set(wrong(post(f"{DIGITS}/deploy", {"version": 2**40}))) == {"version"}
    assert set(wrong(post(f"{DIGITS}/deploy", {"weight": 100}))) == {"weight"}
    assert set(wrong(post(f"{DIGITS}/scale", {}))) == {"replicas"}
    assert set(wrong(post(f"{DIGITS}/scale", {"replicas": 51}))) == {"replicas"}
    assert set(wrong(post(f"{DIGITS}/scale", {"least": 5}))) == {"most"}
    assert set(wrong(post(f"{DIGITS}/rollback", {"reason": "x" * 301}))) == {"reason"}
    assert set(wrong(post(f"{DIGITS}/tokens", {"name": "", "perSecond": 0}))) == {"name", "perSecond"}
    assert post(f"{DIGITS}/rollback")[0] == 409
    assert Service.objects.get().rollouts.count() == 1


def test_each_kind_of_person_gets_what_is_theirs(people, service):
    may = {
        name: (
            api_of(getattr(people, name)).get(DIGITS)[0],
            api_of(getattr(people, name)).post(f"{DIGITS}/deploy")[0],
            api_of(getattr(people, name)).post(f"{DIGITS}/tokens", {"name": name})[0],
        )
        for name in ("alice", "bob", "victor", "mallory", "root")
    }
    assert may == {
        "alice": (200, 202, 201), "bob": (200, 202, 201), "victor": (200, 403, 403), "mallory": (404, 404, 404),
        "root": (200, 202, 201),
    }  # fmt: skip
    assert api_of(people.mallory).get("/services")[1]["items"] == []


def test_a_token_is_told_once(people, service, bob_api):
    status, made = bob_api.post(f"{DIGITS}/tokens", {"name": "check out", "perSecond": 5})
    assert (status, made["perSecond"], made["atOnce"], made["expires"]) == (201, 5, None, None)
    assert made["token"].startswith(made["begins"])
    assert "name" in wrong(bob_api.post(f"{DIGITS}/tokens", {"name": "check out"}))
    listed = bob_api.get(f"{DIGITS}/tokens")[1]["items"]
    assert [each["name"] for each in listed] == ["check out"]
    assert made["token"] not in str(listed) + str(bob_api.get(DIGITS)[1])
    assert ServiceToken.objects.get().digest not in str(listed)
    assert bob_api.delete(f"{DIGITS}/tokens/check%20out")[0] == 204
    assert bob_api.delete(f"{DIGITS}/tokens/check%20out")[0] == 404


def test_a_document_says_who_answers_what_it_costs_and_what_was_asked(people, service, bob_api, manifest):
    from clusters.cluster import actions as clusters

    now = timezone.now().replace(second=0, microsecond=0)
    one = service.revisions.get()
    cluster = clusters.create_cluster(
        manifest("digits-1", flavor="one-gpu"), acting_user=people.bob, part_of=service.part_of
    )
    Run.objects.update(gpu_seconds=3600, cost="2.5")
    replica = Replica.objects.create(
        service=service, revision=one, slot=1, cluster=cluster, run=cluster.current_run, state="serving",
        address="127.0.0.1:1", served_at=now,
    )  # fmt: skip
    said = {"route": 3, "inFlight": {str(replica.pk): 2}, "waiting": 1}
    for name, seen in (("a", timezone.now()), ("b", timezone.now()), ("dead", now - dt.timedelta(minutes=1))):
        Router.objects.create(name=name, seen_at=seen, services={str(service.pk): said})
    minute = now - dt.timedelta(minutes=2)
    counted(service, one, minute, 900, ms=10, errors=9)
    counted(service, one, minute, 100, ms=100, router="two")
    counted(service, one, minute, 50, ms=20, mirrored=True)
    counted(service, one, now - dt.timedelta(hours=3), 1000, ms=10)

    status = bob_api.get(DIGITS)[1]["status"]
    assert (status["serving"], status["replicas"], status["inFlight"], status["waiting"], status["routers"]) == (
        1,
        1,
        4,
        2,
        2,
    )
    assert (status["requests"], status["errors"]) == (1000, 9)
    [answering] = status["eachReplica"]
    assert (answering["cluster"], answering["run"], answering["inFlight"], answering["state"]) == (
        "digits-1",
        1,
        4,
        "serving",
    )
    [revision] = status["revisions"]
    assert (revision["gpuSeconds"], revision["cost"]["amount"], revision["requests"]) == (3600, "2.500000", 2000)
    assert revision["pricePerThousand"]["amount"] == "1.250000"
    assert (status["gpuSeconds"], status["cost"]["amount"]) == (3600, "2.500000")

    stats = bob_api.get(f"{DIGITS}/stats")[1]
    assert [(each["requests"], each["mirrored"]) for each in stats["minutes"]] == [(1000, False), (50, True)]
    real = stats["minutes"][0]
    assert real["p50Ms"] == pytest.approx(10, rel=0.35)
    assert real["p99Ms"] == pytest.approx(100, rel=0.35)
    assert real["errors"] == 9
    start = f"{now - dt.timedelta(hours=4):%Y-%m-%dT%H:%MZ}"
    longer = bob_api.get(f"{DIGITS}/stats?since={start}")[1]
    assert [each["requests"] for each in longer["sums"]] == [2000, 50]
    assert len(longer["minutes"]) == 3
    for query in ("since=2020-01-01", "since=2020-01-01T00:00Z", "until=2020-01-01T00:00Z&since=2021-01-01T00:00Z"):
        assert set(wrong(bob_api.get(f"{DIGITS}/stats?{query}"))) == {"since"}
    assert set(wrong(bob_api.get(f"{DIGITS}/stats?until=0001-01-01T00:00Z"))) == {"until"}


def test_a_document_takes_as_many_queries_however_much_there_is(people, service, model, bob_api):
    def queries(path):
        with CaptureQueriesContext(connection) as found:
            assert bob_api.get(path)[0] == 200
        return len(found)

    queries(DIGITS)  # the first request notes that the token was used
    before = queries(DIGITS), queries(BASE)
    for slot in range(1, 6):
        revisions.begin_rollout(
            service,
            model.versions.get(number=2),
            kind="rolling",
            weight=1,
            minutes=1,
            by_hand=False,
            reason="",
            by=people.bob,
        )
        revision = service.revisions.first()
        Replica.objects.create(service=service, revision=revision, slot=slot)
        counted(service, revision, timezone.now(), 3, ms=5)
        bob_api.post(BASE, body(f"more-{slot}"))
        bob_api.post(f"{DIGITS}/tokens", {"name": f"t{slot}"})
    assert (queries(DIGITS), queries(BASE)) == before
    assert len(summary.shown(service).replicas) == 5
    assert Cluster.objects.count() == 0


def test_a_preview_says_what_it_would_take_and_writes_nothing(people, model, bob_api):
    from clusters.clouds.models import CloudState

    node = {
        "name": "n1", "gpu_model": "Tesla-X", "gpus": 1, "gpus_free": 1, "cpu_milli": 8000, "memory_mb": 8000,
        "cpu_milli_free": 8000, "memory_mb_free": 8000,
    }  # fmt: skip
    CloudState.objects.update_or_create(name="local", defaults={"capacity": {"nodes": [node]}})
    status, said = bob_api.post(f"{BASE}/preview", body(flavor="one-gpu"))
    assert (status, said["fits"], said["gpus"], said["gpusFree"], said["seconds"]) == (200, "now", 1, 1, None)
    assert (said["model"], said["replicas"], said["choices"]) == ("digits/1", 1, [])
    assert not Service.objects.exists()
    bob_api.post(BASE, body(flavor="one-gpu"))
    service = Service.objects.get()
    started = timezone.now() - dt.timedelta(hours=1)
    replica = Replica.objects.create(
        service=service,
        revision=service.revisions.get(),
        slot=1,
        state="serving",
        served_at=started + dt.timedelta(seconds=40),
    )
    Replica.objects.filter(pk=replica.pk).update(created_at=started)
    CloudState.objects.update(capacity={"nodes": [node], "others": {"n1": [1, 0, 0]}})
    status, said = bob_api.post(f"{DIGITS}/preview", {"version": 2})
    assert (status, said["fits"], said["gpus"], said["gpusFree"], said["seconds"]) == (200, "waits", 1, 0, 40)
    assert said["message"].startswith("It needs 1 GPU beside what it has; 0 are free.")
    assert {each["whenFull"]: each["message"] for each in said["choices"]}["replace"] == (
        "The only replica ends first, and nobody answers for about 40 s."
    )
    assert [each["whenFull"] for each in said["choices"] if each["chosen"]] == ["wait"]
    assert set(wrong(bob_api.post(f"{DIGITS}/preview", {"version": 9}))) == {"version"}
    assert set(wrong(bob_api.post(f"{BASE}/preview", body(flavor="absent")))) == {"spec.flavor"}
    assert service.rollouts.count() == 1
