"""The trash of a datastore: removed files are moved to a hidden folder beside the data and can be restored for seven days.

It works the same for all kinds with files: a folder is renamed; in S3 the server copies each file, and then it is deleted. We
decided against bucket versioning: folders have none, and we must not switch it on in other people's buckets.

A `Removal` row is written first and states the goal. Files are moved outside of any transaction, for a few seconds in the
request and then by the sweep, and each step can be repeated (`Driver.carry`). So a crash loses and duplicates nothing, and no
existing file is ever replaced. The trash is not listed, searched, versioned or read by runs, but counts as used space.
"""

from __future__ import annotations

import datetime as dt
import logging
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from django.db import transaction
from django.db.models import F, Q, QuerySet, Sum
from django.utils import timezone

from datastores.actions import open_store
from datastores.drivers.base import Driver, DriverError, Entry, NotPossible, NotThere
from datastores.drivers.patience import within
from datastores.files import contents
from datastores.models import TRASH_KEPT, Datastore, Removal
from portal.access import OPERATE, require
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict, Invalid
from portal.models import User
from portal.text.words import readable

log = logging.getLogger(__name__)

# Limits of what a request moves itself: seconds, and bytes of one removal.
SECONDS, BYTES_AT_ONCE = 5.0, 2**30
# Seconds after which a turn of the sweep starts no further file, and seconds for all requests to the store in one turn.
TURN, LONGEST = 30.0, 600.0
# Removals per round of the sweep, and seconds during which a round starts further ones.
ROUND, ROUND_SECONDS = 20, 50.0
AGAIN = dt.timedelta(seconds=30)
# Removals that the store refused for this long stay in place.
GIVEN_UP = dt.timedelta(hours=1)
# Tolerated difference between a store's clock and ours.
CLOCKS = dt.timedelta(minutes=1)
State = Removal.State


@dataclass(frozen=True)
class Held:
    """The contents of a trash: removals, files and bytes."""

    removals: int
    files: int
    size: int


def removals(store: Datastore) -> QuerySet[Removal]:
    """Removals that are still visible, newest first."""
    return Removal.objects.filter(datastore=store).select_related("removed_by").order_by("-pk")


def held(store: Datastore) -> Held:
    sums = Removal.objects.filter(datastore=store).aggregate(files=Sum("files"), size=Sum("bytes"))
    return Held(Removal.objects.filter(datastore=store).count(), sums["files"] or 0, sums["size"] or 0)


def remove_file(store: Datastore, path: str, *, acting_user: User, forever: bool = False) -> Removal | None:
    """Moves a file to the trash; `forever` deletes it. Returns None with `forever` and if there was no file. Raises
    Conflict, DriverError."""
    require(acting_user, store.appcode, OPERATE)
    path = contents.checked_path(path)
    contents.require_changeable(store, path)
    driver = open_store(store)
    try:
        found = driver.look(path)
    except NotThere:
        return None
    with contents.changing(store, path):
        if forever:
            driver.delete(path)
            contents.record_of("datastore.file-removed", store, acting_user, f"Removed {path} for good.")
            return None
        made = remove(store, [found], acting_user=acting_user)
    contents.record_of("datastore.file-removed", store, acting_user, f"Removed {path}.")
    return _only(made)


def remove_folder(store: Datastore, folder: str, *, acting_user: User, forever: bool = False) -> Removal | None:
    """The same for a folder with its contents. Raises Conflict for more than MOST_AT_ONCE files."""
    require(acting_user, store.appcode, OPERATE)
    folder = contents.checked_path(folder, field="folder")
    if not folder:
        raise Invalid.at("folder", message="A datastore is not emptied by one click; remove its folders one by one.")
    contents.require_changeable(store, folder)
    amount = contents.amount(store, folder)
    if amount.more:
        raise Conflict(f"{folder} has more than {contents.MOST_AT_ONCE:,} files; remove it by an S3 client.")
    with contents.changing(store, folder):
        if forever or not amount.files:
            count = open_store(store).delete_folder(folder)
            message = f"Removed {folder} with {count} files for good."
            contents.record_of("datastore.folder-removed", store, acting_user, message, files=count)
            return None
        made = remove(store, [Entry("", folder, is_folder=True, size=amount.size)], acting_user=acting_user)
    message = f"Removed {folder} with {amount.files} files."
    contents.record_of("datastore.folder-removed", store, acting_user, message, files=amount.files)
    return _only(made)


def remove(
    store: Datastore, found: Sequence[Entry], *, acting_user: User | None, cause: str = "", seconds: float | None = None
) -> list[Removal]:
    """Moves files, and folders with their total size, into the trash: now, or later if they are large. Raises
    DriverError, if nothing was moved of the one that failed."""
    made, until = [], time.monotonic() + (SECONDS if seconds is None else seconds)
    for entry in found:
        facts = {"path": entry.path, "is_folder": entry.is_folder, "bytes": entry.size, "cause": cause}
        row = Removal.objects.create(
            datastore=store, remote=secrets.token_hex(8), removed_by=acting_user, files=not entry.is_folder, **facts
        )
        made.append(row)
        left = until - time.monotonic()
        if entry.size > BYTES_AT_ONCE or left <= 0:
            continue
        try:
            carry_on(row.pk, left)
        except DriverError:
            if _is_empty(row):
                row.delete()
            raise
    return [row for row in made if _fresh(row)]


def restore(store: Datastore, ids: Collection[int], *, acting_user: User) -> list[Removal]:
    """Restores removals, or begins to; returns those that are not back yet. Raises Conflict, DriverError."""
    require(acting_user, store.appcode, OPERATE)
    rows = list(removals(store).filter(pk__in=ids).exclude(state=State.EMPTIED).order_by("pk"))
    if not rows:
        raise Conflict("There is nothing to restore: it is where it was, or gone for good.")
    with contents.changing(store, *(row.path for row in rows)):
        return _restore(store, rows, acting_user)


def _restore(store: Datastore, rows: list[Removal], acting_user: User) -> list[Removal]:
    wanted = Removal.objects.filter(pk__in=[row.pk for row in rows]).exclude(state=State.EMPTIED)
    wanted.update(state=State.RESTORED, settled=False, trouble="", tried_at=None)
    until = time.monotonic() + SECONDS
    for row in rows:
        contents.record_of("datastore.restored", store, acting_user, f"Restored {row.path} from the trash.")
        if row.bytes <= BYTES_AT_ONCE and time.monotonic() < until:
            carry_on(row.pk, until - time.monotonic())
    return [row for row in rows if _fresh(row)]


@transaction.atomic
def empty(store: Datastore, ids: Collection[int] | None = None, *, acting_user: User) -> int:
    """Schedules all of the trash, or these removals, for deletion by the sweep; returns how many. Raises Conflict for
    removals that are still being moved into the trash: their files would stay in place."""
    require(acting_user, store.appcode, OPERATE)
    rows = removals(store).exclude(state=State.EMPTIED)
    rows = rows if ids is None else rows.filter(pk__in=ids)
    if row := rows.filter(state=State.REMOVED, settled=False, trouble="").first():
        raise Conflict(f"{row.path} is still on its way into the trash; empty it when it is there.")
    count = rows.order_by().update(state=State.EMPTIED, settled=False, trouble="", tried_at=None)
    if count:
        contents.record_of("datastore.emptied", store, acting_user, f"{count} in the trash removed for good.")
    return count


def sweep() -> None:
    """Expires removals after seven days and continues unfinished ones, least recently tried first, so that silent
    stores do not delay others. An advisory lock lets one worker at a time do it."""
    with advisory_lock(Lock.TRASH) as is_mine:
        if is_mine:
            _sweep()


def _sweep() -> None:
    now = timezone.now()
    old = Removal.objects.filter(removed_at__lt=now - TRASH_KEPT, state=State.REMOVED, settled=True)
    old = Removal.objects.filter(pk__in=old.order_by("removed_at").values("pk")[: ROUND * 50])
    old.update(state=State.EMPTIED, settled=False, tried_at=None)
    due = Q(trouble="") | Q(tried_at=None) | Q(tried_at__lt=now - AGAIN)
    waiting = Removal.objects.filter(due, settled=False).order_by(F("tried_at").asc(nulls_first=True), "pk")
    # A rule may move thousands of large files: alternate with removals by people, so that these wait for one of them at most.
    by_rules = Q(state=State.REMOVED) & ~Q(cause="")
    turns = zip_longest(
        *(some.values_list("pk", flat=True)[:ROUND] for some in (waiting.exclude(by_rules), waiting.filter(by_rules)))
    )
    until = time.monotonic() + ROUND_SECONDS
    for pk in [pk for both in turns for pk in both if pk is not None][:ROUND]:
        if time.monotonic() > until:
            return
        try:
            carry_on(pk, TURN)
        except DriverError as error:
            log.warning("what was removed cannot be moved (%s): %s", pk, error)


def carry_on(pk: int, seconds: float) -> None:
    """Continues one removal. A second caller returns at once while the first works on it. Raises DriverError."""
    with advisory_lock(Lock.TRASH, str(pk)) as is_mine:
        row = Removal.objects.select_related("datastore__appcode").filter(pk=pk, settled=False).first()
        if row is None or not is_mine:
            return
        Removal.objects.filter(pk=pk).update(tried_at=timezone.now())
        try:
            with within(LONGEST):  # requests have shorter limits of their own
                _carry_on(row, open_store(row.datastore), seconds)
        except DriverError as error:
            _gave_up(pk, error)
            raise


def _carry_on(row: Removal, driver: Driver, seconds: float) -> None:
    own = Removal.objects.filter(pk=row.pk, state=row.state)
    if row.state == State.EMPTIED:
        _remove_folder(driver, row.folder)
        own.delete()
        return
    if row.state == State.REMOVED:
        before = row.removed_at + CLOCKS
        carried = driver.carry(row.path, row.place, is_folder=row.is_folder, before=before, seconds=seconds)
    else:
        carried = driver.carry(row.place, row.path, is_folder=row.is_folder, before=None, seconds=seconds)
    if not carried.is_over:
        return
    sizes = [entry.size for entry in driver.walk(row.folder)]
    if not sizes:
        _remove_folder(driver, row.folder)
        own.delete()
        return
    trouble = ""
    if row.state == State.RESTORED:
        trouble = f"{len(sizes)} file{'s'[: len(sizes) != 1]} stay in the trash: something else lies there now."
    own.update(state=State.REMOVED, settled=True, files=len(sizes), bytes=sum(sizes), trouble=trouble)


def _remove_folder(driver: Driver, folder: str) -> None:
    try:
        driver.delete_folder(folder)
    except NotThere:
        return


def _is_empty(row: Removal) -> bool:
    """True if nothing has been moved, as far as is known now."""
    try:
        return next(open_store(row.datastore).walk(row.folder), None) is None
    except NotPossible:
        return True
    except DriverError:
        return False


def _gave_up(pk: int, error: DriverError) -> None:
    """Records the error. A removal that could not be moved for GIVEN_UP is dropped and its files stay; if a part was
    moved, that part can be restored."""
    rows = Removal.objects.filter(pk=pk)
    rows.update(trouble=readable(str(error)))
    if row := rows.filter(state=State.REMOVED, removed_at__lt=timezone.now() - GIVEN_UP).first():
        if _is_empty(row):
            row.delete()
        else:
            rows.update(settled=True)


def _only(rows: Sequence[Removal]) -> Removal | None:
    return rows[0] if rows else None


def _fresh(row: Removal) -> bool:
    """Reloads the row; False if it was deleted."""
    try:
        row.refresh_from_db(fields=["state", "settled", "files", "bytes", "trouble"])
    except Removal.DoesNotExist:
        return False
    return True
