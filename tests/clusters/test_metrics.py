"""/metrics: the same in every process, counters that never decrease, and nothing for unauthorized readers."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import pytest
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from billing.ledger import posting
from billing.metering import record
from billing.metering.segments import PodState
from billing.models import LedgerEntry, Price, Quarantined, UsageSegment
from billing.sums import metrics
from clusters.clouds.models import CloudState
from clusters.runs.models import Cluster, Run
from portal.actions import tokens

TOKEN = "scrape-me-0123456789"


@pytest.fixture
def scraper(settings):
    settings.METRICS_TOKEN = TOKEN
    return Client(headers={"authorization": f"Bearer {TOKEN}", "host": "10.0.0.17:8000"})


def read(client: Client) -> dict[str, dict[tuple[str, ...], float]]:
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.content
    families = list(parse(answer.content.decode()))
    return {
        sample.name: {
            tuple(each.labels.values()): each.value for each in family.samples if each.name == sample.name
        }
        for family in families
        for sample in family.samples
    }  # fmt: skip


def seen(appcode: int, uid: str, since: dt.datetime, until: dt.datetime | None = None, **held: object) -> None:
    labels = {"cluster": "show1", "run": "1", "role": "worker", "index": "0", "framework": "tensorflow", "user": "bob"}
    facts = {"gpus": 2, "gpu_model": "A100", "phase": "Running" if until is None else "Succeeded"} | held
    with transaction.atomic():
        record.record(
            [PodState(uid, "local", appcode, "run 1", labels, scheduled_at=since, started_at=since, finished_at=until, **facts)]
        )  # fmt: skip


def gpu_seconds(now: dt.datetime) -> dict[tuple[str, ...], float]:
    return {tuple(each.labels.values()): each.value for each in metrics.gpu_seconds(now).samples}


def test_gpu_seconds_are_those_of_segments_and_never_go_down(people):
    t0 = timezone.now().replace(microsecond=0) - dt.timedelta(days=40)
    at = lambda seconds: t0 + dt.timedelta(seconds=seconds)  # noqa: E731
    ops = ("ops-demo", "qunarcorp.ops", "A100")
    Price.objects.create(sku="gpu", per_hour=Decimal(1), valid_from=at(-9))
    seen(people.ops.pk, "p-1", at(0))
    assert gpu_seconds(at(10)) == {ops: 20}
    # The segment's end is reported late.
    seen(people.ops.pk, "p-1", at(0), at(8))
    assert gpu_seconds(at(11)) == {ops: 20}
    seen(people.ops.pk, "p-2", at(10))
    assert gpu_seconds(at(12)) == {ops: 2 * 8 + 2 * 2}
    posting.post(at(13))
    assert gpu_seconds(at(13)) == {ops: 2 * 8 + 2 * 3}
    assert LedgerEntry.objects.filter(uid="p-1").exists()
    seen(people.flight.pk, "p-3", at(20), at(25), gpu_model="", gpus=1)
    seen(people.flight.pk, "p-4", at(20), at(25), gpus=0, cpu_milli=5)
    posting.post(at(30))
    flight = ("flight-demo", "qunarcorp.flight", "")
    assert gpu_seconds(at(30)) == {ops: 2 * 8 + 2 * 20, flight: 5}
    # After the last posting, the counter equals the sum of all segments.
    seen(people.ops.pk, "p-2", at(10), at(31))
    seen(people.ops.pk, "p-3b", at(31), at(32), gpus=1)
    posting.post(at(40))
    whole = {
        pk: sum(row.gpus * row.segment.seconds(at(40)) for row in UsageSegment.objects.filter(appcode=pk))
        for pk in (people.ops.pk, people.flight.pk)
    }
    assert gpu_seconds(at(40)) == {ops: whole[people.ops.pk], flight: whole[people.flight.pk]}


def test_a_series_that_did_not_grow_is_not_written(people):
    now = timezone.now()
    seen(people.ops.pk, "p-1", now - dt.timedelta(seconds=60), now - dt.timedelta(seconds=50))
    seen(people.flight.pk, "p-2", now - dt.timedelta(seconds=60))

    def versions() -> dict[str, str]:
        with connection.cursor() as cursor:
            # The row's location and last locker: neither changes without a write.
            cursor.execute("SELECT code, ctid::text || ' ' || xmax FROM billing_gpucounter")
            return dict(cursor.fetchall())

    first, before = gpu_seconds(now), versions()
    assert gpu_seconds(now + dt.timedelta(seconds=5)) != first
    after = versions()
    assert after["ops-demo"] == before["ops-demo"]
    assert after["flight-demo"] != before["flight-demo"]


def test_many_appcodes_share_a_series(people, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_APPCODES", 1)
    now = timezone.now()
    for appcode in (people.ops, people.flight):
        seen(appcode.pk, f"p-{appcode}", now - dt.timedelta(seconds=60), now - dt.timedelta(seconds=50))
    first, other = sorted(gpu_seconds(now), key=lambda labels: labels[0] == metrics.OTHERS)
    assert first[0] == "ops-demo"
    assert other[0] == metrics.OTHERS


def test_everything_is_told_in_the_form_that_promtool_wants(people, scraper):
    now = timezone.now()
    seen(people.ops.pk, "p-1", now - dt.timedelta(hours=1), now - dt.timedelta(minutes=1))
    posting.post(now)
    Quarantined.objects.create(digest="1" * 64, raw="?", reason="nobody knows", seen_at=now)
    nodes = [
        {
            "name": "n1",
            "gpu_model": "A100",
            "gpus": 8,
            "gpus_free": 5,
            "cpu_milli": 1,
            "memory_mb": 1,
            "simulated": True,
        },
        {
            "name": "n2",
            "gpu_model": "A100",
            "gpus": 8,
            "gpus_free": 8,
            "cpu_milli": 1,
            "memory_mb": 1,
            "simulated": True,
        },
        {"name": "n3", "gpu_model": "", "gpus": 0, "gpus_free": 0, "cpu_milli": 1, "memory_mb": 1},
    ]
    CloudState.objects.create(
        name="main", heard_at=now - dt.timedelta(seconds=70), trouble="timeout", capacity={"nodes": nodes}
    )
    found = read(scraper)
    assert found["portal_gpu_seconds_total"] == {("ops-demo", "qunarcorp.ops", "A100"): 2 * 3540}
    assert found["portal_gpus_available"] == {("main", "A100", "true"): 16}
    assert found["portal_gpus_held"] == {("main", "A100", "true"): 3}
    assert 70 <= found["portal_watch_age_seconds"][("main",)] < 100
    assert found["portal_watch_up"] == {("main",): 0}
    assert 0 <= found["portal_posting_age_seconds"][()] < 60
    assert found["portal_quarantined_sightings"] == {(): 1}
    assert found["portal_mails"] == {("waiting",): 0, ("given-up",): 0}
    text = scraper.get("/metrics").content.decode()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        # The rules of `promtool check metrics`: snake case, base units, _total on counters alone, and a help text.
        assert re.fullmatch(r"portal(_[a-z]+)+", name)
        assert (kind == "counter") == name.endswith("_total")
        assert not re.search(r"_(milliseconds?|minutes?|hours?|percent|count|sum|bucket|info)(_|$)", name)
        assert re.search(rf"^# HELP {name} \w.*\.$", text, re.MULTILINE)
    answer = scraper.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer["Content-Type"].startswith("application/openmetrics-text")
    assert {family.name for family in parse_open(answer.content.decode())} >= {"portal_gpu_seconds", "portal_runs"}


def test_runs_wait_by_phase_and_cause(people, scraper):
    for n, (phase, reason) in enumerate(
        [("Queued", "NoFreeGPUs"), ("Running", ""), ("Running", ""), ("Failed", "Error")]
    ):
        cluster = Cluster.objects.create(appcode=people.ops, name=f"show{n}", spec={})
        Run.objects.create(cluster=cluster, number=1, spec={}, resources={}, gpus=1, phase=phase, reason=reason)
    assert read(scraper)["portal_runs"] == {("NoFreeGPUs", "Queued"): 1, ("", "Running"): 2}


def test_gpus_are_held_unused_until_their_run_is_whole_or_gone(people, scraper):
    at = timezone.now()
    for n, facts in enumerate(
        [{}, {"placed_at": at}, {"placed_at": at}, {"placed_at": at, "whole_at": at}, {"placed_at": at, "gone": True}]
    ):
        cluster = Cluster.objects.create(appcode=people.ops, name=f"show{n}", spec={})
        Run.objects.create(cluster=cluster, number=1, spec={}, resources={}, cloud="main", gpus=10**n, **facts)
    assert read(scraper)["portal_gpus_held_unused"] == {("main",): 110}


def test_it_takes_the_same_queries_for_any_number(people, scraper, django_assert_num_queries):
    def scrape() -> None:
        # Two each for billing and webhooks, five for clusters; the rest begins and ends the transaction and limits its time.
        with django_assert_num_queries(11):
            scraper.get("/metrics")

    scrape()
    now = timezone.now()
    for n in range(20):
        seen(people.ops.pk, f"p-{n}", now - dt.timedelta(hours=1), gpu_model=f"M{n}")
    scrape()


def test_who_may_look(people, settings):
    settings.METRICS_TOKEN = ""
    for headers in ({}, {"authorization": "Bearer "}, {"authorization": f"Bearer {TOKEN}"}):
        assert Client(headers=headers).get("/metrics").status_code == 401
    for name, status in (("alice", 404), ("mallory", 404), ("root", 200)):
        client = Client()
        client.force_login(getattr(people, name))
        assert client.get("/metrics").status_code == status
        _, token = tokens.make_token("scrape", 10, acting_user=getattr(people, name))
        assert Client(headers={"authorization": f"Bearer {token}"}).get("/metrics").status_code == status
    settings.METRICS_TOKEN = TOKEN
    assert Client(headers={"authorization": "Bearer scrape-me"}).get("/metrics").status_code == 401
    wrong = Client(headers={"authorization": f"Bearer {TOKEN}"})
    assert wrong.post("/metrics").status_code in (401, 405)
