"""What people do to the object storage of their appcode: switch it on, refresh its keys, stop them.

The row is written first and says what is wanted; the store is told outside of any transaction, and each step may be repeated:
whoever died in between has it done by the next who asks. A key that was made and not noted opens nothing, because the door asks
the row, and is deleted by the next one who is here. One at a time works on a bucket, by a lock of the database that ends with its
session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.conf import settings
from django.db import transaction
from django.db.models.fields.json import KT
from django.utils import timezone

from datastores.models import Datastore, Storage
from datastores.storage import store
from datastores.storage.access import datastore_of, datastores_of
from datastores.storage.store import KeyPair, StorageAway
from portal.access import OPERATE, require
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict
from portal.events import record
from portal.models import Appcode, User

DATASTORE = "storage"


def switch_on(appcode: Appcode, *, acting_user: User) -> tuple[Storage, KeyPair | None]:
    """The storage and, where it has none yet, its first keys. Raises Conflict."""
    require(acting_user, appcode, OPERATE)
    _check(appcode)
    row = _row(appcode, acting_user)
    with _alone(row), _away():
        _make(row.bucket)
        if datastore_of(row) is None:
            _give_portal(row, acting_user)
        # Keys that somebody has stopped stay so until they are refreshed.
        return row, None if row.refreshed_at else _give_people(row, acting_user, "Keys made")


def prepare(code: str) -> tuple[str, KeyPair]:
    """A bucket and the portal's key to it for an appcode that is yet to be made, by the transaction that calls `adopt`; what dies
    in between may begin again. Raises Conflict."""
    _check_there()
    bucket = bucket_of(code)
    with _away():
        _make(bucket)
        return bucket, store.make_key(bucket, "portal")


def adopt(appcode: Appcode, made: KeyPair, *, acting_user: User) -> None:
    """Switches on what was prepared; people's keys are made when they ask for them. In the caller's transaction."""
    _own(_row(appcode, acting_user), made, acting_user)


def refresh_keys(row: Storage, *, acting_user: User) -> KeyPair:
    """New keys; the old ones stop at once. Raises Conflict."""
    require(acting_user, row.appcode, OPERATE)
    _check(row.appcode)
    with _alone(row), _away():
        store.start()
        return _give_people(row, acting_user, "Keys refreshed")


def stop_keys(row: Storage, *, acting_user: User) -> None:
    """Nobody comes in by keys until they are refreshed; runs do. The door knows it whether the store can be told or not; a store
    of the house has no door of ours before it, and has to be told. Raises Conflict."""
    require(acting_user, row.appcode, OPERATE)
    with _alone(row):
        if settings.STORAGE["proof"]:
            _stopped(row, acting_user)
            with suppress(StorageAway):  # what is left of the key opens nothing, and goes when keys are made again
                store.keep_key(row.bucket, "people", None)
            return
        with _away():
            store.keep_key(row.bucket, "people", None)
        _stopped(row, acting_user)


def bucket_of(code: str) -> str:
    """The name of an appcode's bucket: its code, where S3 knows all letters of it."""
    name: str = settings.STORAGE["bucket_prefix"] + code.replace("_", "-")
    if name == code and len(name) <= 63 and name != logs_bucket():
        return name
    return f"{name[:56].rstrip('-')}-{hashlib.sha256(code.encode()).hexdigest()[:6]}"


def logs_bucket() -> str:
    """The portal's own, in which logs of tasks are kept where no other archive is named."""
    name: str = settings.STORAGE["bucket_prefix"] + "gpu-cloud-logs"
    return name


def _make(bucket: str) -> None:
    store.start()
    store.make_bucket(bucket)
    for owner in ("people", "portal"):
        store.make_user(bucket, owner)


def _check_there() -> None:
    if not settings.STORAGE["url"]:
        raise Conflict(
            "This portal has no object storage of its own; an administrator can name one (PORTAL_STORAGE_URL)."
        )


def _check(appcode: Appcode) -> None:
    _check_there()
    if appcode.why_not:
        raise Conflict(appcode.why_not)


@transaction.atomic
def _row(appcode: Appcode, user: User) -> Storage:
    wanted = {"bucket": bucket_of(appcode.code), "limit_gib": settings.STORAGE_LIMIT_GIB, "created_by": user}
    row, is_new = Storage.objects.get_or_create(appcode=appcode, defaults=wanted)
    if is_new:
        _record(row, user, "storage.created", f"Object storage switched on: bucket {row.bucket}.")
    return row


def _give_people(row: Storage, user: User, what: str) -> KeyPair:
    store.keep_key(row.bucket, "people", row.access_key)
    made = store.make_key(row.bucket, "people")
    _note(row, made.access_key, user, what)
    # After this line the old one is refused by the door; by the store, too, after the next.
    store.keep_key(row.bucket, "people", made.access_key)
    return made


def _give_portal(row: Storage, user: User) -> None:
    """A key of the portal's own, and the datastore that has it. Where another datastore has one, both have the same; a key that
    none has goes."""
    other = datastores_of(row).first()
    made = KeyPair(row.own_key or "", other.secret or "") if other else store.make_key(row.bucket, "portal")
    _own(row, made, user)
    store.keep_key(row.bucket, "portal", made.access_key)


@transaction.atomic
def _own(row: Storage, made: KeyPair, user: User) -> None:
    spec = {
        "server": settings.STORAGE["url"],
        "access_key": made.access_key,
        "bucket": row.bucket,
        "prefix": "",
        "region": settings.STORAGE["region"],
    }
    taken = set(Datastore.objects.filter(appcode=row.appcode).values_list("name", flat=True))
    name = next(name for name in _names() if name not in taken)
    made_store = Datastore.objects.create(
        appcode=row.appcode, name=name, kind=Datastore.Kind.S3, spec=spec, secret=made.secret_key, created_by=user
    )
    Storage.objects.filter(pk=row.pk).update(own_key=made.access_key)
    row.own_key = made.access_key
    record(
        "datastore.created",
        actor=user,
        appcode=row.appcode.code,
        object=f"datastore {made_store}",
        message=f"Created: {made_store.where}.",
    )


def follow_server(**_: object) -> None:
    """Datastores of the object storage go where it is now: the next start on one machine may find its port taken, and a house may
    move its server. Told by each `migrate`."""
    own = Storage.objects.exclude(own_key=None).values("own_key")
    stores = Datastore.objects.annotate(key=KT("spec__access_key")).filter(kind=Datastore.Kind.S3, key__in=own)
    for each in stores.exclude(spec__server=settings.STORAGE["url"]) if settings.STORAGE["url"] else ():
        each.spec["server"] = settings.STORAGE["url"]
        each.save(update_fields=["spec", "changed_at"])


def _names() -> Iterator[str]:
    yield DATASTORE
    number = 2
    while True:
        yield f"{DATASTORE}-{number}"
        number += 1


def _stopped(row: Storage, user: User) -> None:
    if row.access_key:
        _note(row, None, user, "Keys stopped")


@transaction.atomic
def _note(row: Storage, key: str | None, user: User, what: str) -> None:
    row.access_key, row.refreshed_at = key, timezone.now()
    row.save(update_fields=["access_key", "refreshed_at"])
    _record(row, user, "storage.keys", f"{what}: bucket {row.bucket}.")


def _record(row: Storage, user: User, verb: str, message: str) -> None:
    record(verb, actor=user, appcode=row.appcode.code, object=f"storage {row.appcode.code}", message=message)


@contextmanager
def _alone(row: Storage) -> Iterator[None]:
    """Raises Conflict where somebody else is at it; ends with the session of who died."""
    with advisory_lock(Lock.STORAGE, str(row.pk)) as held:
        if not held:
            raise Conflict("Somebody else is changing this storage just now; look again in a moment.")
        row.refresh_from_db()
        yield


@contextmanager
def _away() -> Iterator[None]:
    try:
        yield
    except StorageAway as error:
        raise Conflict(str(error)) from error
