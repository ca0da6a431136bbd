"""Bulk writes in one statement: every kind of value arrives unchanged, and nothing else changes."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal

import pytest

DAY = dt.datetime(2026, 7, 1, 12, 30, 15, 123456, tzinfo=dt.UTC)
FIELDS = ("phase", "message", "roles", "gone", "gpu_seconds", "cost", "claim_token", "deadline")
VALUES = [
    (
        "Running",
        'it\'s 100 %s \\ "ü"',
        {"worker": {"ready": 2}},
        True,
        2**40,
        Decimal("1.123456789"),
        uuid.uuid4(),
        DAY,
    ),
    ("Failed", "", {}, False, 0, Decimal(0), None, None),
    ("Stopped", "{%}", {"a": None}, True, -1, Decimal(-1), None, DAY),
]


@pytest.fixture
def runs(people):
    from clusters.runs.models import Cluster, Run
    from portal.models import Appcode, User

    owner, appcode = User.objects.first(), Appcode.objects.first()
    made = []
    for n in range(len(VALUES) + 1):
        cluster = Cluster.objects.create(appcode=appcode, name=f"rows-{n}", spec={}, created_by=owner)
        made.append(Run.objects.create(cluster=cluster, number=1, spec={}, resources={}, gpus=1, created_by=owner))
    return made


def stored(runs):
    from clusters.runs.models import Run

    return list(Run.objects.filter(pk__in=[run.pk for run in runs]).order_by("pk").values_list(*FIELDS))


def test_every_value_of_every_row_by_one_statement(runs, django_assert_num_queries):
    from portal.db.bulk_update import update_rows

    *changed, other = runs
    before = stored([other])
    for run, values in zip(changed, VALUES, strict=True):
        run.reason = "not named, so not written"
        for name, value in zip(FIELDS, values, strict=True):
            setattr(run, name, value)
    with django_assert_num_queries(1):
        update_rows(changed, FIELDS)
    assert stored(changed) == VALUES
    assert stored([other]) == before
    assert type(other).objects.filter(reason="").count() == len(runs)


def test_a_foreign_key_is_written_by_its_column(runs):
    from portal.db.bulk_update import update_rows
    from portal.models import User

    other = User.objects.create_user("somebody-else", "else@example.com")
    runs[0].created_by = other
    update_rows(runs[:1], ["created_by"])
    runs[0].refresh_from_db()
    assert runs[0].created_by == other


def test_no_rows_are_no_query(db, django_assert_num_queries):
    from portal.db.bulk_update import update_rows

    with django_assert_num_queries(0):
        update_rows([], FIELDS)


def test_what_the_database_refuses_changes_nothing(runs):
    from django.db import DataError, transaction

    from portal.db.bulk_update import update_rows

    before = stored(runs)
    runs[0].message, runs[1].phase = "fits", "x" * 11
    with pytest.raises(DataError), transaction.atomic():
        update_rows(runs[:2], ["phase", "message"])
    assert stored(runs) == before
