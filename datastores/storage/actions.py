"""What people do to the object storage of their appcode: switch it on, refresh its keys, stop them.

The row is written first and holds the desired state. The store is changed outside of any transaction, and each step can
be repeated: after a crash the next request completes it. A key that was made but not recorded opens nothing, because
the door checks the row, and the next request deletes it. An advisory lock lets one request at a time work on a bucket;
it ends with its database session.
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
    """The storage and, if it has none yet, its first keys. Raises Conflict."""
    require(acting_user, appcode, OPERATE)
    _check(appcode)
    row = _row(appcode, acting_user)
    with _alone(row), _away():
        _make(row.bucket)
        if datastore_of(row) is None:
            _give_portal(row, acting_user)
        # Stopped keys stay stopped until they are refreshed.
        return row, None if row.refreshed_at else _give_people(row, acting_user, "Keys made")


def prepare(code: str) -> tuple[str, KeyPair]:
    """Makes a bucket and the portal's key to it for an appcode that is created later, in the transaction that calls
    `adopt`. It can be repeated after a crash. Raises Conflict."""
    _check_there()
    bucket = bucket_of(code)
    with _away():
        _make(bucket)
        return bucket, store.make_key(bucket, "portal")


def adopt(appcode: Appcode, made: KeyPair, *, acting_user: User) -> None:
    """Switches the prepared storage on, in the caller's transaction. Users' keys are made when they request them."""
    _own(_row(appcode, acting_user), made, acting_user)


def refresh_keys(row: Storage, *, acting_user: User) -> KeyPair:
    """Makes new keys; the old ones stop at once. Raises Conflict."""
    require(acting_user, row.appcode, OPERATE)
    _check(row.appcode)
    with _alone(row), _away():
        store.start()
        return _give_people(row, acting_user, "Keys refreshed")


def stop_keys(row: Storage, *, acting_user: User) -> None:
    """Stops users' keys until they are refreshed; runs go on. The door knows it even if the store cannot be changed
    now; an external store has no door of ours before it and must be changed. Raises Conflict."""
    require(acting_user, row.appcode, OPERATE)
    with _alone(row):
        if settings.STORAGE["proof"]:
            _stopped(row, acting_user)
            with suppress(StorageAway):  # the door already refuses the key; it is deleted when keys are made again
                store.keep_key(row.bucket, "people", None)
            return
        with _away():
            store.keep_key(row.bucket, "people", None)
        _stopped(row, acting_user)


def bucket_of(code: str) -> str:
    """An appcode's bucket name: its code, if S3 accepts all its characters, else a variant with a hash."""
    name: str = settings.STORAGE["bucket_prefix"] + code.replace("_", "-")
    if name == code and len(name) <= 63 and name != logs_bucket():
        return name
    return f"{name[:56].rstrip('-')}-{hashlib.sha256(code.encode()).hexdigest()[:6]}"


def logs_bucket() -> str:
    """The portal's own bucket, for task logs if no other archive is configured."""
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
    # From here on the door refuses the old key; after the next line the store does, too.
    store.keep_key(row.bucket, "people", made.access_key)
    return made


def _give_portal(row: Storage, user: User) -> None:
    """Creates the datastore of the bucket with the portal's key. If another datastore has that key already, both share
    it; unused keys are deleted."""
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
    """Updates the server of the object storage's datastores: on one machine the port may change between starts, and an
    external server may move. Runs after each `migrate`."""
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
    """Raises Conflict if another request is changing the storage. The lock ends with the database session."""
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
