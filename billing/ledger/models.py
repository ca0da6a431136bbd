"""The ledger, its posting queue, and its sums by day and month. Money is exact, in `money.UNIT`s."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import ClassVar, Literal, get_args

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.ledger.entries import Entry
from billing.metering.models import UsageSegment
from billing.money import money
from portal.models import Appcode

Group = Literal["line", "appcode", "user", "model", "framework", "cluster"]
GROUPS: tuple[Group, ...] = get_args(Group)
# Columns of the rollups. Appcodes are identified by id.
COLUMNS: dict[Group, str] = {
    "line": "business_line",
    "appcode": "appcode_id",
    "user": "user",
    "model": "gpu_model",
    "framework": "framework",
    "cluster": "cluster",
}


class Due(models.Model):
    """A segment to be posted at `due_at`. Triggers add it whenever the segment or its terms change; posting removes it.
    `posted` is false if the segment has no ledger lines yet. `appcode_id` is the segment's; it lets shards post in
    parallel, each for its own appcodes."""

    segment = models.OneToOneField(
        UsageSegment, on_delete=models.CASCADE, primary_key=True, db_constraint=False, related_name="due"
    )
    due_at = models.DateTimeField(db_index=True)
    appcode_id = models.BigIntegerField()
    posted = models.BooleanField()

    class Meta:
        verbose_name_plural = "due"

    def __str__(self) -> str:
        return f"{self.segment_id} at {self.due_at:%F %T}"


class LedgerEntry(models.Model):
    """One ledger line. Append-only (a trigger refuses UPDATE and DELETE): a correction is a reversal and a new line.

    `quantity` is in unit-seconds of the SKU (GPUs, thousandths of a core, MiB). `charge` is exact, in `money.UNIT`s
    (1/460,800,000 of the currency): add charges up, then convert the sum with `money.money`. A reversal has the values
    of the line it names with the opposite sign. Unreversed lines of one segment and SKU never overlap. [since, until)
    lies within the month of use, whenever it was posted.
    """

    class Kind(models.TextChoices):
        USAGE = "usage"
        REVERSAL = "reversal"
        CREDIT = "credit"

    kind = models.CharField(max_length=8, choices=Kind.choices)
    uid = models.CharField(max_length=80, blank=True)
    # Foreign-key constraints would cost more than inserting the line itself. Triggers check references only on
    # reversals and credits, which are rare. The indexes skip nulls.
    segment = models.ForeignKey(
        UsageSegment,
        on_delete=models.DO_NOTHING,
        null=True,
        db_constraint=False,
        db_index=False,
        related_name="entries",
    )
    reverses = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, db_constraint=False, db_index=False, related_name="reversals"
    )
    credit = models.ForeignKey(
        "billing.Credit",
        on_delete=models.PROTECT,
        null=True,
        db_constraint=False,
        db_index=False,
        related_name="entries",
    )
    sku = models.CharField(max_length=70)
    since = models.DateTimeField()
    until = models.DateTimeField()
    quantity = models.BigIntegerField()
    # Ids of prices, not foreign keys: a withdrawn future price leaves no trace, and a price that was charged cannot be
    # withdrawn.
    price_id = models.BigIntegerField(null=True)
    per_hour = models.DecimalField(max_digits=14, decimal_places=6)
    discount = models.DecimalField(max_digits=5, decimal_places=2)
    charge = models.DecimalField(max_digits=50, decimal_places=10)
    appcode = models.ForeignKey(
        Appcode, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    business_line = models.CharField(max_length=200, blank=True)
    consumer = models.CharField(max_length=40, blank=True)
    labels = models.JSONField()
    posted_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering: ClassVar = ["id"]
        verbose_name_plural = "ledger entries"
        indexes: ClassVar = [
            models.Index(fields=["segment"], name="ledger_segment", condition=Q(segment__isnull=False)),
            # An invoice reads its appcode's lines up to an id.
            models.Index(fields=["appcode", "id"], name="ledger_appcode"),
            models.Index(fields=["credit"], name="ledger_credits", condition=Q(credit__isnull=False)),
            models.Index(fields=["posted_at"], name="ledger_reversals", condition=Q(reverses__isnull=False)),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["reverses"], name="ledger_reversed_once", condition=Q(reverses__isnull=False)
            ),
            models.CheckConstraint(
                condition=Q(kind="usage", segment__isnull=False, reverses=None, credit=None)
                | Q(kind="reversal", segment__isnull=False, reverses__isnull=False, credit=None)
                | Q(kind="credit", reverses=None, credit__isnull=False),
                name="ledger_kind",
            ),
            models.CheckConstraint(condition=Q(since__lt=F("until")) | Q(kind="credit"), name="ledger_forward"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.uid} {self.sku} {self.since:%F %T} – {self.until:%F %T}"

    @property
    def amount(self) -> Decimal:
        return money(self.charge)

    @property
    def month(self) -> dt.date:
        return self.since.date().replace(day=1)

    @property
    def entry(self) -> Entry:
        names = ("uid", "sku", "since", "until", "quantity", "price_id", "per_hour", "discount", "charge")
        facts = {name: getattr(self, name) for name in names}
        who = {name: getattr(self, name) for name in ("appcode_id", "business_line", "consumer", "labels")}
        return Entry(**facts, **who)


class Rollup(models.Model):
    """Ledger sums by time and by the labels of dashboards, kept by the statement that posts. They include every usage line and
    reversal, by time of use; charges are exact. `key` is a hash of the grouping columns, which keeps the unique index small."""

    key = models.UUIDField()
    appcode = models.ForeignKey(
        Appcode, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    business_line = models.CharField(max_length=200)
    cluster = models.CharField(max_length=200)
    user = models.CharField(max_length=200)
    framework = models.CharField(max_length=200)
    gpu_model = models.CharField(max_length=60)
    gpu_seconds = models.BigIntegerField()
    cpu_milli_seconds = models.BigIntegerField()
    memory_mb_seconds = models.BigIntegerField()
    storage_mb_seconds = models.BigIntegerField()
    gpu_charge = models.DecimalField(max_digits=50, decimal_places=10)
    cpu_charge = models.DecimalField(max_digits=50, decimal_places=10)
    memory_charge = models.DecimalField(max_digits=50, decimal_places=10)
    storage_charge = models.DecimalField(max_digits=50, decimal_places=10)

    class Meta:
        abstract = True


class DailyUsage(Rollup):
    """By day (UTC)."""

    day = models.DateField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["day", "key"], name="daily_once")]


class MonthlyUsage(Rollup):
    """By month (UTC); `month` is its first day."""

    month = models.DateField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["month", "key"], name="monthly_once")]
