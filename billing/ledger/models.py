"""The ledger, what is still to be posted to it, and its sums by day and month. Money here is exact, in `money.UNIT`s."""

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
# The columns of the rollups; an appcode is known by its number.
COLUMNS: dict[Group, str] = {
    "line": "business_line",
    "appcode": "appcode_id",
    "user": "user",
    "model": "gpu_model",
    "framework": "framework",
    "cluster": "cluster",
}


class Due(models.Model):
    """A segment that has to be looked at for posting from `due_at` on: triggers put it here whenever it changes or its terms
    do, posting takes it away. `posted` is false for one that has no lines in the ledger yet; `appcode_id` is the segment's, so
    that several can post side by side, each for its own appcodes.
    """

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
    """One line of the ledger: append-only (a trigger refuses UPDATE and DELETE); a correction is a reversal and a new line.

    `quantity` is in unit-seconds of what the SKU counts (GPUs, thousandths of a core, MiB). `charge` is exact money in
    `money.UNIT`s (1/460,800,000 of the currency); add charges up, then let `money.money` make an amount of the sum. A
    reversal has the values of the line that it names with the opposite sign. Lines of one segment, SKU and time that were not
    reversed never overlap; [since, until) lies in one month, the one in which it was used, whenever it was posted.
    """

    class Kind(models.TextChoices):
        USAGE = "usage"
        REVERSAL = "reversal"
        CREDIT = "credit"

    kind = models.CharField(max_length=8, choices=Kind.choices)
    uid = models.CharField(max_length=80, blank=True)
    # References of a line are checked where they are rare (a trigger on reversals and credits): the constraints of the database
    # would cost a line more than itself. Indexes hold only what is not null.
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
    # Numbers of prices, not references: a price of the future that was taken back leaves no trace, and none that was charged
    # can be.
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
            # An invoice takes the lines of its appcode up to a number.
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
        """The month in which it was used."""
        return self.since.date().replace(day=1)

    @property
    def entry(self) -> Entry:
        names = ("uid", "sku", "since", "until", "quantity", "price_id", "per_hour", "discount", "charge")
        facts = {name: getattr(self, name) for name in names}
        who = {name: getattr(self, name) for name in ("appcode_id", "business_line", "consumer", "labels")}
        return Entry(**facts, **who)


class Rollup(models.Model):
    """The ledger added up by time and by the labels that dashboards ask for, kept in the statement that posts.

    Sums of every kind of entry, reversals included, by the time of use; charges are exact, as in the ledger. `key` is a hash of
    what is grouped by, which keeps the unique index small.
    """

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
    """By month (UTC), whose first day `month` is."""

    month = models.DateField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["month", "key"], name="monthly_once")]
