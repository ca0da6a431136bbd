"""`manage.py replay`: checks segments, ledger and sums against the raw observations, and repairs differences."""

import datetime as dt
import io
import json
import re
from dataclasses import replace
from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from billing.ledger import posting
from billing.metering import record as metering_record
from billing.metering import sightings
from billing.metering.segments import PodState
from billing.models import DailyUsage, LedgerEntry, MonthlyUsage, Observation, Price, Quarantined, UsageSegment
from portal.models import Appcode
from tests.billing.pods import T0, at, record


def pod(appcode: int, uid: str = "p-1", **facts: object) -> PodState:
    state = PodState(
        uid,
        "local",
        appcode,
        "run 1",
        {"cluster": "show1"},
        "Succeeded",
        1,
        "A100",
        1500,
        2048,
        at(0),
        at(1),
        at(3 * 3600),
    )
    return replace(state, **facts)


def replay(*words: str) -> str:
    out = io.StringIO()
    call_command("replay", *words, stdout=out)
    return out.getvalue()


def digest(text: str) -> str:
    return re.search(r"sha256 (\w+)", text)[1]


@pytest.fixture
def posted(ops):
    """Two pods in the ledger, one of them across the end of a month."""
    for sku, per_hour in (("gpu", "1.2"), ("cpu", "0.03"), ("memory", "0.004")):
        Price.objects.create(sku=sku, per_hour=Decimal(per_hour), valid_from=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    record(pod(ops.pk), pod(ops.pk, "p-2", finished_at=at(60)))
    posting.post()
    return ops


def test_a_ledger_that_is_right_is_proved(posted):
    told = replay("--verify")
    assert "2 segments, 9 lines of the ledger, 0 mended" in told
    assert digest(told) == digest(replay()) == digest(replay("--verify"))


def test_what_waits_for_its_posting_is_not_wrong(posted):
    before = replay("--verify")
    record(pod(posted.pk, "p-3", finished_at=at(60)))
    waiting = replay("--verify")
    posting.post()
    assert digest(waiting) == digest(replay("--verify")) != digest(before)


def tamper(statement: str) -> None:
    """Changes rows as a database superuser could."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement)
        cursor.execute("SET LOCAL session_replication_role = origin")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE billing_ledgerentry SET charge = charge + 0.0000000001 WHERE sku = 'cpu' AND uid = 'p-2'",
        "UPDATE billing_ledgerentry SET quantity = quantity + 1 WHERE sku = 'cpu' AND uid = 'p-2'",
        "UPDATE billing_ledgerentry SET business_line = 'x' WHERE uid = 'p-2'",
        "UPDATE billing_ledgerentry SET labels = '{}' WHERE uid = 'p-2'",
        "UPDATE billing_ledgerentry SET price_id = price_id + 1 WHERE uid = 'p-2'",
        "DELETE FROM billing_ledgerentry WHERE uid = 'p-2'",
        (
            "INSERT INTO billing_ledgerentry (kind, segment_id, uid, sku, since, until, quantity, price_id, per_hour, discount,"
            " charge, appcode_id, business_line, consumer, labels) SELECT kind, segment_id, uid, sku, since, until, quantity,"
            " price_id, per_hour, discount, charge, appcode_id, business_line, consumer, labels FROM billing_ledgerentry"
        ),
        "UPDATE billing_usagesegment SET ended = ended + interval '1 second'",
        "UPDATE billing_usagesegment SET appcode_id = (SELECT id FROM portal_appcode WHERE code = 'flight-demo')",
        "DELETE FROM billing_usagesegment WHERE uid = 'p-1'",
        "UPDATE billing_dailyusage SET gpu_seconds = gpu_seconds + 1 WHERE gpu_seconds > 0",
        "UPDATE billing_monthlyusage SET cpu_charge = cpu_charge - 1 WHERE cpu_charge > 0",
        "DELETE FROM billing_dailyusage",
        "UPDATE billing_monthlyusage SET key = gen_random_uuid()",
    ],
)
def test_any_change_behind_our_back_is_found_and_mended(posted, flight, statement):
    before = digest(replay("--verify"))
    charged = money()
    tamper(statement)
    with pytest.raises(CommandError, match="differ"):
        replay("--verify")
    replay()
    assert digest(replay("--verify")) == before
    assert replay("--verify").count("\n") == 1
    assert money() == charged


def money() -> dict[str, Decimal]:
    """Returns the net charge of each pod, and the totals of the sums."""
    found = {"days": Decimal(0), "months": Decimal(0)}
    for line in LedgerEntry.objects.all():
        found[line.uid] = found.get(line.uid, Decimal(0)) + line.charge
    for name, table in (("days", DailyUsage), ("months", MonthlyUsage)):
        for cell in table.objects.all():
            found[name] += cell.gpu_charge + cell.cpu_charge + cell.memory_charge + cell.storage_charge
    return found


def test_a_segment_that_nobody_saw_is_taken_back(posted):
    record(pod(posted.pk, "ghost"))
    posting.post()
    tamper("DELETE FROM billing_observation WHERE uid = 'ghost'")
    with pytest.raises(CommandError, match="1 segments"):
        replay("--verify")
    replay()
    assert not UsageSegment.objects.filter(uid="ghost").exists()
    assert money()["ghost"] == 0
    replay("--verify")


def test_a_segment_that_was_charged_cannot_be_deleted(posted):
    with pytest.raises(DatabaseError, match="has been charged"), transaction.atomic():
        UsageSegment.objects.filter(uid="p-1").delete()


def test_replay_needs_the_same_number_of_queries_for_any_portion(posted, django_assert_max_num_queries):
    record(*(pod(posted.pk, f"q-{n}") for n in range(100)))
    posting.post()
    with django_assert_max_num_queries(25):
        replay("--verify")


# Quarantine

BAD = [
    ({"uid": ""}, "no uid"),
    ({"uid": "x" * 81}, "longer than 80"),
    ({"uid": "a\0b"}, "cannot be stored"),
    ({"consumer": "\ud800"}, "cannot be stored"),
    ({"appcode_id": 10**12}, "no appcode"),
    ({"appcode_id": "7"}, "no number"),
    ({"gpus": -1}, "whole number"),
    ({"gpus": 2.5}, "whole number"),
    ({"gpus": True}, "whole number"),
    ({"memory_mb": 2**40}, "whole number"),
    ({"phase": "Exploded"}, "unknown"),
    ({"phase": None}, "no text"),
    ({"labels": {"a": {"b": 1}}}, "texts or whole numbers"),
    ({"labels": {"a": "\0"}}, "cannot be stored"),
    ({"labels": {"a": "x" * 5000}}, "longer than"),
    ({"labels": 7}, "no JSON object"),
    ({"scheduled_at": dt.datetime(2026, 1, 1)}, "with a zone"),  # noqa: DTZ001
    ({"finished_at": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)}, "before 2000"),
    ({"started_at": "yesterday"}, "with a zone"),
    ({"estimated": "no"}, "neither true nor false"),
]


@pytest.mark.parametrize(("facts", "reason"), BAD)
def test_what_cannot_be_understood_does_not_hold_up_the_rest(ops, facts, reason):
    record(pod(ops.pk), pod(ops.pk, **{"uid": "bad"} | facts), pod(ops.pk, "p-2"))
    assert set(UsageSegment.objects.values_list("uid", flat=True)) == {"p-1", "p-2"}
    kept = Quarantined.objects.get()
    assert reason in kept.reason
    record(pod(ops.pk, **{"uid": "bad"} | facts))
    assert Quarantined.objects.count() == 1
    replay()
    assert Quarantined.objects.get().resolved_at is None


def test_quarantine_ends_when_the_appcode_comes(ops, posted):
    later = ops.pk + 1000
    record(pod(later, "early"))
    seen = Quarantined.objects.get().seen_at
    replay()
    assert Quarantined.objects.get().resolved_at is None
    with transaction.atomic():
        Appcode.objects.create(pk=later, code="late-demo", org_node=ops.org_node, emails=["a@example.com"])
        Appcode.objects.get(pk=later).memberships.create(user=ops.memberships.first().user, role="owner")
    replay()
    assert Quarantined.objects.get().resolved_at is not None
    assert Observation.objects.get(uid="early").seen_at == seen
    assert UsageSegment.objects.get(uid="early").ended == at(3 * 3600)
    replay("--verify")


def test_any_raw_payload_can_be_kept(db):
    for raw in (b"\xff\xfe\0", "\0", "\ud800", "{", "[1]", json.dumps({"uid": 1})):
        metering_record.quarantine([metering_record.quarantined("a\0b", raw, "It is no pod.", T0)])
    assert Quarantined.objects.count() == 6
    replay()
    assert not Quarantined.objects.exclude(resolved_at=None).exists()


def test_quarantine_is_kept(ops):
    record(pod(ops.pk, ""))
    for change in ("UPDATE billing_quarantined SET raw = ''", "DELETE FROM billing_quarantined"):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(change)


def test_a_sighting_comes_back_from_paper_as_it_was(ops):
    state = pod(ops.pk, estimated=True, storage_mb=7)
    assert sightings.parse(sightings.raw(state)) == state
    assert sightings.raw(state) == sightings.raw(replace(state, seen_at=at(9)))
