"""People, the organisation's tree, appcodes and requests for them, memberships, API tokens, the Event log, webhooks and
deliveries.

The database also enforces the limits of pages and API (one to four owners, one to ten addresses, a remark of at most
100 characters), so that no code path can leave an appcode without an owner. The rule about owners spans two tables and
is a deferred constraint trigger (sql/rules.sql).
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import ClassVar

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone
from encrypted_fields.fields import EncryptedTextField
from knox.models import AbstractAuthToken

from portal.lending import Share
from portal.manifests.appcode import (
    MAX_EMAILS,
    MAX_GPU_QUOTA,
    MAX_REASON,
    MAX_REMARK,
    MAX_STORAGE_QUOTA_GIB,
    MAX_TOKEN_DAYS,
    MAX_WEIGHT,
)
from portal.terms import Terms, is_over, is_soon, when

org_path = RegexValidator(
    r"^[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*\Z", "Use lower-case words divided by dots, like qunarcorp.ops.dev."
)
appcode_code = RegexValidator(
    r"^[a-z][a-z0-9_-]{1,61}[a-z0-9]\Z", "Use 3 to 63 lower-case letters, digits, '_' and '-'; start with a letter."
)
namespace_name = RegexValidator(r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?\Z", "Use lower-case letters, digits and '-'.")


class User(AbstractUser):  # type: ignore[django-manager-missing]
    """A person. `is_superuser` makes a platform administrator; everything else follows from memberships."""

    must_change_password = models.BooleanField(
        default=False, help_text="The password was made by an administrator and opens nothing but its own change."
    )

    time_zone = models.CharField(
        max_length=64,
        blank=True,
        db_default="",
        help_text="IANA name of the zone in which pages show times; empty: the browser's.",
    )
    session_epoch = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Sessions that were begun in an earlier one have ended."
    )

    mail_phases = ArrayField(
        models.CharField(max_length=10), default=list, db_default=[], blank=True,
        help_text="Of runs that this person started; who wants a mail when one is failed, say.",
    )  # fmt: skip
    browser_phases = ArrayField(
        models.CharField(max_length=10),
        default=list,
        db_default=[],
        blank=True,
        help_text="The same for their browsers.",
    )

    told_until = models.DateTimeField(
        default=timezone.now, db_default=Now(), help_text="Until when this person has read what the bell tells."
    )

    def _get_session_auth_hash(self, secret: str | None = None) -> str:
        """Django's hash plus the epoch, so that a deactivated user who is activated again has to sign in again."""
        hashed: str = super()._get_session_auth_hash(secret)  # type: ignore[misc]  # not in the stubs
        return f"{hashed}.{self.session_epoch}" if self.session_epoch else hashed

    @property
    def is_administrator(self) -> bool:
        return self.is_active and self.is_superuser

    @property
    def display_name(self) -> str:
        return self.get_full_name() or self.username


class OrgNode(models.Model):
    """A node of the organisation by its dotted path, e.g. qunarcorp.ops.dev. A node with a `namespace` is a business
    line: it and everything below it run in that Kubernetes namespace."""

    path = models.CharField(max_length=200, unique=True, validators=[org_path])
    title = models.CharField(max_length=100, blank=True)
    namespace = models.CharField(max_length=63, null=True, blank=True, unique=True, validators=[namespace_name])

    class Meta:
        ordering: ClassVar = ["path"]

    def __str__(self) -> str:
        return self.path

    @property
    def ancestors_and_self(self) -> list[str]:
        """Paths from the root to this node."""
        words = self.path.split(".")
        return [".".join(words[: n + 1]) for n in range(len(words))]


class Appcode(models.Model):
    """A tenant's project: the owner of clusters, datastores and bills. Any user may request one; it is active once a
    platform administrator has approved it (at once if an administrator requests it). `request` holds its latest request
    and that one's state. Whether it has expired depends only on the clock."""

    class State(models.TextChoices):
        REQUESTED = "requested"
        ACTIVE = "active"
        DISABLED = "disabled"

    class ResourceType(models.TextChoices):
        GPU_CLOUD = "gpu-cloud", "GPU cloud"

    code = models.CharField(max_length=63, unique=True, validators=[appcode_code])
    name = models.CharField(max_length=100, blank=True, help_text="Default: the same as the code.")
    org_node = models.ForeignKey(OrgNode, on_delete=models.PROTECT, related_name="appcodes")
    emails = ArrayField(models.EmailField(), help_text="Notifications go to these 1 to 10 addresses.")
    remark = models.CharField(max_length=MAX_REMARK, blank=True)
    resource_type = models.CharField(max_length=20, choices=ResourceType.choices, default=ResourceType.GPU_CLOUD)
    state = models.CharField(max_length=10, choices=State.choices, default=State.REQUESTED)
    note = models.CharField(max_length=300, blank=True, help_text="Why it was disabled.")
    gpu_quota = models.PositiveIntegerField(
        default=8, validators=[MaxValueValidator(MAX_GPU_QUOTA)], help_text="GPUs that its runs may hold at one time."
    )
    gpu_borrow = models.PositiveIntegerField(
        default=0,
        db_default=0,
        validators=[MaxValueValidator(MAX_GPU_QUOTA)],
        help_text="GPUs that its runs may hold beyond the quota, as long as nobody else needs them.",
    )
    weight = models.PositiveIntegerField(
        default=1,
        db_default=1,
        validators=[MaxValueValidator(MAX_WEIGHT)],
        help_text="Its part of the GPUs that are lent, against those of other appcodes.",
    )
    storage_quota_gib = models.PositiveIntegerField(
        default=1024,
        db_default=1024,
        validators=[MaxValueValidator(MAX_STORAGE_QUOTA_GIB)],
        help_text="GiB that its volumes may have together.",
    )
    expires_on = models.DateField(
        null=True, help_text="Its last day, in UTC; nothing new starts afterwards. None: no end."
    )
    expiry_told = models.PositiveSmallIntegerField(
        null=True, help_text="The last notice of its end (portal.terms.MARKS, 0)."
    )
    requested_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    members = models.ManyToManyField(User, through="Membership", related_name="appcodes")
    # The user for whom `access.appcode_for` read this row, and their role then.
    reader: int | None = None
    reader_role: str = ""

    class Meta:
        ordering: ClassVar = ["code"]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(emails__len__gte=1) & Q(emails__len__lte=MAX_EMAILS), name="appcode_emails_1_10"
            ),
            models.CheckConstraint(condition=Q(resource_type="gpu-cloud"), name="appcode_resource_type"),
            models.CheckConstraint(condition=Q(state__in=["requested", "active", "disabled"]), name="appcode_state"),
            models.CheckConstraint(condition=Q(code__regex=r"^[a-z][a-z0-9_-]{1,61}[a-z0-9]$"), name="appcode_code"),
            models.CheckConstraint(condition=Q(gpu_quota__lte=MAX_GPU_QUOTA), name="appcode_gpu_quota"),
            models.CheckConstraint(condition=Q(gpu_borrow__lte=MAX_GPU_QUOTA), name="appcode_gpu_borrow"),
            models.CheckConstraint(condition=Q(weight__lte=MAX_WEIGHT), name="appcode_weight"),
        ]

    def __str__(self) -> str:
        return self.code

    def save(self, *args: object, **kwargs: object) -> None:
        self.name = self.name or self.code
        super().save(*args, **kwargs)  # type: ignore[arg-type]

    @property
    def gpu_limit(self) -> int:
        """GPUs that its runs may hold at one time, with those that they borrow."""
        return self.gpu_quota + self.gpu_borrow

    @property
    def share(self) -> Share:
        return Share(self.gpu_borrow, self.weight)

    @property
    def asked(self) -> QuotaRequest | None:
        """Its latest request; a query unless it was fetched."""
        found: QuotaRequest | None = getattr(self, "request", None)
        return found

    @property
    def expired(self) -> bool:
        return self.state == Appcode.State.ACTIVE and is_over(self.expires_on, timezone.now())

    @property
    def expires_soon(self) -> bool:
        """True if its expiry was announced or has come."""
        return self.state == Appcode.State.ACTIVE and is_soon(self.expires_on, timezone.now())

    @property
    def expiry(self) -> str:
        """ "ops-demo expires in 3 days; its last day is 2027-03-31", or "" without an end."""
        if self.expires_on is None:
            return ""
        said = when(self.expires_on, timezone.now())
        return f"{self.code} {said}; its last day {'was' if self.expired else 'is'} {self.expires_on}"

    @property
    def standing(self) -> str:
        """Its state as users read it: one of STANDINGS."""
        if self.state == Appcode.State.REQUESTED:
            asked = self.asked
            return asked.state if asked and asked.state != QuotaRequest.State.WAITING else self.state
        return "expired" if self.expired else self.state

    @property
    def why_not(self) -> str:
        """Why nothing new can start in it now, or ""."""
        return {
            "active": "",
            "requested": f"{self.code} waits for an administrator's approval.",
            "changes-requested": f"Changes to {self.code} are requested; its owners can make them and send it again.",
            "refused": f"{self.code} was refused; its owners can change the request and send it again.",
            "withdrawn": f"The request for {self.code} was withdrawn; its owners can send it again.",
            "expired": f"{self.expiry}. Its owners can ask for its renewal on its page.",
            "disabled": f"{self.code} is disabled; ask an administrator.",
        }[self.standing]


class QuotaRequest(models.Model):
    """The latest request for an appcode, for the appcode itself or later for other terms, and its decision. An appcode has at
    most one, so two are never open at a time; the Event log has earlier ones. The appcode does not change before approval."""

    class State(models.TextChoices):
        WAITING = "waiting"
        CHANGES = "changes-requested", "changes requested"
        APPROVED = "approved"
        REFUSED = "refused"
        WITHDRAWN = "withdrawn"

    OPEN = (State.WAITING, State.CHANGES)

    appcode = models.OneToOneField(Appcode, on_delete=models.CASCADE, related_name="request")
    state = models.CharField(max_length=17, choices=State.choices, default=State.WAITING)
    revision = models.PositiveIntegerField(
        default=1, help_text="Goes up whenever it is sent, so that nobody decides about what they have not read."
    )
    gpus = models.PositiveIntegerField()
    storage_gib = models.PositiveIntegerField()
    budget = models.DecimalField(max_digits=14, decimal_places=2, null=True, help_text="None: as it is.")
    expires_on = models.DateField(null=True, help_text="None: without end.")
    reason = models.CharField(max_length=MAX_REASON, blank=True)
    asked_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    asked_at = models.DateTimeField()
    decided_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    decided_at = models.DateTimeField(null=True)
    note = models.CharField(max_length=MAX_REASON, blank=True, help_text="What an administrator says of it.")

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(state__in=["waiting", "changes-requested", "approved", "refused", "withdrawn"]),
                name="quota_request_state",
            ),
            models.CheckConstraint(condition=Q(gpus__lte=MAX_GPU_QUOTA), name="quota_request_gpus"),
            models.CheckConstraint(condition=Q(budget=None) | Q(budget__gt=0), name="quota_request_budget"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["asked_at"], condition=Q(state="waiting"), name="quota_request_waiting")
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}: {self.words}"

    @property
    def words(self) -> str:
        """ "16 GPUs, 2,048 GiB of volumes, the same budget, until 2027-03-31"."""
        new = self.appcode.state == Appcode.State.REQUESTED
        return self.terms.words(settings.CURRENCY, "no budget" if new else "the same budget")

    @property
    def is_open(self) -> bool:
        return self.state in self.OPEN

    @property
    def is_decidable(self) -> bool:
        """True if an administrator may decide it: it is open, or it is a refused request for a new appcode."""
        again = self.state == self.State.REFUSED and self.appcode.state == Appcode.State.REQUESTED
        return (self.is_open or again) and self.appcode.state != Appcode.State.DISABLED

    @property
    def terms(self) -> Terms:
        return Terms(self.gpus, self.storage_gib, self.budget, self.expires_on)


# The values of `Appcode.standing`.
STANDINGS = ("requested", "changes-requested", "refused", "withdrawn", "active", "expired", "disabled")


class Membership(models.Model):
    """A person's role in an appcode: owners also manage people and money, developers run things, viewers read."""

    class Role(models.TextChoices):
        OWNER = "owner"
        DEVELOPER = "developer"
        VIEWER = "viewer"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "appcode"], name="membership_once"),
            models.CheckConstraint(condition=Q(role__in=["owner", "developer", "viewer"]), name="membership_role"),
        ]

    def __str__(self) -> str:
        return f"{self.user} {self.role} of {self.appcode}"


class ApiToken(AbstractAuthToken):  # type: ignore[misc]
    """A bearer token: only its hash is stored. It has a name for its owner and always an expiry, at most a year away."""

    name = models.CharField(max_length=60)
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            # `created` is set a moment after `expiry` was computed; the extra day absorbs clock differences.
            models.CheckConstraint(
                condition=Q(expiry__isnull=False) & Q(expiry__lte=F("created") + dt.timedelta(days=MAX_TOKEN_DAYS + 1)),
                name="api_token_expires",
            ),
        ]

    @property
    def state(self) -> str:
        return "active" if self.expiry is not None and self.expiry > timezone.now() else "expired"

    def __str__(self) -> str:
        return f"{self.name} of {self.user}"


# Kinds of events that the bell tells (profile/bell.py), in this order in an index.
TOLD_BY_BELL = [
    "appcode.requested", "appcode.approved", "appcode.renewed", "appcode.refused", "appcode.changes-requested",
    "appcode.disabled", "appcode.enabled", "appcode.expiring", "appcode.expired",
    "budget.told", "budget.announced", "budget.acted", "budget.taken-back", "budget.lifted",
]  # fmt: skip


class Event(models.Model):
    """An action of a person or a report of a cloud: append-only (a trigger refuses UPDATE and DELETE), for audit and
    activity lists. `object` is a kind and a key, e.g. "cluster ops-demo/show1" or "datastore ops-demo/demo-input".
    Names are copied, because the named objects may be deleted. `actor` is None for the portal itself."""

    at = models.DateTimeField(auto_now_add=True)
    actor = models.ForeignKey(User, on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="+")
    actor_name = models.CharField(max_length=150)
    verb = models.CharField(max_length=40)
    appcode = models.CharField(max_length=63, blank=True)
    object = models.CharField(max_length=200, blank=True)
    message = models.TextField(blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            models.Index(fields=["appcode", "object", "-id"]),
            models.Index(fields=["appcode", "-id"], condition=Q(verb__in=TOLD_BY_BELL), name="event_told"),
        ]

    def __str__(self) -> str:
        return f"{self.at:%F %T} {self.actor_name} {self.verb} {self.object}"


class Branding(models.Model):
    """Name, logo, colour, support and banner (portal/branding/manifest.py): one row at most."""

    spec = models.JSONField(default=dict)

    class Meta:
        constraints: ClassVar = [models.CheckConstraint(condition=Q(id=1), name="branding_once")]

    def __str__(self) -> str:
        return "branding"


# The name of a person's only webhook.
OWN_WEBHOOK = "me"


class Webhook(models.Model):
    """Sends events to a URL: those of one appcode, those of runs that one person started, or, with neither, all of
    them. `kinds` are `run.failed`, `run.*` or `*`.

    The URL is stored like a secret, because many receivers put a token into it. A deleted row stays without URL and
    secrets until its last deliveries are purged, because concurrent events may still reference it.
    """

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, null=True, related_name="webhooks")
    person = models.ForeignKey(
        User, on_delete=models.CASCADE, null=True, related_name="+", help_text="Whose own it is; they have one at most."
    )
    name = models.CharField(max_length=63)
    url = EncryptedTextField()
    host = models.CharField(max_length=260, help_text="Of the URL, with its port: receivers share what they can take.")
    kinds = ArrayField(models.CharField(max_length=60))
    enabled = models.BooleanField(default=True)
    disabled_reason = models.CharField(max_length=300, blank=True, help_text="Why the portal itself disabled it.")
    secret = EncryptedTextField()
    old_secret = EncryptedTextField(null=True)
    old_secret_until = models.DateTimeField(null=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    last_ok_at = models.DateTimeField(null=True, help_text="Last delivery that was accepted, to the minute.")
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["appcode__code", "name"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["appcode", "person", "name"],
                condition=Q(deleted_at=None),
                nulls_distinct=False,
                name="webhook_name_once",
            ),
            models.CheckConstraint(
                condition=Q(person=None) | Q(appcode=None, name=OWN_WEBHOOK), name="webhook_of_a_person_is_no_appcodes"
            ),
            models.CheckConstraint(condition=Q(kinds__len__gte=1), name="webhook_kinds"),
        ]

    def __str__(self) -> str:
        if self.person:
            return f"{self.name} of {self.person.username}"
        return f"{self.appcode.code}/{self.name}" if self.appcode else self.name

    @property
    def title(self) -> str:
        """Its name for users who may see it; a personal webhook is visible only to its owner."""
        return "My webhook" if self.person_id else self.name

    def secrets_at(self, now: dt.datetime) -> list[str]:
        """The signing secrets at `now`, newest first."""
        old = [self.old_secret] if self.old_secret and self.old_secret_until and now < self.old_secret_until else []
        return [self.secret, *old]


class Delivery(models.Model):
    """One event's delivery to one webhook, with the result of the last attempt. A trigger creates it with the event. A
    sender leases it by `claim` until `next_at`; if it dies, the lease expires. Events are never deleted."""

    class State(models.TextChoices):
        WAITING = "waiting"
        DELIVERED = "delivered"
        FAILED = "failed"

    uid = models.UUIDField(unique=True, default=uuid.uuid4)
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries")
    event = models.ForeignKey(Event, on_delete=models.DO_NOTHING, related_name="+")
    kind = models.CharField(max_length=40, help_text="The event's verb.")
    created_at = models.DateTimeField(db_default=Now())
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING, db_default=State.WAITING)
    next_at = models.DateTimeField(db_default=Now())
    attempts = models.PositiveIntegerField(default=0, db_default=0)
    first_at = models.DateTimeField(null=True, help_text="First attempt; failing ends some days after it.")
    claim = models.UUIDField(null=True)
    sent_at = models.DateTimeField(null=True)
    headers = models.JSONField(default=dict, db_default={})
    status = models.PositiveIntegerField(null=True)
    error = models.CharField(max_length=300, blank=True, db_default="")
    answer = models.TextField(blank=True, db_default="")
    duration_ms = models.PositiveIntegerField(null=True)
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["webhook", "event"], name="delivery_once")]
        indexes: ClassVar = [
            models.Index(fields=["webhook", "next_at"], condition=Q(state="waiting"), name="delivery_waiting"),
            models.Index(fields=["next_at"], condition=Q(state="waiting"), name="delivery_due"),
            models.Index(fields=["webhook", "-id"], name="delivery_latest"),
            models.Index(fields=["created_at"], name="delivery_age"),
        ]

    def __str__(self) -> str:
        return f"{self.message_id} to {self.webhook_id}"

    @property
    def message_id(self) -> str:
        """The same at every attempt, so that receivers can detect duplicates."""
        return f"msg_{self.uid.hex}"
