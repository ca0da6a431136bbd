"""After a restore into another S3 server (portal/backup): the server has the objects, and everything else of it is new.

It knows none of the portal's users and keys, and gives every object a new time, by which versions are known. So the portal gets
new keys, people's keys stop until they are refreshed, and a version gets the digest of its files as they are now, if they are
those that it had: the restore leaves a list of the old times in an object of the bucket. Every step may be repeated; the list
goes last.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from typing import IO

from django.db import transaction

from datastores.actions import open_store
from datastores.files.versions import Row, rows
from datastores.listing import TRASH, Listing, listing_of
from datastores.models import Storage, Upload, Version
from datastores.storage import store
from datastores.storage.access import datastores_of
from portal.backup.buckets import MARK


def adopt(row: Storage) -> tuple[int, int]:
    """Makes a restored bucket the portal's own; how many versions are as they were, and how many are not. Raises StorageAway and
    DriverError."""
    store.make_bucket(row.bucket)
    for owner in ("people", "portal"):
        store.make_user(row.bucket, owner)
    _give_keys(row)
    with tempfile.TemporaryFile() as marked:
        if not store.fetch(row.bucket, MARK, marked):
            return 0, 0
        counted = [_count(version, marked) for version in _versions(row)]
    store.remove(row.bucket, MARK)
    return counted.count(True), counted.count(False)


def _give_keys(row: Storage) -> None:
    made = store.make_key(row.bucket, "portal")
    with transaction.atomic():
        for each in datastores_of(row):
            each.spec["access_key"], each.secret = made.access_key, made.secret_key
            each.save(update_fields=["spec", "secret", "changed_at"])
        row.own_key, row.access_key = made.access_key, None
        row.save(update_fields=["own_key", "access_key"])
        # Their parts were not restored.
        Upload.objects.filter(datastore__in=datastores_of(row)).delete()
    store.keep_key(row.bucket, "portal", made.access_key)
    store.keep_key(row.bucket, "people", None)


def _versions(row: Storage) -> Iterator[Version]:
    for each in datastores_of(row):
        yield from each.versions.select_related("datastore")


def _count(version: Version, marked: IO[bytes]) -> bool:
    """Whether its files were intact when the backup was made; then it gets the digest of the same files as they are now."""
    driver = open_store(version.datastore)
    now = listing_of(rows(driver, version.folder))
    if now.digest == version.digest:
        return True
    before = _before(version, marked)
    if before.digest != version.digest or (before.files, before.size) != (now.files, now.size):
        return False
    version.digest = now.digest
    version.save(update_fields=["digest"])
    return True


def _before(version: Version, marked: IO[bytes]) -> Listing:
    """What lay in the folder of the version when the backup was made."""
    prefix = "/".join(part for part in (str(version.datastore.spec["prefix"]), version.folder) if part)
    prefix = f"{prefix}/" if prefix else ""

    def found() -> Iterator[Row]:
        marked.seek(0)
        with gzip.open(marked, "rt") as lines:
            for line in lines:
                key, size, modified = json.loads(line)
                name = key.removeprefix(prefix)
                if key.startswith(prefix) and not key.endswith("/") and f"/{TRASH}/" not in f"/{name}":
                    yield name, size, modified

    return listing_of(found())
