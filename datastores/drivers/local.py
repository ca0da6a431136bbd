"""A folder of this machine. Every path is walked name by name from the allowed folder, and no link is ever followed.

Checking first and opening afterwards would leave a moment in which a task could swap a folder for a link to /etc. Here
each step opens the next name below an open folder (openat with O_NOFOLLOW), so there is no such moment.
"""

from __future__ import annotations

import datetime as dt
import errno
import heapq
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import PurePosixPath

from datastores import trees
from datastores.drivers.base import (
    ANY_TIME,
    CHUNK,
    Carried,
    Content,
    DriverError,
    Entry,
    Listing,
    NotPossible,
    NotThere,
    Part,
    Stream,
)
from datastores.listing import TRASH

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LATEST = dt.datetime.max.replace(tzinfo=dt.UTC).timestamp() - 86400
# Name prefix of a file during its upload; listings leave it out.
PARTIAL = ".uploading-"
_PARTIAL = re.compile(re.escape(PARTIAL) + "[0-9a-f]{16}")


class Local:
    def __init__(self, *, root: str, path: str, read_only: bool = False) -> None:
        self.root, self.read_only = root, read_only
        self._inside = PurePosixPath(path).relative_to(root).parts

    def test(self) -> str:
        with self._told("path"), self._folder("") as folder:
            os.listdir(folder)
            if not self.read_only and not os.access(".", os.W_OK, dir_fd=folder):
                raise DriverError("The portal may read this folder and not write to it.", "path")
        return "The folder can be read."

    def list(self, folder: str, *, search: str = "", cursor: str = "", limit: int = 200) -> Listing:
        try:
            with self._told(), self._folder(folder) as fd:
                names = (name for name in os.listdir(fd) if name > cursor and name.startswith(search))
                some = heapq.nsmallest(limit + 1, (name for name in names if _shown(name)))
                entries = [entry for name in some[:limit] if (entry := _entry(fd, name, folder)) is not None]
        except NotThere:
            return Listing(())
        entries.sort(key=lambda entry: (not entry.is_folder, entry.name))
        return Listing(tuple(entries), some[limit - 1] if len(some) > limit else "")

    def walk(self, folder: str) -> Iterator[Entry]:
        try:
            with self._told(), self._folder(folder) as top:
                for found in trees.walk(top):
                    path = f"{folder}/{found.path}" if folder else found.path
                    if stat.S_ISREG(found.info.st_mode) and all(_shown(word) for word in found.path.split("/")):
                        yield _file(found.name, path, found.info)
        except NotThere:
            return

    def look(self, path: str) -> Entry:
        fd = self._open(path)
        try:
            return _file(path.rpartition("/")[2], path, os.fstat(fd))
        finally:
            os.close(fd)

    def open(self, path: str, part: Part | None = None) -> Content:
        fd = self._open(path)
        try:
            facts = os.fstat(fd)
            start, size = part.of(facts.st_size) if part else (0, facts.st_size)
            os.lseek(fd, start, os.SEEK_SET)
        except BaseException:
            os.close(fd)
            raise
        return Content(size, _chunks(fd, size), facts.st_size, start, _file("", "", facts).etag)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        fd = self._open(path)
        try:
            return os.pread(fd, max(0, length), start)
        finally:
            os.close(fd)

    def upload(
        self, path: str, stream: Stream, size: int, *, appears: AbstractContextManager[object] = ANY_TIME
    ) -> None:
        self._writable()
        above, _, name = path.rpartition("/")
        partial = PARTIAL + secrets.token_hex(8)
        with self._told(), self._folder(above, make=True) as folder:
            fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
            try:
                with open(fd, "wb") as file:
                    _copy(stream, file.fileno(), size)
                with appears:
                    os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(partial, dir_fd=folder)
                raise

    def begin(self, path: str) -> str:
        self._writable()
        partial = PARTIAL + secrets.token_hex(8)
        with self._told(), self._folder(path.rpartition("/")[0], make=True) as folder:
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder))
        return partial

    def write_part(self, path: str, upload: str, number: int, start: int, data: bytes) -> str:
        self._writable()
        _check_partial(upload)
        with self._told(), self._folder(path.rpartition("/")[0]) as folder:
            fd = os.open(upload, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            with open(fd, "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    written = os.pwrite(file.fileno(), view, start)
                    view, start = view[written:], start + written
        return str(number)

    def part_url(self, path: str, upload: str, number: int, size: int, seconds: int) -> str:
        raise NotPossible("A folder of this machine has no address of its own.")

    def parts(self, path: str, upload: str, after: int = 0) -> Mapping[int, tuple[int, str]]:
        raise NotPossible("What was written into a file of this machine does not say which parts it was.")

    def finish(self, path: str, upload: str, etags: Sequence[str]) -> None:
        self._writable()
        _check_partial(upload)
        above, _, name = path.rpartition("/")
        with self._told(), self._folder(above) as folder:
            os.replace(upload, name, src_dir_fd=folder, dst_dir_fd=folder)

    def abort(self, path: str, upload: str) -> None:
        try:
            _check_partial(upload)
        except NotThere:
            return
        above = path.rpartition("/")[0]
        self.delete(f"{above}/{upload}" if above else upload)

    def copy(self, path: str, to: str) -> None:
        with open(self._open(path), "rb", buffering=0) as file:
            self.upload(to, file, os.fstat(file.fileno()).st_size)

    def move(self, path: str, to: str) -> None:
        self._writable()
        os.close(self._open(path))  # raises NotThere unless it is a file
        (above, _, name), (target, _, new) = path.rpartition("/"), to.rpartition("/")
        with self._told(), self._folder(above) as source, self._folder(target, make=True) as folder:
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=folder)

    def carry(self, path: str, to: str, *, is_folder: bool, before: dt.datetime | None, seconds: float) -> Carried:
        self._writable()
        (above, _, name), (target, _, new) = path.rpartition("/"), to.rpartition("/")
        try:
            with self._told(), self._folder(above) as source, self._folder(target, make=True) as folder:
                if not is_folder:
                    return Carried(kept=_carry_file(source, name, folder, new, before))
                try:
                    # rename fails if the target is a folder that is not empty.
                    os.rename(name, new, src_dir_fd=source, dst_dir_fd=folder)
                    return Carried()
                except OSError as error:
                    if error.errno == errno.ENOTDIR:
                        return Carried(kept=1)
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
            return self._merge(path, to, before, time.monotonic() + seconds)
        except NotThere:
            return Carried()

    def _merge(self, path: str, to: str, before: dt.datetime | None, until: float) -> Carried:
        """Moves the contents into an existing folder. Folders left empty are deleted."""
        kept = 0
        with self._told(), self._folder(path) as top:
            for found in trees.walk(top):
                if time.monotonic() >= until:
                    return Carried(False, kept)
                if found.is_folder:
                    with suppress(OSError):
                        os.rmdir(found.name, dir_fd=found.folder)
                    continue
                below = found.path.rpartition("/")[0]
                try:
                    with self._folder(f"{to}/{below}" if below else to, make=True) as folder:
                        kept += _carry_file(found.folder, found.name, folder, found.name, before)
                except NotADirectoryError:
                    kept += 1
        with suppress(OSError, NotThere), self._folder(path.rpartition("/")[0]) as above:
            os.rmdir(path.rpartition("/")[2], dir_fd=above)
        return Carried(kept=kept)

    def delete(self, path: str) -> None:
        self._writable()
        above, _, name = path.rpartition("/")
        try:
            with self._told(), self._folder(above) as folder:
                os.unlink(name, dir_fd=folder)
        except NotThere:
            return

    def delete_folder(self, folder: str) -> int:
        self._writable()
        above, _, name = folder.rpartition("/")
        with self._told(), self._folder(above) as fd:
            return trees.remove(name, dir_fd=fd)

    def _writable(self) -> None:
        if self.read_only:
            raise NotPossible("An administrator allowed this folder for reading only.")

    def _open(self, path: str) -> int:
        above, _, name = path.rpartition("/")
        with self._told(), self._folder(above) as folder:
            fd = os.open(name, _FILE, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotThere("There is no such file any more.")
        return fd

    @contextmanager
    def _folder(self, path: str, *, make: bool = False) -> Iterator[int]:
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for word in (*self._inside, *path.split("/")) if path else self._inside:
                if make:
                    with suppress(FileExistsError):
                        # Only the portal may read removed files.
                        os.mkdir(word, 0o700 if word == TRASH else 0o755, dir_fd=fd)
                below = os.open(word, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _told(self, field: str = "") -> Iterator[None]:
        """Converts OSErrors to DriverErrors."""
        try:
            yield
        except FileNotFoundError as error:
            if field:
                raise DriverError("There is no such folder on this machine.", field) from error
            raise NotThere("There is no such file any more.") from error
        except OSError as error:
            match error.errno:
                case errno.ELOOP:
                    what = "A link is in the way; links are not followed."
                case errno.ENOTDIR:
                    what = "There is a file or a link where a folder should be."
                case errno.EISDIR:
                    what = "There is a folder of that name."
                case errno.ENOSPC | errno.EDQUOT:
                    what = "The disk is full; nothing was stored."
                case errno.EACCES | errno.EPERM | errno.EROFS:
                    what = "The portal may not do this here; ask an administrator about the folder's permissions."
                case errno.ENAMETOOLONG:
                    what = "This name is too long."
                case _:
                    what = f"This machine says: {error.strerror}."
            raise DriverError(what, field) from error


def _check_partial(upload: str) -> None:
    """Validates an upload id. If the datastore was of another kind when the upload began, a server chose the id: it may
    be any path."""
    if not _PARTIAL.fullmatch(upload):
        raise NotThere("There is no such upload any more.")


def _shown(name: str) -> bool:
    """False for files in upload or in the trash, and for names that a page cannot show (names are bytes here)."""
    return name.isprintable() and name != TRASH and not name.startswith(PARTIAL)


def _carry_file(source: int, name: str, folder: int, new: str, before: dt.datetime | None) -> int:
    """Moves a file; returns 1 if it stays because another file has the new name. It links and unlinks, because rename
    would replace that file."""
    try:
        facts = os.stat(name, dir_fd=source, follow_symlinks=False)
    except FileNotFoundError:
        return 0
    if before and facts.st_mtime > before.timestamp():
        return 0
    try:
        os.link(name, new, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        if not os.path.samestat(facts, os.stat(new, dir_fd=folder, follow_symlinks=False)):
            return 1
    os.unlink(name, dir_fd=source)
    return 0


def _entry(folder: int, name: str, above: str) -> Entry | None:
    """None if it is neither file nor folder, or was deleted meanwhile."""
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    path = f"{above}/{name}" if above else name
    if stat.S_ISDIR(facts.st_mode):
        return Entry(name, path, is_folder=True)
    if not stat.S_ISREG(facts.st_mode):
        return None
    return _file(name, path, facts)


def _file(name: str, path: str, facts: os.stat_result) -> Entry:
    # Some file systems store any timestamp that a program sets.
    modified, since = (
        dt.datetime.fromtimestamp(min(max(each, 0), _LATEST), dt.UTC) for each in (facts.st_mtime, facts.st_ctime)
    )
    etag = f"{facts.st_mtime_ns:x}-{facts.st_size:x}"
    return Entry(name, path, size=facts.st_size, modified=modified, etag=etag, since=since)


def _chunks(fd: int, size: int) -> Iterator[bytes]:
    with open(fd, "rb", buffering=0) as file:
        left = size
        while left:
            chunk = file.read(min(CHUNK, left))
            if not chunk:
                raise DriverError("The file became shorter while it was read.")
            left -= len(chunk)
            yield chunk


def _copy(stream: Stream, target: int, size: int) -> None:
    left = size
    while left:
        data = stream.read(min(CHUNK, left))
        if not data:
            raise DriverError("The upload was cut off; nothing was stored.")
        left -= len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
