"""The folder of the portal's own object storage, as it is at one moment, while it works.

SeaweedFS keeps its data in files that only grow, or are replaced as a whole. So one moment is enough: `frozen` stops its
processes by SIGSTOP, `take` opens every file, notes its size and reads the small ones, and after some milliseconds the processes
go on. Later the opened files are read up to the noted sizes, whatever was appended, renamed or removed meanwhile. What comes out
is what a power cut at that moment would have left on a perfect disk, and the store starts from that: what it has answered is
there.

Its S3 interface was refused for this: objects would come back with other times, by which versions of datastores are known, and
nobody's keys would come back at all.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from portal.backup.archive import BackupError, Readable

# The store answers nobody meanwhile.
LONGEST_PAUSE = 10.0
STOP_SECONDS = 5.0
# Smaller files are read at once: some of them are written over in place. Those that are larger only grow.
READ_AT_ONCE = 256 * 2**10
SERVER = "datastores.storage.server"


@dataclass
class Copy:
    """The files of a folder at one moment, by their paths in it."""

    small: dict[str, bytes] = field(default_factory=dict)
    large: dict[str, tuple[int, int]] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)

    @property
    def files(self) -> int:
        return len(self.small) + len(self.large)

    @property
    def size(self) -> int:
        return sum(map(len, self.small.values())) + sum(size for _, size in self.large.values())

    def streams(self) -> Iterator[tuple[str, Readable, int]]:
        for path, data in self.small.items():
            yield path, io.BytesIO(data), len(data)
        for path, (handle, size) in self.large.items():
            with os.fdopen(os.dup(handle), "rb") as file:
                file.seek(0)
                yield path, file, size

    def close(self) -> None:
        for handle, _ in self.large.values():
            os.close(handle)
        self.large.clear()


@contextlib.contextmanager
def frozen(folder: Path, up: int) -> Iterator[None]:
    """Stops the processes of the store with its data in `folder`, below the process `up`. Raises BackupError where they do not
    stop, and at the end where they were let go too early."""
    began = time.monotonic()
    processes = _store(folder, up)
    with _guarded([each.pid for each in processes]):
        try:
            for each in processes:
                each.send_signal(signal.SIGSTOP)
            while not all(_is_stopped(each.pid) for each in processes):
                if time.monotonic() - began > STOP_SECONDS:
                    raise BackupError(
                        "The object storage does not stop for a moment; try again when the disk is less busy."
                    )
                time.sleep(0.001)
            yield
        except psutil.NoSuchProcess as error:
            raise BackupError("The object storage ended meanwhile; try again when it is up again.") from error
        finally:
            for each in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(signal.SIGCONT)
    if time.monotonic() - began > LONGEST_PAUSE:
        raise BackupError(f"The object storage was needed again after {LONGEST_PAUSE:.0f} s; the disk is too busy now.")


def take(folder: Path) -> Copy:
    """The files of the folder, which nobody changes meanwhile. Raises BackupError."""
    _raise_limit()
    copy = Copy()
    try:
        for place, folders, names in os.walk(folder, onerror=_raise):
            inside = os.path.relpath(place, folder)
            copy.folders += [os.path.normpath(os.path.join(inside, name)) for name in folders]
            for name in names:
                path = os.path.join(place, name)
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    continue  # a socket
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                size = os.fstat(handle).st_size
                where = os.path.normpath(os.path.join(inside, name))
                if size <= READ_AT_ONCE:
                    with os.fdopen(handle, "rb") as file:
                        copy.small[where] = file.read()
                else:
                    copy.large[where] = handle, size
    except OSError as error:
        copy.close()
        raise BackupError(f"The object storage in {folder} cannot be read: {error.strerror}.") from error
    return copy


def _store(folder: Path, up: int) -> list[psutil.Process]:
    """What writes into the folder; nothing where the store was not needed since the portal started."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in psutil.Process(up).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                line = each.cmdline()
                if SERVER in line and str(folder) in line:
                    found += each.children(recursive=True)
    return found


def _is_stopped(pid: int) -> bool:
    """Whether every thread is. Raises psutil.NoSuchProcess."""
    try:
        states = [_state(thread) for thread in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError as error:
        raise psutil.NoSuchProcess(pid) from error
    return all(each in "TtZX" for each in states)


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


@contextlib.contextmanager
def _guarded(pids: list[int]) -> Iterator[None]:
    """Whatever becomes of this process, those go on: another one waits for its end, or for LONGEST_PAUSE, and wakes them."""
    wake = f'timeout {LONGEST_PAUSE:.0f} cat; kill -CONT "$@" 2>/dev/null'
    argv = ["sh", "-c", wake, "guard", *map(str, pids)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True):
        yield


def _raise_limit() -> None:
    """Every large file stays open until it is in the backup."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _raise(error: OSError) -> None:
    raise error
