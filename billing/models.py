"""Usage and prices. Observations are what was seen and are never changed; segments and the ledger are derived from them.

Rules that the tables keep by themselves are in migrations 0002 and 0004: what is append-only, when a segment is due to be
posted, and who owned an appcode when. Billing knows appcodes and nothing of clusters: what used a GPU is described by copied
labels and by `consumer`, an opaque key chosen by the caller ("run 17"), so that names survive the deletion of what they name.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.budgets.models import Budget as Budget
from billing.budgets.models import BudgetStep as BudgetStep
from billing.dashboards.models import CapacityRecord as CapacityRecord
from billing.dashboards.models import GeneratedAppcode as GeneratedAppcode
from billing.dashboards.models import GpuCounter as GpuCounter
from billing.dashboards.models import GpuTotal as GpuTotal
from billing.dashboards.models import MonthlySpending as MonthlySpending
from billing.dashboards.models import Outcome as Outcome
from billing.dashboards.models import Waste as Waste
from billing.dashboards.models import Watermark as Watermark
from billing.efficiency.models import MeasuredDay as MeasuredDay
from billing.efficiency.models import MeasuredHour as MeasuredHour
from billing.efficiency.models import Measuring as Measuring
from billing.invoices.models import Closing as Closing
from billing.invoices.models import CreditNote as CreditNote
from billing.invoices.models import Invoice as Invoice
from billing.invoices.models import InvoiceCredit as InvoiceCredit
from billing.invoices.models import InvoiceLine as InvoiceLine
from billing.invoices.models import Mail as Mail
from billing.ledger.entries import Entry
from billing.metering.segments import PodState, Resources, Segment
from billing.prices.rates import DatedDiscount, DatedPrice, Owner, family, money
from portal.models import Appcode


class Observation(models.Model):
    """One seen state of one pod: append-only (a trigger refuses UPDATE and DELETE).

    Keyed by pod uid; `digest` makes a repeated sighting of the same state a no-op, and `seen_at` is its first one.
    Times are what the cloud said, in UTC.
    """

    uid = models.CharField(max_length=80)
    digest = models.CharField(max_length=64)
    seen_at = models.DateTimeField()
    cloud = models.CharField(max_length=40)
    # Checked once for a batch instead of by a constraint for each row; segments have the constraint.
    appcode = models.ForeignKey(
        Appcode, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    consumer = models.CharField(max_length=40)
    labels = models.JSONField()
    phase = models.CharField(max_length=12)
    gpus = models.PositiveIntegerField()
    gpu_model = models.CharField(max_length=60, blank=True)
    cpu_milli = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    storage_mb = models.PositiveIntegerField(default=0, db_default=0)
    scheduled_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    estimated = models.BooleanField(default=False)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["uid", "digest"], name="observation_once")]

    def __str__(self) -> str:
        return f"{self.uid} {self.phase}"

    @classmethod
    def of(cls, state: PodState) -> Observation:
        facts = {name: getattr(state, name) for name in OBSERVED}
        return cls(**facts, labels=dict(state.labels), digest=state.digest)

    @property
    def state(self) -> PodState:
        return PodState(**{name: getattr(self, name) for name in OBSERVED}, labels=self.labels)


# The fields that an Observation and a PodState share, the labels apart.
OBSERVED = (
    "uid", "cloud", "appcode_id", "consumer", "phase", "gpus", "gpu_model", "cpu_milli", "memory_mb", "storage_mb",
    "scheduled_at", "started_at", "finished_at", "estimated", "seen_at",
)  # fmt: skip


class Quarantined(models.Model):
    """A sighting that could not be understood: kept as it came, with the reason, while the rest of its batch went on.

    `manage.py replay` tries again and sets `resolved_at` when it has become an observation; nothing else of it ever changes,
    and it is never deleted (a trigger). The same sighting twice is one row.
    """

    digest = models.CharField(max_length=64, unique=True)
    cloud = models.CharField(max_length=40, blank=True)
    raw = models.TextField()
    reason = models.CharField(max_length=300)
    seen_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [models.Index(fields=["id"], name="quarantined_open", condition=Q(resolved_at=None))]

    def __str__(self) -> str:
        return f"{self.seen_at:%F %T} {self.reason}"


class UsageSegment(models.Model):
    """The time for which one pod held its resources: [started, ended), open while `ended` is null.

    Derived from observations (`manage.py replay --verify` proves it). Both ends are whole seconds; `flags` names what
    was clamped or estimated.
    """

    uid = models.CharField(max_length=80)
    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, db_index=False, related_name="segments")
    consumer = models.CharField(max_length=40)
    labels = models.JSONField()
    gpus = models.PositiveIntegerField()
    gpu_model = models.CharField(max_length=60, blank=True)
    cpu_milli = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    storage_mb = models.PositiveIntegerField(default=0, db_default=0)
    started = models.DateTimeField()
    ended = models.DateTimeField(null=True)
    flags = models.JSONField(default=list)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["consumer"]),
            models.Index(fields=["appcode", "started"]),
            # What overlaps a month: it ended after its first second, or not yet.
            models.Index(fields=["ended"]),
            models.Index(fields=["ended"], name="segment_flagged", condition=~Q(flags=[])),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["uid"], name="segment_once"),
            models.CheckConstraint(
                condition=Q(ended__isnull=True) | Q(ended__gte=F("started")), name="segment_forward"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.uid} {self.started:%F %T} – {f'{self.ended:%F %T}' if self.ended else ''}"

    @classmethod
    def of(cls, segment: Segment) -> UsageSegment:
        held = segment.resources
        return cls(
            uid=segment.uid,
            appcode_id=segment.appcode_id,
            consumer=segment.consumer,
            labels=dict(segment.labels),
            gpus=held.gpus,
            gpu_model=held.gpu_model,
            cpu_milli=held.cpu_milli,
            memory_mb=held.memory_mb,
            storage_mb=held.storage_mb,
            started=segment.started,
            ended=segment.ended,
            flags=list(segment.flags),
        )

    @property
    def segment(self) -> Segment:
        return Segment(
            uid=self.uid,
            appcode_id=self.appcode_id,
            consumer=self.consumer,
            labels=self.labels,
            resources=Resources(self.gpus, self.gpu_model, self.cpu_milli, self.memory_mb, self.storage_mb),
            started=self.started,
            ended=self.ended,
            flags=tuple(self.flags),
        )


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


class Ownership(models.Model):
    """From `valid_from` on, the appcode belonged to this business line: the path of its nearest OrgNode with a namespace.

    Kept by triggers on appcodes and the organisation, so that whoever moves an appcode cannot forget it. The first one of
    an appcode also holds for the time before.
    """

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="ownerships")
    business_line = models.CharField(max_length=200, blank=True)
    valid_from = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["appcode", "valid_from"], name="ownership_once")]

    def __str__(self) -> str:
        return f"{self.appcode} {self.business_line} from {self.valid_from:%F %T}"

    @property
    def owner(self) -> Owner:
        return Owner(self.appcode_id, self.valid_from, self.business_line)


class Scoped(models.Model):
    """For whom special terms are: one appcode, one business line (its path), or everybody."""

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    business_line = models.CharField(max_length=200, blank=True, db_default="")

    class Meta:
        abstract = True

    @property
    def scope(self) -> str:
        """In words."""
        if self.appcode_id is not None:
            return f"appcode {self.appcode}"
        return f"business line {self.business_line}" if self.business_line else "everybody"


class Price(Scoped):
    """The price of one unit of a SKU for one hour, from `valid_from` until the next price of the same SKU and scope.

    `sku` is "gpu" (any model), "gpu:<model>", "cpu" (one core), "memory" or "storage" (one GiB); money is in
    settings.CURRENCY. `per_hour` null ends a special price: the more general one counts again. A price that has begun to hold
    has been charged: a trigger refuses to change or delete it. The order in which prices count is `rating.Prices`'.
    """

    sku = models.CharField(max_length=70)
    per_hour = models.DecimalField(max_digits=14, decimal_places=6, null=True)
    valid_from = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["sku", "valid_from"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["sku", "appcode", "business_line", "valid_from"], name="price_once", nulls_distinct=False
            ),
            models.CheckConstraint(condition=Q(per_hour__gte=0), name="price_not_negative"),
            models.CheckConstraint(condition=Q(appcode=None) | Q(business_line=""), name="price_one_scope"),
            models.CheckConstraint(
                condition=Q(per_hour__isnull=False)
                | Q(appcode__isnull=False)
                | ~Q(business_line="")
                | Q(sku__startswith="gpu:"),
                name="price_ends_special_only",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.sku} {self.per_hour} from {self.valid_from:%F} for {self.scope}"

    @property
    def explained(self) -> str:
        """What one unit of it is, in words."""
        model = self.sku.partition(":")[2]
        gpu = f"one {model} GPU" if model else "one GPU of any model"
        units = {"gpu": gpu, "cpu": "one core", "memory": "one GiB", "storage": "one GiB"}
        return units.get(family(self.sku), "")

    @property
    def dated(self) -> DatedPrice:
        return DatedPrice(self.sku, self.valid_from, self.per_hour, self.appcode_id, self.business_line, self.pk)


class Discount(Scoped):
    """`percent` less on what `sku` means ("*" everything, "gpu" GPUs of every model, or one SKU) from `valid_from` until
    `valid_until`. Of several that apply the largest counts. One that has begun may only be ended (a trigger)."""

    sku = models.CharField(max_length=70)
    percent = models.DecimalField(max_digits=5, decimal_places=2)
    reason = models.CharField(max_length=200, blank=True)
    valid_from = models.DateTimeField()
    valid_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["sku", "valid_from"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(percent__gt=0, percent__lte=100), name="discount_percent"),
            models.CheckConstraint(condition=Q(appcode=None) | Q(business_line=""), name="discount_one_scope"),
            models.CheckConstraint(
                condition=Q(valid_until=None) | Q(valid_until__gte=F("valid_from")), name="discount_forward"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.percent} % off {self.sku} from {self.valid_from:%F} for {self.scope}"

    @property
    def dated(self) -> DatedDiscount:
        until, line = self.valid_until, self.business_line
        return DatedDiscount(self.sku, self.percent, self.valid_from, until, self.appcode_id, line, self.pk)


class Credit(models.Model):
    """Money given to an appcode, used up by its invoices (ledger entries of kind credit that name it) until it expires; what a
    correction takes back of what it paid for is given back to it."""

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="credits")
    amount = models.DecimalField(max_digits=16, decimal_places=2)
    reason = models.CharField(max_length=200)
    valid_from = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    created_by = models.CharField(max_length=150)

    class Meta:
        ordering: ClassVar = ["expires_at", "id"]
        constraints: ClassVar = [models.CheckConstraint(condition=Q(amount__gt=0), name="credit_positive")]

    def __str__(self) -> str:
        return f"{self.amount} for {self.appcode}: {self.reason}"


class LedgerEntry(models.Model):
    """One line of the ledger: append-only (a trigger refuses UPDATE and DELETE); a correction is a reversal and a new line.

    `quantity` is in unit-seconds of what the SKU counts (GPUs, thousandths of a core, MiB). `charge` is exact money in
    `rating.UNIT`s (1/460,800,000 of the currency); add charges up, then let `rating.money` make an amount of the sum. A
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
        Credit, on_delete=models.PROTECT, null=True, db_constraint=False, db_index=False, related_name="entries"
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
