"""Limits of buckets: administrators set them, and users are notified once at each of a few steps.

The store counts its contents once a minute, as stored: compressible data counts less. We decided against summing up the
sizes that clients sent, because that would list every object each minute.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import BigIntegerField, F, Q
from django.db.models.functions import Cast

from datastores.models import Storage
from portal.access import require_administrator
from portal.actions.requests import mail_owners
from portal.errors import Invalid
from portal.events import record
from portal.models import User

GIB = 2**30
LARGEST_GIB = 2**20
# Per cent of the limit. A step is only notified again after usage fell this much below it.
STEPS, LESS = (80, 95, 100), 5
ROUND = 200


@transaction.atomic
def set_limit(row: Storage, gib: int, *, acting_user: User) -> None:
    """A limit below the current usage lets nothing more in. Raises Invalid at `limitGiB`, and Http404 for anyone but
    administrators."""
    require_administrator(acting_user)
    if not 1 <= gib <= LARGEST_GIB:
        raise Invalid.at("limitGiB", message=f"Give a whole number from 1 to {LARGEST_GIB:,}.")
    Storage.objects.filter(pk=row.pk).update(limit_gib=gib)
    message = f"Limit of bucket {row.bucket}: {gib:,} GiB instead of {row.limit_gib:,}."
    row.limit_gib = gib
    what = f"storage {row.appcode.code}"
    record("storage.limit", actor=acting_user, appcode=row.appcode.code, object=what, message=message, limitGiB=gib)


def percent(row: Storage) -> int:
    """The per cent used when last measured; 0 before."""
    return (row.used_bytes or 0) * 100 // (row.limit_gib * GIB)


def watch() -> None:
    """Notifies the owners of buckets that have reached a step. May run twice or at once."""
    due, limit = Q(pk=None), Cast("limit_gib", BigIntegerField()) * GIB
    for step in STEPS:
        due |= Q(told_percent__lt=step, used_bytes__gte=F("limit") * step / 100)
        due |= Q(told_percent=step, used_bytes__lt=F("limit") * (step - LESS) / 100)
    for pk in list(
        Storage.objects.annotate(limit=limit).filter(due).order_by("pk").values_list("pk", flat=True)[:ROUND]
    ):
        _tell(pk)


@transaction.atomic
def _tell(pk: int) -> None:
    row = Storage.objects.select_for_update(of=("self",)).select_related("appcode").get(pk=pk)
    reached, before = percent(row), row.told_percent
    now = max((step for step in STEPS if step <= reached), default=0)
    if now < before and reached >= before - LESS:
        return
    if now == before:
        return
    row.told_percent = now
    row.save(update_fields=["told_percent"])
    if now < before:
        return
    code = row.appcode.code
    sentence = f"The object storage of {code} is {reached} % full: {(row.used_bytes or 0) / GIB:,.1f} of {row.limit_gib:,} GiB."
    if now == STEPS[-1]:
        sentence = f"The object storage of {code} is full, {row.limit_gib:,} GiB: nothing more can be stored."
    advice = "Remove what is not needed and empty the trash, or ask an administrator for a larger limit."
    record(
        "storage.filling", actor=None, appcode=code, object=f"storage {code}", message=sentence,
        percent=reached, usedBytes=row.used_bytes, limitGiB=row.limit_gib,
    )  # fmt: skip
    key = f"storage {now} {row.measured_at:%Y%m%dT%H%M%S}"
    mail_owners(row.appcode, key, sentence.partition(":")[0], f"{sentence} {advice}", path=f"storage/{code}")
