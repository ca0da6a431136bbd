"""Datastores: where data lives, independent of compute. A cluster mounts a datastore by name."""

from __future__ import annotations

import datetime as dt
from typing import ClassVar, cast

from django.db import models
from django.db.models import Q
from django.utils import timezone
from encrypted_fields.fields import EncryptedTextField

from datastores.files.retention import KINDS, RuleSpec
from datastores.files.retention import Kind as RuleKind
from datastores.listing import TRASH
from portal.models import Appcode, OrgNode, User

# How long removed files can be restored.
TRASH_KEPT = dt.timedelta(days=7)
# Files that a test counts: one response of S3.
FOUND_MOST = 1000


class AllowedFolder(models.Model):
    """A folder of this machine that a platform administrator opened for datastores of kind `local`."""

    path = models.CharField(
        max_length=500, unique=True, help_text="An absolute path; datastores may lie in it or below."
    )
    read_only = models.BooleanField(default=False, help_text="Clusters may read it and not write to it.")
    appcodes = models.ManyToManyField(
        Appcode, blank=True, related_name="+", help_text="Who may use it; everybody when none is chosen."
    )

    class Meta:
        ordering: ClassVar = ["path"]
        constraints: ClassVar = [models.CheckConstraint(condition=Q(path__startswith="/"), name="folder_absolute")]

    def __str__(self) -> str:
        return self.path

    def contains(self, path: str) -> bool:
        """True if `path`, without '..', lies in it by name. Links are checked by the driver."""
        return path == self.path or path.startswith(self.path.rstrip("/") + "/")


class Datastore(models.Model):
    """Where data lives. `spec` holds the fields of its kind without secrets, e.g. {"server": …, "bucket": …}; `secret`
    is encrypted at rest and never shown again."""

    class Kind(models.TextChoices):
        S3 = "s3", "S3"
        NFS = "nfs", "NFS"
        VOLUME = "volume", "Volume"
        LOCAL = "local", "Folder of this machine"

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="datastores")
    name = models.CharField(max_length=63)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    spec = models.JSONField()
    secret = EncryptedTextField(null=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    tested_at = models.DateTimeField(null=True)
    test_ok = models.BooleanField(null=True)
    test_message = models.TextField(blank=True)
    # What the last test found, up to FOUND_MOST files.
    found_files = models.PositiveIntegerField(null=True)
    found_bytes = models.BigIntegerField(null=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "name"], name="datastore_name_once"),
            models.CheckConstraint(condition=Q(kind__in=["s3", "nfs", "volume", "local"]), name="datastore_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.appcode.code}/{self.name}"

    @property
    def where(self) -> str:
        """In one line for people: "minio.example.com:9000/tmp/photos", "10.0.0.7:/data", "/data"."""
        match self.kind:
            case self.Kind.S3:
                server = str(self.spec["server"]).split("://", 1)[1]
                return "/".join(part for part in (server, self.spec["bucket"], self.spec["prefix"]) if part)
            case self.Kind.NFS:
                return f"{self.spec['server']}:{self.spec['path']}"
            case self.Kind.VOLUME:
                return f"{self.spec['storage_class'] or 'default storage class'}, {self.spec['access_mode']}"
            case _:
                return str(self.spec["path"])

    @property
    def size(self) -> str:
        """The size of a volume, e.g. "20Gi"; "" for other kinds."""
        return str(self.spec.get("size", ""))

    @property
    def found_all(self) -> bool:
        """Whether the last test found all of its files."""
        return self.found_files is not None and self.found_files < FOUND_MOST

    @property
    def made(self) -> Volume | None:
        """Its volume, once a run has needed it. No query if `volume` is joined."""
        try:
            return self.volume
        except Volume.DoesNotExist:
            return None


class Storage(models.Model):
    """An appcode's bucket in the portal's own object storage, from the moment it is switched on.

    This row is the source of truth for valid keys: the door accepts `access_key`, which users have, and `own_key`,
    which the portal and its runs use, and no other, whatever the store still knows. Secrets are not stored here: that
    of `access_key` is shown once, that of `own_key` is in the datastore. The store held `used_bytes` at `measured_at`;
    `metered_mb` MiB are billed since `metered_since`; the last notice was sent at `told_percent` of the limit.
    """

    appcode = models.OneToOneField(Appcode, on_delete=models.PROTECT, related_name="storage")
    bucket = models.CharField(max_length=63, unique=True)
    access_key = models.CharField(max_length=128, unique=True, null=True)
    own_key = models.CharField(max_length=128, unique=True, null=True)
    refreshed_at = models.DateTimeField(null=True)
    limit_gib = models.PositiveIntegerField()
    used_bytes = models.BigIntegerField(null=True)
    measured_at = models.DateTimeField(null=True)
    metered_mb = models.PositiveIntegerField(default=0, db_default=0)
    metered_since = models.DateTimeField(null=True)
    told_percent = models.PositiveSmallIntegerField(default=0, db_default=0)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.bucket


class Volume(models.Model):
    """The volume of a datastore, from a run's first use until its cloud has received the order to delete it.

    `cloud` and `namespace` are where it lies, by the names of the app that runs tasks; it never moves. `appcode`,
    `name` and the primary key form its name there, whatever happens to the datastore: a volume with `datastore` None
    has to be deleted. `size` is desired, `told_size` was accepted by the cloud; `refused_size` was refused, for the
    reason in `trouble`. `holder` is the run that last got a ReadWriteOnce volume; `metered_mb` MiB are billed now.
    Until `told_at` no cloud has accepted a run that mounts it, and it costs nothing.
    """

    datastore = models.OneToOneField(Datastore, on_delete=models.SET_NULL, null=True, related_name="volume")
    cloud = models.CharField(max_length=40)
    namespace = models.CharField(max_length=63)
    appcode = models.CharField(max_length=63)
    name = models.CharField(max_length=63)
    storage_class = models.CharField(max_length=253, blank=True)
    access_mode = models.CharField(max_length=20)
    size = models.CharField(max_length=20)
    told_size = models.CharField(max_length=20)
    refused_size = models.CharField(max_length=20, blank=True)
    trouble = models.TextField(blank=True)
    holder = models.BigIntegerField(null=True)
    metered_mb = models.PositiveIntegerField(default=0, db_default=0)
    made_at = models.DateTimeField(auto_now_add=True)
    told_at = models.DateTimeField(null=True)
    tried_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(
                fields=["tried_at"],
                condition=Q(datastore=None)
                | Q(told_at__isnull=False) & (~Q(size=models.F("told_size")) | Q(metered_mb=0)),
                name="volume_unsettled",
            )
        ]

    def __str__(self) -> str:
        return f"{self.appcode}/{self.name} on {self.cloud}"


class Share(models.Model):
    """Who else may read a datastore: an appcode, a business line with everything below it, or, with neither, everybody."""

    datastore = models.ForeignKey(Datastore, on_delete=models.CASCADE, related_name="shares")
    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, null=True, related_name="+")
    line = models.ForeignKey(OrgNode, on_delete=models.CASCADE, null=True, related_name="+")

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["datastore", "appcode", "line"], name="share_once", nulls_distinct=False),
            models.CheckConstraint(condition=Q(appcode=None) | Q(line=None), name="share_one_reader"),
        ]

    def __str__(self) -> str:
        return str(self.appcode or self.line or "everybody")


class Upload(models.Model):
    """An unfinished large file in parts, which the store keeps (S3: a multipart upload with the id `remote`). A client
    that sends the same file to the same place again resumes it; `fingerprint` is how the client identifies the file. An
    upload that is idle for a day is dropped."""

    datastore = models.ForeignKey(Datastore, on_delete=models.CASCADE, related_name="uploads")
    path = models.CharField(max_length=2000)
    size = models.BigIntegerField()
    part_size = models.BigIntegerField()
    fingerprint = models.CharField(max_length=200, blank=True)
    remote = models.CharField(max_length=2000)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    touched_at = models.DateTimeField(auto_now_add=True, db_index=True)

    def __str__(self) -> str:
        return self.path


class Version(models.Model):
    """The contents of `folder` of a datastore ("" for all of it), by the digest of a listing (listing.py). While it
    exists, the portal changes nothing in the folder."""

    datastore = models.ForeignKey(Datastore, on_delete=models.CASCADE, related_name="versions")
    name = models.CharField(max_length=40)
    folder = models.CharField(max_length=2000, blank=True)
    digest = models.CharField(max_length=64)
    files = models.BigIntegerField()
    bytes = models.BigIntegerField()
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["datastore", "name"], name="version_name_once")]

    def __str__(self) -> str:
        return f"{self.datastore.name}@{self.name}"

    @property
    def disk_bytes(self) -> int:
        """Estimated disk space of a copy: each file wastes up to a block of 4 KiB."""
        return self.bytes + 4096 * self.files

    def holds(self, path: str) -> bool:
        """True if changing the file or folder at `path` would change the version."""
        here, there = f"{self.folder}/" if self.folder else "", f"{path}/" if path else ""
        return there.startswith(here) or here.startswith(there)


class Removal(models.Model):
    """A removal from a datastore that can be restored until it is deleted for good (files/trash.py). `remote` names its folder
    in the store's trash. `state` is the desired state, and `settled` is true once it is reached. `trouble` says why it is not,
    or what stays in the trash because another file is in its place. `cause` is the rule that removed it, if any."""

    class State(models.TextChoices):
        REMOVED = "removed", "In the trash"
        RESTORED = "restored", "Being restored"
        EMPTIED = "emptied", "Being removed for good"

    datastore = models.ForeignKey(Datastore, on_delete=models.CASCADE, related_name="removals")
    path = models.CharField(max_length=2000)
    is_folder = models.BooleanField()
    remote = models.CharField(max_length=32)
    state = models.CharField(max_length=10, choices=State.choices, default=State.REMOVED)
    settled = models.BooleanField(default=False)
    files = models.BigIntegerField(default=0)
    bytes = models.BigIntegerField(default=0)
    trouble = models.TextField(blank=True)
    cause = models.CharField(max_length=200, blank=True)
    removed_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    removed_at = models.DateTimeField(auto_now_add=True, db_index=True)
    tried_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(state__in=["removed", "restored", "emptied"]), name="removal_state"),
        ]
        indexes: ClassVar = [models.Index(fields=["tried_at"], condition=Q(settled=False), name="removal_unsettled")]

    def __str__(self) -> str:
        return self.path

    @property
    def place(self) -> str:
        """Its path in the store: only the last part of its name, since a whole path may already have the maximum length."""
        return f"{self.folder}/{self.path.rpartition('/')[2]}"

    @property
    def folder(self) -> str:
        return f"{TRASH}/{self.remote}"

    @property
    def until(self) -> dt.datetime:
        """When it is deleted for good."""
        return self.removed_at + TRASH_KEPT


class Rule(models.Model):
    """An automatic removal into the trash (files/retention.py decides what, files/rules.py when). It is applied at `due_at`;
    `files` and `bytes` are what it moved at `applied_at`, and `trouble` is the last error."""

    datastore = models.ForeignKey(Datastore, on_delete=models.CASCADE, related_name="rules")
    kind = models.CharField(max_length=20, choices=[*KINDS.items()])
    folder = models.CharField(max_length=500, blank=True)
    days = models.PositiveIntegerField(null=True)
    keep = models.PositiveIntegerField(null=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    due_at = models.DateTimeField(default=timezone.now, db_index=True)
    applied_at = models.DateTimeField(null=True)
    files = models.BigIntegerField(default=0)
    bytes = models.BigIntegerField(default=0)
    trouble = models.TextField(blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["datastore", "kind", "folder"], name="rule_once"),
            models.CheckConstraint(
                condition=Q(kind="checkpoints", keep__isnull=False, days=None)
                | Q(kind__in=["failed-runs", "files"], keep=None, days__isnull=False),
                name="rule_kind",
            ),
        ]

    def __str__(self) -> str:
        return self.spec.words

    @property
    def spec(self) -> RuleSpec:
        return RuleSpec(kind=cast("RuleKind", self.kind), path=self.folder, days=self.days, keep=self.keep)


class UploadPart(models.Model):
    """A part that the store has, with its number from 1 and the store's ETag."""

    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField()
    etag = models.CharField(max_length=200)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["upload", "number"], name="upload_part_once")]

    def __str__(self) -> str:
        return f"{self.upload_id}:{self.number}"
