"""Large files in parts, so that a lost connection or a closed laptop costs one part: begun, sent part by part, finished.

If the client can reach the store, parts go directly to it: by URLs that are valid for some minutes, for one part of one upload,
of exactly its size. Then the store reports which parts it has; the portal makes the file from them, as for other uploads.

The store keeps the parts and the database lists them, so a client that sends the same file again resumes without
remembering anything. Uploads idle for a day are dropped with their parts. A crash between the store's response and our
commit means that a part is sent again or a file finished again; only a crash while an upload begins leaves parts
without a row, which a bucket's own rule for incomplete uploads removes.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from contextlib import suppress
from math import ceil

from django.db import IntegrityError
from django.db.models import BigIntegerField, Count, ExpressionWrapper, F, QuerySet
from django.db.models.functions import Least
from django.utils import timezone

from datastores.actions import open_store
from datastores.drivers.base import Driver, DriverError, Entry, NotPossible, NotThere, Stream
from datastores.drivers.patience import within
from datastores.files import contents
from datastores.models import Datastore, Upload, UploadPart
from portal.access import OPERATE, require
from portal.errors import Conflict, Invalid
from portal.models import User

log = logging.getLogger(__name__)

MIB = 2**20
# S3 allows 10,000 parts. One part is in memory while it is stored.
LEAST_PART, LARGEST_PART, MAX_PARTS = 8 * MIB, 64 * MIB, 10_000
MAX_OPEN = 200
# Validity of a part's URL in seconds, and URLs per request.
URL_SECONDS, MAX_URLS = 15 * 60, 100
GIVEN_UP, FORGOTTEN = dt.timedelta(days=1), dt.timedelta(days=8)
# Tolerated difference between a store's clock and ours. S3 dates a file by the start of its upload.
CLOCKS = dt.timedelta(minutes=1)
# Uploads dropped per round, and seconds for the store of each.
ROUND, ABORT_SECONDS = 100, 20


def part_size(size: int) -> int:
    """The bytes of each part of a file, except the last."""
    return max(LEAST_PART, ceil(size / MAX_PARTS / MIB) * MIB)


def count_of(upload: Upload) -> int:
    """The number of parts; an empty file has one."""
    return max(1, ceil(upload.size / upload.part_size))


def size_of(upload: Upload, number: int) -> int:
    """The bytes of part `number`, from 1."""
    return min(upload.part_size, upload.size - (number - 1) * upload.part_size)


def begin(store: Datastore, path: str, size: int, fingerprint: str, *, acting_user: User) -> Upload:
    """Begins an upload, or resumes the user's earlier one of the same path, size and fingerprint. Raises Invalid,
    Conflict for too many uploads to a datastore, DriverError."""
    require(acting_user, store.appcode, OPERATE)
    path = contents.checked_new(path, size)
    contents.require_changeable(store, path)
    if part_size(size) > LARGEST_PART:
        raise Invalid.at(
            "size", message=f"A file has at most {LARGEST_PART * MAX_PARTS // 2**30} GiB here; use an S3 client."
        )
    own = Upload.objects.filter(datastore=store, created_by=acting_user)
    known = own.filter(path=path, size=size, fingerprint=fingerprint).order_by("-pk").first()
    if known:
        return known
    if Upload.objects.filter(datastore=store).count() >= MAX_OPEN:
        raise Conflict(f"{MAX_OPEN} uploads to {store.name} are not finished; finish or drop some of them first.")
    remote = open_store(store).begin(path)
    facts = {"part_size": part_size(size), "fingerprint": fingerprint, "remote": remote, "created_by": acting_user}
    return Upload.objects.create(datastore=store, path=path, size=size, **facts)


def unfinished(store: Datastore) -> QuerySet[Upload]:
    """Unfinished uploads to a datastore, newest first; `stored` is roughly how many bytes have arrived. One query."""
    parts = ExpressionWrapper(F("part_size") * Count("parts"), BigIntegerField())
    return (
        Upload.objects.filter(datastore=store)
        .select_related("created_by")
        .annotate(stored=Least(parts, F("size")))
        .order_by("-pk")
    )


def add_part(upload: Upload, number: int, stream: Stream, size: int, *, acting_user: User) -> None:
    """Stores part `number` (from 1), replacing it if sent before. Raises Invalid, NotThere, DriverError."""
    require(acting_user, upload.datastore.appcode, OPERATE)
    count = count_of(upload)
    if not 1 <= number <= count:
        raise Invalid.at("part", message=f"This upload has the parts 1 to {count}.")
    start, wanted = (number - 1) * upload.part_size, size_of(upload, number)
    if size != wanted:
        raise Invalid.at("part", message=f"Part {number} has {wanted:,} bytes, and {size:,} are sent.")
    data = bytearray()
    while len(data) < size:
        more = stream.read(min(MIB, size - len(data)))
        if not more:
            raise DriverError("The upload was cut off; this part was not stored.")
        data += more
    try:
        etag = open_store(upload.datastore).write_part(upload.path, upload.remote, number, start, bytes(data))
    except NotThere:
        # The store's own rule has dropped the upload; the client begins again.
        upload.delete()
        raise
    try:
        UploadPart.objects.update_or_create(upload=upload, number=number, defaults={"etag": etag})
    except IntegrityError as error:
        raise NotThere("This upload was dropped meanwhile.") from error
    Upload.objects.filter(pk=upload.pk).update(touched_at=timezone.now())


def urls(upload: Upload, numbers: Sequence[int], *, acting_user: User) -> dict[int, str]:
    """URLs at the store for these parts; also records which parts the store has by now. Raises Invalid, Conflict as
    `begin`, NotPossible if the store has no URLs, NotThere, DriverError."""
    require(acting_user, upload.datastore.appcode, OPERATE)
    contents.require_changeable(upload.datastore, upload.path)
    if not all(1 <= number <= count_of(upload) for number in numbers):
        raise Invalid.at("parts", message=f"This upload has the parts 1 to {count_of(upload)}.")
    driver = open_store(upload.datastore)
    made = {n: driver.part_url(upload.path, upload.remote, n, size_of(upload, n), URL_SECONDS) for n in numbers}
    try:
        _note_parts(upload, driver)
    except NotThere:
        upload.delete()
        raise
    Upload.objects.filter(pk=upload.pk).update(touched_at=timezone.now())
    return made


def _note_parts(upload: Upload, driver: Driver) -> None:
    """Records parts that were sent directly to the store, from the first missing number on."""
    known = set(upload.parts.values_list("number", flat=True))
    first = next(number for number in range(1, MAX_PARTS + 2) if number not in known)
    found = driver.parts(upload.path, upload.remote, first - 1)
    count = count_of(upload)
    rows = [
        UploadPart(upload=upload, number=number, etag=etag)
        for number, (size, etag) in found.items()
        if number <= count and size == size_of(upload, number)
    ]
    try:
        UploadPart.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["upload", "number"], update_fields=["etag"]
        )
    except IntegrityError as error:
        raise NotThere("This upload was dropped meanwhile.") from error


def _missing(upload: Upload) -> list[int]:
    known = set(upload.parts.values_list("number", flat=True))
    return [number for number in range(1, count_of(upload) + 1) if number not in known]


def finish(upload: Upload, *, acting_user: User) -> Entry:
    """Makes the file from its parts. Raises Conflict if parts are missing or a version holds the path, NotThere, DriverError."""
    require(acting_user, upload.datastore.appcode, OPERATE)
    driver = open_store(upload.datastore)
    try:
        if _missing(upload):
            with suppress(NotPossible):
                _note_parts(upload, driver)
        if missing := _missing(upload):
            raise Conflict(f"{len(missing)} parts are missing; the first of them is part {missing[0]}.")
        etags = list(upload.parts.order_by("number").values_list("etag", flat=True))
        with contents.changing(upload.datastore, upload.path):
            driver.finish(upload.path, upload.remote, etags)
    except NotThere:
        if not _made(driver, upload):
            upload.delete()
            raise
    if Upload.objects.filter(pk=upload.pk).delete()[0]:
        contents.record_stored(upload.datastore, upload.path, upload.size, acting_user)
    return driver.look(upload.path)


def _made(driver: Driver, upload: Upload) -> bool:
    """True if an earlier call finished it but could not commit. An older file at that path means that the store has
    dropped the upload."""
    try:
        found = driver.look(upload.path)
    except NotThere:
        return False
    return found.size == upload.size and found.modified is not None and found.modified > upload.created_at - CLOCKS


def drop(upload: Upload, *, acting_user: User) -> None:
    """Drops the upload with its parts. Raises DriverError."""
    require(acting_user, upload.datastore.appcode, OPERATE)
    _abort(upload)


def give_up() -> None:
    """Drops uploads that were idle for a day. A store that fails is retried for a week."""
    now = timezone.now()
    old = Upload.objects.select_related("datastore__appcode").filter(touched_at__lt=now - GIVEN_UP)
    # Random order, so that silent stores do not delay others.
    for upload in old.order_by("?")[:ROUND]:
        try:
            with within(ABORT_SECONDS):
                _abort(upload)
        except DriverError as error:
            kept = upload.touched_at > now - FORGOTTEN
            log.warning("the parts of upload %s cannot be removed%s: %s", upload.pk, "" if kept else ", ever", error)
            if not kept or isinstance(error, NotPossible):
                upload.delete()


def _abort(upload: Upload) -> None:
    open_store(upload.datastore).abort(upload.path, upload.remote)
    upload.delete()
