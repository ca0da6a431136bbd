"""The trash of a datastore: what people remove is moved into a hidden folder beside the data, and may come back for seven days.

One way for all kinds that have files: a folder is renamed, of S3 each file is copied by the server and then deleted. Versions of
a bucket were refused: folders have none, and a bucket of somebody else's is not ours to switch them on in.

A `Removal` is written first and says what is to become of it; the store is told outside of any transaction, for a few seconds by
who asked and then by the sweep, and each step may be repeated (`Driver.carry`). So whoever dies loses and doubles nothing, and
nothing that lies there is ever replaced. The trash is not listed, searched, frozen or read by runs, and counts as used like all
that a store keeps.
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
from portal.text import readable

log = logging.getLogger(__name__)

# What is moved while somebody waits for the answer: for so many seconds, and nothing larger than this.
SECONDS, BYTES_AT_ONCE = 5.0, 2**30
# One turn of the sweep for one of them, until it begins no other file; and how long the store of one may take in all.
TURN, LONGEST = 30.0, 600.0
# Of one round of the sweep: how many, and for how long others are begun.
ROUND, ROUND_SECONDS = 20, 50.0
AGAIN = dt.timedelta(seconds=30)
# What a store would not take into the trash for so long stays where it was.
GIVEN_UP = dt.timedelta(hours=1)
# How much a store's clock and ours may differ.
CLOCKS = dt.timedelta(minutes=1)
State = Removal.State


@dataclass(frozen=True)
class Held:
    """What a trash has, in files and bytes."""

    removals: int
    files: int
    size: int


def removals(store: Datastore) -> QuerySet[Removal]:
    """Those that can still be seen, the newest first."""
    return Removal.objects.filter(datastore=store).select_related("removed_by").order_by("-pk")


def held(store: Datastore) -> Held:
    sums = Removal.objects.filter(datastore=store).aggregate(files=Sum("files"), size=Sum("bytes"))
    return Held(Removal.objects.filter(datastore=store).count(), sums["files"] or 0, sums["size"] or 0)


def remove_file(store: Datastore, path: str, *, acting_user: User, forever: bool = False) -> Removal | None:
    """None where there was none, and with `forever`, which removes it for good. Raises Conflict, DriverError."""
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
    """The same of everything in a folder. Raises Conflict for more than MOST_AT_ONCE files."""
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
    """Moves files, and folders with the size of what is in them, into the trash: now, or soon when they are large. Raises
    DriverError, where nothing has been moved of the one that could not be."""
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
    """Brings things back to where they were, or begins to; those that are not back yet. Raises Conflict, DriverError."""
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
    """All of the trash, or these, are to go for good; the sweep does it. How many they were. Raises Conflict for what is still on
    its way into the trash: it would stay where it was."""
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
    """What is older than seven days is to go, and what is not done yet goes on, that which was tried longest ago first, so that
    stores that do not answer keep nobody else from their turn. One at a time, however many workers there are."""
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
    # What a rule moves may be thousands of large files: people's wait for one of them at most, each time.
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
    """Brings one of them nearer to what it is to become. One at a time: who comes meanwhile leaves it to the first. Raises
    DriverError."""
    with advisory_lock(Lock.TRASH, str(pk)) as is_mine:
        row = Removal.objects.select_related("datastore__appcode").filter(pk=pk, settled=False).first()
        if row is None or not is_mine:
            return
        Removal.objects.filter(pk=pk).update(tried_at=timezone.now())
        try:
            with within(LONGEST):  # a page that waits says less
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
    """Whether nothing has been moved, as far as can be known now."""
    try:
        return next(open_store(row.datastore).walk(row.folder), None) is None
    except NotPossible:
        return True
    except DriverError:
        return False


def _gave_up(pk: int, error: DriverError) -> None:
    """Notes why it does not go on. What cannot be moved into the trash for an hour, or ever, stays where it is; what was moved is
    there to be restored."""
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
    """Reads it again; False when it is gone."""
    try:
        row.refresh_from_db(fields=["state", "settled", "files", "bytes", "trouble"])
    except Removal.DoesNotExist:
        return False
    return True
