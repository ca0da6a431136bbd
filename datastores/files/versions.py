"""Versions: the current contents of a folder of a datastore under a permanent name (`digits@2026-11-22`).

A version is the digest of a listing (../listing.py) and a promise: while it exists, the portal changes nothing in its
folder. Users with keys of their own still can, so a run that reads a version compares its copy with the version and
fails if they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from datastores.actions import open_store
from datastores.drivers.base import Driver
from datastores.files.contents import MOST_LOOKED_AT, Busy, at_rest, checked_path, record_of
from datastores.listing import listing_of
from datastores.models import Datastore, Removal, Version
from datastores.specs import VERSION
from portal.access import OPERATE, require
from portal.errors import Conflict, Invalid
from portal.models import User

MAX_VERSIONS = 1000
# Path, bytes, seconds since 1970.
Row = tuple[str, int, int]


def freeze(store: Datastore, name: str, folder: str, *, acting_user: User) -> Version:
    """Makes a version of everything in `folder`, at most MOST_LOOKED_AT files. Raises Invalid, Conflict, DriverError."""
    require(acting_user, store.appcode, OPERATE)
    folder = checked_path(folder)
    if not VERSION.fullmatch(name):
        raise Invalid.at("name", message="Use letters, digits, '.', '_' and '-', at most 40, for example 2026-11-22.")
    if store.kind != Datastore.Kind.S3:
        raise Conflict("Only what lies in S3 can be frozen: what is mounted is not compared when it is read.")
    try:
        with at_rest(store):
            found = settled(store, folder)
            with transaction.atomic():
                return keep(store, name, folder, found, acting_user=acting_user)
    except IntegrityError:
        raise Invalid.at("name", message=f"{store.name} has a version {name} already.") from None


def settled(store: Datastore, folder: str, most: int = MOST_LOOKED_AT) -> list[Row]:
    """The files in `folder` and below. Call it inside `at_rest`. Raises Invalid if there are none, Conflict for more
    than `most`, and DriverError."""
    _require_settled(store, folder)
    found = list(_few(open_store(store), folder, most))
    if not found:
        raise Invalid.at("path", message="Nothing lies there.")
    return found


def keep(store: Datastore, name: str, folder: str, found: Sequence[Row], *, acting_user: User) -> Version:
    """Makes the version in the caller's transaction; the caller guarantees that `found` is current and does not
    change. Raises Conflict, and IntegrityError for a name that is taken."""
    if store.versions.count() >= MAX_VERSIONS:
        raise Conflict(f"{store.name} has {MAX_VERSIONS} versions; remove one that is not needed.")
    listing = listing_of(found)
    made = Version.objects.create(
        datastore=store,
        name=name,
        folder=folder,
        digest=listing.digest,
        files=listing.files,
        bytes=listing.size,
        created_by=acting_user,
    )
    where = f" of {folder}" if folder else ""
    record_of("datastore.frozen", store, acting_user, f"Version {name}{where}: {listing.files:,} files.")
    return made


@transaction.atomic
def thaw(version: Version, *, acting_user: User) -> None:
    """Deletes a version; its files stay and may be changed again. Raises Conflict if another row was made from it."""
    require(acting_user, version.datastore.appcode, OPERATE)
    try:
        version.delete()
    except ProtectedError as error:
        users = ", ".join(sorted(str(each) for each in error.protected_objects))
        raise Conflict(f"{version} has the files of {users}; delete that first.") from None
    record_of("datastore.thawed", version.datastore, acting_user, f"Version {version.name} is removed; its files stay.")


def _require_settled(store: Datastore, folder: str) -> None:
    """Raises Busy for files that are being moved into or out of the trash: they would change the version later."""
    moving = store.removals.filter(settled=False).exclude(state=Removal.State.EMPTIED)
    if path := next((row.path for row in moving if Version(folder=folder).holds(row.path)), ""):
        raise Busy(f"{path} is on its way into the trash, or back; try again when it is there.")


def rows(driver: Driver, folder: str) -> Iterator[Row]:
    """Yields all files in a folder and below as rows of a listing, fetched as they are consumed. Raises DriverError."""
    start = len(folder) + 1 if folder else 0
    for entry in driver.walk(folder):
        yield entry.path[start:], entry.size, int(entry.modified.timestamp()) if entry.modified else 0


def _few(driver: Driver, folder: str, most: int) -> Iterator[Row]:
    for count, row in enumerate(rows(driver, folder), 1):
        if count > most:
            raise Conflict(f"There are more than {most:,} files, and no version is made of so many here.")
        yield row
