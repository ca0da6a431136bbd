"""Generated example data: made by the real path, the same for the same day, removed without a trace, and nothing real with it."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from billing import history, periods
from billing.accounts.actions import give_credit
from billing.efficiency import waste
from billing.invoices import closing, credit_notes
from billing.ledger import posting
from billing.metering import record
from billing.metering.segments import PodState
from billing.models import (
    CapacityRecord,
    Closing,
    DailyUsage,
    Discount,
    GeneratedAppcode,
    GpuCounter,
    Invoice,
    LedgerEntry,
    MeasuredDay,
    MeasuredHour,
    MonthlySpending,
    MonthlyUsage,
    Observation,
    Outcome,
    Ownership,
    Price,
    UsageSegment,
    Waste,
)
from billing.prices import actions, terms
from billing.prices.actions import Scope
from billing.sums import metrics
from portal.actions import appcodes
from portal.errors import Conflict
from portal.models import Appcode, Delivery, Event, OrgNode, Webhook

pytestmark = pytest.mark.django_db

NOW = dt.datetime(2026, 11, 21, 9, 30, tzinfo=dt.UTC)


def counts() -> dict[str, int]:
    models = (
        Appcode, CapacityRecord, DailyUsage, GeneratedAppcode, LedgerEntry, MeasuredDay, MeasuredHour, MonthlySpending,
        MonthlyUsage, Observation, OrgNode, Outcome, Price, UsageSegment, Waste,
    )  # fmt: skip
    return {model.__name__: model._default_manager.count() for model in models}


def test_the_same_day_gives_the_same_history():
    assert history.plan(NOW) == history.plan(NOW + dt.timedelta(minutes=20))
    assert history.plan(NOW) != history.plan(NOW + dt.timedelta(days=1))


def test_nothing_of_it_lies_outside_its_time_and_never_more_is_held_than_there_is():
    jobs = history.plan(NOW)
    assert len(jobs) > 300
    changes: dict[str, list[tuple[dt.datetime, int]]] = {model: [] for model in history.POOL}
    for job in jobs:
        for pod in job.pods:
            assert history.begins(NOW) <= pod.reserved < pod.started < pod.ended <= history.ends(NOW)
            changes[job.model] += [(pod.reserved, pod.gpus), (pod.ended, -pod.gpus)]
    for model, moments in changes.items():
        held = 0
        for at, change in sorted(moments):
            held += change
            assert held <= history.POOL[model][at >= history.begins(NOW) + history.MORE_AFTER * dt.timedelta(days=1)]


def test_made_by_the_real_path_and_quickly(people):
    began = time.perf_counter()
    made = history.make(timezone.now(), owner=people.alice)
    print(f"{time.perf_counter() - began:.1f} s for {made} runs, {counts()}")
    assert counts()["Observation"] > 2 * counts()["UsageSegment"] - 5
    assert not UsageSegment.objects.filter(ended=None).exists()
    assert LedgerEntry.objects.filter(kind="reversal").exists()
    assert set(Waste.objects.values_list("kind", flat=True)) == {"failed", "outlived", "reserved"}
    assert posting.wrong_sums() == {"billing_dailyusage": [], "billing_monthlyusage": []}
    assert all(
        code.startswith("example-")
        for code in Appcode.objects.filter(pk__in=history.codes()).values_list("code", flat=True)
    )
    assert set(LedgerEntry.objects.filter(sku__startswith="gpu", per_hour=0)) == set()
    with pytest.raises(Conflict, match="already"):
        history.make(timezone.now(), owner=people.alice)


def test_removed_without_a_trace_and_nothing_real_with_it(people):
    real = _use(people.ops, timezone.now() - dt.timedelta(days=3))
    posting.post()
    before, spent = counts(), list(DailyUsage.objects.values_list("gpu_seconds", "gpu_charge"))
    history.make(timezone.now(), owner=people.alice)
    assert history.remove(acting_user=people.root) == len(history.TEAMS)
    assert counts() == before
    assert list(DailyUsage.objects.values_list("gpu_seconds", "gpu_charge")) == spent
    assert UsageSegment.objects.get().uid == real.uid
    assert posting.wrong_sums() == {"billing_dailyusage": [], "billing_monthlyusage": []}
    assert history.remove(acting_user=people.root) == 0
    assert history.make(timezone.now(), owner=people.alice)


def everything() -> dict[str, int]:
    """Rows of every table but the log of what happened, which is never rewritten."""
    log = {Event, Delivery}
    return {model._meta.label: model._base_manager.count() for model in apps.get_models() if model not in log}


def test_what_people_gave_to_an_example_goes_with_it(people):
    waste.look()
    before = everything()
    history.make(timezone.now(), owner=people.alice)
    example, root = Appcode.objects.get(code="example-ads"), people.root
    line = history.LINES[0][0]
    for scope in (Scope(example), Scope(None, line)):
        terms.add_discount("*", Decimal(10), None, None, "tried", acting_user=root, scope=scope)
        actions.add_price("gpu", Decimal(3), None, acting_user=root, scope=scope)
    give_credit(example, Decimal(10), "tried", None, None, acting_user=root)
    Webhook.objects.create(
        appcode=example, name="tried", url="https://example.com", host="example.com", kinds=["*"], secret="x"
    )
    closing.close_due(timezone.now() + dt.timedelta(days=40))
    credit_notes.issue(Invoice.objects.filter(appcode=example).first(), Decimal(1), "tried", acting_user=root)
    assert Closing.objects.exclude(closed_at=None).count() >= 2
    assert list(metrics.metrics())
    assert GpuCounter.objects.exists()
    assert history.remove(acting_user=root) == len(history.TEAMS)
    assert everything() == before
    assert history.make(timezone.now(), owner=people.alice)


def test_months_in_which_something_real_was_used_stay_closed(people):
    now = timezone.now()
    first = periods.month(now).since.date()
    used = periods.month(now - dt.timedelta(days=first.day + 35)).since
    _use(people.ops, used + dt.timedelta(days=3))
    history.make(now, owner=people.alice)
    closing.close_due(now + dt.timedelta(days=40))
    months = list(Closing.objects.values_list("month", "mark"))
    history.remove(acting_user=people.root)
    kept = Closing.objects.values_list("month", "mark")
    assert list(kept) == [(month, mark) for month, mark in months if month >= used.date()] != []
    assert [closing.problems(invoice) for invoice in Invoice.objects.all()] == [[]]
    # Nobody but the removal of an example takes a closing back.
    with pytest.raises(IntegrityError, match="has begun"), transaction.atomic():
        Closing.objects.all().delete()


def test_terms_of_a_business_line_of_the_example_that_something_real_belonged_to_stay(people):
    history.make(timezone.now(), owner=people.alice)
    line = history.LINES[0][0]
    actions.add_price("gpu", Decimal(3), None, acting_user=people.root, scope=Scope(None, line))
    terms.add_discount("*", Decimal(10), None, None, "tried", acting_user=people.root, scope=Scope(None, line))
    home, people.ops.org_node = people.ops.org_node, OrgNode.objects.get(path=line)
    people.ops.save()
    with pytest.raises(Conflict, match="ops-demo"), transaction.atomic():
        history.remove(acting_user=people.root)
    people.ops.org_node = home
    people.ops.save()
    now = timezone.now().replace(microsecond=0)
    for days, owner in ((9, line), (5, home.path)):
        Ownership.objects.create(appcode=people.ops, business_line=owner, valid_from=now - dt.timedelta(days=days))
    assert history.remove(acting_user=people.root)
    assert Price.objects.filter(business_line=line).exists()
    assert Discount.objects.filter(business_line=line).exists()


def test_an_example_stays_disabled(people, client):
    history.make(timezone.now(), owner=people.alice)
    example = Appcode.objects.get(code="example-ads")
    with pytest.raises(Conflict, match="generated example and stays disabled"):
        appcodes.approve_appcode(example, acting_user=people.root)
    client.force_login(people.root)
    page = client.post("/appcodes/example-ads/approve", follow=True).content.decode()
    assert "stays disabled; request an appcode of your own" in page
    example.refresh_from_db()
    assert example.state == Appcode.State.DISABLED


def test_what_is_real_is_never_declared_generated(people):
    _use(people.ops, timezone.now() - dt.timedelta(days=3))
    with pytest.raises(IntegrityError, match="has been used"), transaction.atomic():
        GeneratedAppcode.objects.create(appcode=people.ops)


def test_generated_rows_are_append_only_until_their_removal(people):
    history.make(timezone.now(), owner=people.alice)
    for model in (Observation, LedgerEntry, CapacityRecord):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            model.objects.all().delete() if model is not LedgerEntry else _raw_delete("billing_ledgerentry")
    with pytest.raises(IntegrityError, match="charged"), transaction.atomic():
        Price.objects.filter(appcode__in=history.codes()).delete()


def test_what_a_real_cloud_told_stays_even_in_an_appcode_of_the_example(people):
    history.make(timezone.now(), owner=people.alice)
    before = counts()
    _use(Appcode.objects.get(code="example-ads"), timezone.now() - dt.timedelta(hours=3))
    with pytest.raises(Conflict, match="real"):
        history.remove(acting_user=people.root)
    assert counts()["Observation"] == before["Observation"] + 1
    GeneratedAppcode.objects.update(removing=True)
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        _raw_delete("billing_observation")


def _use(appcode: Appcode, begin: dt.datetime) -> PodState:
    state = PodState(
        f"real-{appcode.code}", "local", appcode.pk, "run 1", {"cluster": "show1", "run": "1", "role": "worker", "index": "0"},
        "Succeeded", gpus=1, started_at=begin, finished_at=begin + dt.timedelta(hours=1),
    )  # fmt: skip
    with transaction.atomic():
        record.record([state])
    return state


def _raw_delete(table: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table}")


def test_the_commands(people):
    from io import StringIO

    from django.core.management import CommandError, call_command

    with pytest.raises(CommandError, match="nobody"):
        call_command("make_demo_history", owner="nobody")
    out = StringIO()
    call_command("make_demo_history", owner="bob", stdout=out)
    assert set(Appcode.objects.filter(pk__in=history.codes()).values_list("members__username", flat=True)) == {"bob"}
    with pytest.raises(CommandError, match="already"):
        call_command("make_demo_history")
    call_command("remove_demo_history", stdout=out)
    assert not history.is_there()
    call_command("remove_demo_history", stdout=out)
    assert "is gone" in out.getvalue()
    assert "There is no generated example data" in out.getvalue()


def test_invoices_of_the_example_go_with_it(people):
    from billing.invoices import closing
    from billing.models import Credit, Invoice, Mail

    history.make(timezone.now(), owner=people.alice)
    _use(people.ops, timezone.now() - dt.timedelta(days=45))
    example = Appcode.objects.get(code="example-asr")
    Credit.objects.create(
        appcode=example,
        amount=Decimal(50),
        reason="A gift",
        valid_from=timezone.now() - dt.timedelta(days=60),
        created_by="root",
    )
    closing.close_due(timezone.now() + dt.timedelta(days=40))
    assert Invoice.objects.filter(appcode=example).exists()
    real = set(Invoice.objects.filter(appcode=people.ops).values_list("number", flat=True))
    history.remove(acting_user=people.root)
    assert set(Invoice.objects.values_list("number", flat=True)) == real
    assert not Mail.objects.exclude(appcode=people.ops).exists()
