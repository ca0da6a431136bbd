"""Storing, copying and counting files of a datastore. The Event log records who did it; the driver does the work.

Storage and database cannot change atomically. Storage changes first, so that no event reports something that did not happen.
"""

from __future__ import annotations

import contextvars
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice

from django.conf import settings
from django.core.files import File
from django.db import transaction
from zipstream import ZipStream

from datastores.actions import open_store
from datastores.drivers.base import Driver, Entry, NotThere, Stream
from datastores.models import Datastore
from datastores.specs import relative_path
from portal.access import OPERATE, require
from portal.api.problems import Unavailable
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict, Invalid
from portal.events import record
from portal.models import User
from portal.text.words import readable

# Limit for operations on a folder's files in one request; larger folders need an S3 client.
MOST_AT_ONCE = 10_000
# Seconds for removing a folder: one S3 request per thousand files.
REMOVE_SECONDS = 60
# Files that one search or sum reads: one S3 request per thousand.
MOST_LOOKED_AT = 50_000
# Names that a search in one folder reads, and names per request.
MOST_NAMES, NAMES_AT_ONCE = 10_000, 1_000
# Small files stored in parallel.
TOGETHER = 8
# Seconds for which making a version waits for running uploads.
REST_SECONDS = 20


@dataclass(frozen=True)
class Amount:
    """Number and total bytes of files in a folder. `more`: counting stopped early."""

    files: int
    size: int
    more: bool


@dataclass(frozen=True)
class Matches:
    """What a search found. `looked`: how many names it read. `stopped`: it read no further. `more`: there are more matches."""

    entries: tuple[Entry, ...]
    looked: int
    stopped: bool
    more: bool

    @property
    def complete(self) -> bool:
        return not (self.stopped or self.more)


@dataclass(frozen=True)
class Sizes:
    """The contents of a folder and of each folder directly in it."""

    all: Amount
    folders: dict[str, Amount]


def checked_path(path: str, *, field: str = "path") -> str:
    """A valid path inside a datastore. Raises Invalid at `field`."""
    try:
        return relative_path(path)
    except ValueError as error:
        raise Invalid.at(field, message=str(error)) from None


def checked_new(path: str, size: int) -> str:
    """The path at which a file of `size` bytes may be stored. Raises Invalid."""
    path = checked_path(path)
    if not path:
        raise Invalid.at("path", message="Give the file a name.")
    if size > settings.UPLOAD_MAX_BYTES:
        largest = settings.UPLOAD_MAX_BYTES // 2**20
        raise Invalid.at("size", message=f"A file sent through the portal has at most {largest} MiB; use an S3 client.")
    return path


def require_changeable(store: Datastore, *paths: str) -> None:
    """Raises Conflict if one of these files or folders belongs to a version, which must not change."""
    for version in store.versions.all():
        if path := next((path for path in paths if version.holds(path)), ""):
            raise Conflict(
                f"{path} belongs to the version {store.name}@{version.name}, which stays as it is; store it in another folder, "
                "or remove the version first."
            )


class Busy(Conflict):
    """A conflict that passes by itself."""


@contextmanager
def changing(store: Datastore, *paths: str) -> Iterator[None]:
    """Guards changes at `paths` against a version being made meanwhile. Raises Conflict as `require_changeable`, and
    Unavailable while one is being made."""
    with advisory_lock(Lock.FILES, str(store.pk), shared=True) as held:
        if not held:
            raise Unavailable(f"A version of {store.name} is made just now; try again in a few seconds.")
        require_changeable(store, *paths)
        yield


@contextmanager
def at_rest(store: Datastore) -> Iterator[None]:
    """The counterpart of `changing`: waits for running changes and blocks new ones. If a process dies, its lock ends
    with its session. Raises Busy if a change takes too long."""
    with advisory_lock(Lock.FILES, str(store.pk), seconds=REST_SECONDS) as held:
        if not held:
            raise Busy(f"Files are stored in {store.name} just now; try again when they are.")
        yield


def store_file(store: Datastore, path: str, stream: Stream, size: int, *, acting_user: User) -> None:
    """Stores `size` bytes, replacing a file of that name. Raises Invalid, DriverError."""
    require(acting_user, store.appcode, OPERATE)
    path = checked_new(path, size)
    require_changeable(store, path)
    open_store(store).upload(path, stream, size, appears=changing(store, path))
    record_stored(store, path, size, acting_user)


def store_files(store: Datastore, files: Mapping[str, File[bytes]], *, acting_user: User) -> None:
    """Stores small files by path, each atomically, replacing files of the same names; one event covers all. Raises
    Invalid before any is stored; DriverError if one failed, after trying all others."""
    require(acting_user, store.appcode, OPERATE)
    wanted = {checked_new(path, file.size): file for path, file in files.items()}
    stored = list[str]()

    def one(path: str) -> None:
        driver.upload(path, wanted[path], wanted[path].size)
        stored.append(path)

    driver = open_store(store)
    with changing(store, *wanted), ThreadPoolExecutor(TOGETHER) as pool:
        # Run in the caller's context, which holds the time limit of servers.
        tried = [pool.submit(contextvars.copy_context().run, one, path) for path in wanted]
    if stored:
        size = sum(wanted[path].size for path in stored)
        folder = posixpath.commonpath(stored) if len(stored) > 1 else stored[0]
        said = f"{len(stored):,} files{f' in {folder}' if folder else ''}" if len(stored) > 1 else folder
        record_of("datastore.file-stored", store, acting_user, f"Stored {said}.", size=size, files=len(stored))
    for each in tried:
        each.result()


def record_stored(store: Datastore, path: str, size: int, user: User) -> None:
    record_of("datastore.file-stored", store, user, f"Stored {path}.", size=size)


def copy_file(store: Datastore, path: str, to: str, *, acting_user: User, move: bool) -> Entry:
    """Copies `path` to `to`, or moves it with `move`. Raises Invalid at `copy` or `move`, Conflict if the target
    exists, DriverError."""
    require(acting_user, store.appcode, OPERATE)
    field = "move" if move else "copy"
    path, to = checked_path(path), checked_path(to, field=field)
    if not to or to == path:
        raise Invalid.at(field, message="Give it another name.")
    driver = open_store(store)
    with changing(store, *([path, to] if move else [to])):
        try:
            driver.look(to)
        except NotThere:
            pass
        else:
            raise Conflict(f"There is a file {to} already; remove it first, or choose another name.")
        (driver.move if move else driver.copy)(path, to)
    verb, said = ("datastore.file-moved", "Moved") if move else ("datastore.file-copied", "Copied")
    record_of(verb, store, acting_user, f"{said} {path} to {to}.")
    return driver.look(to)


def amount(store: Datastore, folder: str) -> Amount:
    """Counts the files in `folder` and below. Raises DriverError."""
    files = list(islice((entry.size for entry in open_store(store).walk(folder)), MOST_AT_ONCE + 1))
    return Amount(min(len(files), MOST_AT_ONCE), sum(files), len(files) > MOST_AT_ONCE)


def find(store: Datastore, folder: str, words: str, limit: int) -> Matches:
    """Files in `folder` and below whose relative path contains every word, ignoring case, ordered by path. Stops after `limit`
    matches or MOST_LOOKED_AT files. Raises DriverError."""
    start = len(folder) + 1 if folder else 0
    matching, looked = [], 0
    for looked, entry in enumerate(open_store(store).walk(folder), 1):
        if _has(entry.path[start:], words):
            matching.append(entry)
        if len(matching) > limit or looked == MOST_LOOKED_AT:
            break
    entries = tuple(sorted(matching[:limit], key=lambda entry: entry.path))
    return Matches(entries, looked, looked == MOST_LOOKED_AT, len(matching) > limit)


def find_here(store: Datastore, folder: str, words: str, limit: int) -> Matches:
    """Files and folders directly in `folder` whose name contains every word, ignoring case: at most `limit`, among the first
    MOST_NAMES names. Names that start with `words` are found wherever they stand. Raises DriverError."""
    driver = open_store(store)
    first = driver.list(folder, search=words, limit=limit + 1)
    matching, looked, cursor = {entry.path: entry for entry in first.entries}, 0, ""
    while True:
        listing = driver.list(folder, cursor=cursor, limit=NAMES_AT_ONCE)
        looked, cursor = looked + len(listing.entries), listing.cursor
        matching |= {entry.path: entry for entry in listing.entries if _has(entry.name, words)}
        if not cursor or looked >= MOST_NAMES or len(matching) > limit:
            break
    entries = sorted(matching.values(), key=lambda entry: (not entry.is_folder, entry.name))
    return Matches(tuple(entries[:limit]), looked, bool(cursor), len(matching) > limit)


def _has(text: str, words: str) -> bool:
    return all(word in text.casefold() for word in words.casefold().split())


def sizes(store: Datastore, folder: str) -> Sizes:
    """Counts at most MOST_LOOKED_AT files. Raises DriverError."""
    start = len(folder) + 1 if folder else 0
    files, size, looked = Counter[str](), Counter[str](), 0
    for looked, entry in enumerate(open_store(store).walk(folder), 1):
        below, inside, _ = entry.path[start:].partition("/")
        name = below if inside else ""
        files[name] += 1
        size[name] += entry.size
        if looked == MOST_LOOKED_AT:
            break
    more = looked == MOST_LOOKED_AT
    folders = {name: Amount(files[name], size[name], more) for name in sorted(files) if name}
    return Sizes(Amount(files.total(), size.total(), more), folders)


def archive(store: Datastore, paths: Sequence[str]) -> ZipStream:
    """An archive of files and folders (trailing slash; "/" is all), read while it is sent: an iterable of bytes with `len()`.
    It is uncompressed, so that its size is known in advance. Names are relative to the first path's parent folder. Raises
    NotThere, and Conflict for more than MOST_AT_ONCE files or for names that would be unpacked outside of the target folder."""
    driver = open_store(store)
    found = (driver.walk(path.strip("/")) if path.endswith("/") else iter([driver.look(path)]) for path in paths)
    files = list(islice(chain.from_iterable(found), MOST_AT_ONCE + 1))
    if len(files) > MOST_AT_ONCE:
        raise Conflict(f"These are more than {MOST_AT_ONCE:,} files; read them by an S3 client.")
    if not files:
        raise NotThere("There is no file in this folder.")
    packed, above = ZipStream(sized=True), paths[0].strip("/").rpartition("/")[0]
    for entry in files:
        pack(packed, driver, entry.path, entry.path.removeprefix(f"{above}/" if above else ""), entry.size)
    return packed


def pack(packed: ZipStream, driver: Driver, path: str, name: str, size: int) -> None:
    """Adds the file at `path` to an archive, as `name`. Raises Conflict."""
    try:
        # Windows also treats a backslash as a separator.
        relative_path(path)
        relative_path(path.replace("\\", "/"))
    except ValueError:
        raise Conflict(f"An archive must not have a file of this name: {readable(path, 200)}") from None
    packed.add(_bytes(driver, path), name, size=size)


def _bytes(driver: Driver, path: str) -> Iterator[bytes]:
    """A generator, so that a log is opened only when its turn comes."""
    yield from driver.open(path).chunks


@transaction.atomic
def record_of(verb: str, store: Datastore, actor: User | None, message: str, **data: int) -> None:
    record(verb, actor=actor, appcode=store.appcode.code, object=f"datastore {store}", message=message, **data)
