"""The backup file: a tar that anybody can open with `tar` and `age`.

    README              how to open the rest by hand
    key.age             an age identity, encrypted with the passphrase
    backup.tar.age      a tar, encrypted to that identity:
        manifest.json       first: format, versions, sizes
        …
        SHA256SUMS          last: the digest of every other member, as `sha256sum --check` reads it

The identity is made for one file, and its public half is stored nowhere. So nobody without the passphrase can make a file that
opens with it, and age finds every changed, missing or added byte. The age library encrypts streams for identities only, not for
passphrases; this is why there is a key in between.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import pyrage

FORMAT = 1
README, KEY, CONTENT = "README", "key.age", "backup.tar.age"
MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
CHUNK = 2**20
# Everything small that is read into memory: the manifest and the settings.
SMALL = 16 * 2**20
HOW_TO_OPEN = f"""A backup of a GPU cloud portal. `manage.py restore FILE` reads it.

By hand, with age (https://age-encryption.org) and the passphrase:

    tar -xf FILE
    age --decrypt --identity {KEY} {CONTENT} | tar -x
    sha256sum --check --quiet {SUMS}
"""


class BackupError(Exception):
    """The text is one sentence for the person at the terminal."""


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class Writer:
    """Writes a backup file under a temporary name and renames it when `close` is reached. Mode 600 from the start."""

    def __init__(self, path: Path, passphrase: str) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.unfinished")
        self._temporary.unlink(missing_ok=True)
        self._file = os.fdopen(os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")
        self._sums = tempfile.TemporaryFile("w+b")  # noqa: SIM115  closed in __exit__
        self._error: BaseException | None = None
        identity = pyrage.x25519.Identity.generate()
        for name, data in (
            (README, HOW_TO_OPEN.encode()),
            (KEY, pyrage.passphrase.encrypt(str(identity).encode(), passphrase)),
        ):
            self._file.write(_header(name, len(data)) + data + _padding(len(data)))
        # The size is known at the end only, and a tar has it before the data.
        self._header_at = self._file.tell()
        self._file.write(_header(CONTENT, 0))
        read_end, write_end = os.pipe()
        self._encrypting = threading.Thread(target=self._encrypt, args=(read_end, identity.to_public()), daemon=True)
        self._encrypting.start()
        self._pipe = os.fdopen(write_end, "wb", CHUNK)
        self._tar = tarfile.open(fileobj=self._pipe, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def add(self, name: str, data: bytes) -> None:
        self.add_stream(name, io.BytesIO(data), len(data))

    def add_stream(self, name: str, stream: Readable, size: int, headers: Mapping[str, str] | None = None) -> None:
        """A member of exactly `size` bytes. Raises BackupError where `stream` ends before that."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        member.pax_headers = dict(headers or {})
        counted = _Counted(stream)
        try:
            self._tar.addfile(member, counted)
        except OSError as error:
            # Ends the other thread, which may be what failed: the disk of the backup is full.
            with contextlib.suppress(OSError):
                self._pipe.close()
            self._encrypting.join()
            self._raise()
            if str(error) == "unexpected end of data":
                raise BackupError(f"{name} became shorter while it was read.") from error
            raise
        self._sums.write(f"{counted.digest}  {name}\n".encode("utf-8", "surrogateescape"))
        self._tar.members = []  # type: ignore[attr-defined]  # else every member stays in memory

    def close(self) -> int:
        """Finishes the file and returns its size in bytes."""
        size = self._sums.seek(0, os.SEEK_END)
        self._sums.seek(0)
        member = tarfile.TarInfo(SUMS)
        member.size, member.mode = size, 0o600
        try:
            self._tar.addfile(member, self._sums)
            self._tar.close()
            self._pipe.close()
        except BrokenPipeError:
            pass  # the other thread knows why
        self._encrypting.join()
        self._raise()
        size = self._file.tell() - self._header_at - tarfile.BLOCKSIZE
        self._file.write(_padding(size) + bytes(2 * tarfile.BLOCKSIZE))
        total = self._file.tell()
        self._file.seek(self._header_at)
        self._file.write(_header(CONTENT, size))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._temporary.rename(self._path)
        _sync_folder(self._path.parent)
        return total

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._tar.close()
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._encrypting.join()
        # On a full disk, closing says so once more.
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._sums.close()
        self._temporary.unlink(missing_ok=True)

    def _raise(self) -> None:
        """Raises what ended the other thread: BackupError for what kept it from writing."""
        if isinstance(self._error, OSError | pyrage.EncryptError):
            raise BackupError(f"{self._path} cannot be written: {self._error}.") from self._error
        if self._error:
            raise self._error

    def _encrypt(self, read_end: int, recipient: Any) -> None:
        with os.fdopen(read_end, "rb", CHUNK) as plain:
            try:
                pyrage.encrypt_io(plain, self._file, [recipient])
            except BaseException as error:  # noqa: BLE001  raised again by the thread that writes
                self._error = error


class Reader:
    """A backup file whose passphrase is right. Raises BackupError."""

    def __init__(self, path: Path, passphrase: Callable[[], str]) -> None:
        self._path = path
        try:
            with tarfile.open(path, "r:") as tar:
                # No further: behind the third one a file that is cut off has nothing.
                members = {member.name: member for member in islice(tar, 3)}
                key, content = tar.extractfile(members[KEY]), members[CONTENT]
                sealed = key.read(SMALL) if key else b""
        except (tarfile.TarError, KeyError) as error:
            raise BackupError(f"{path} is not a backup of a portal, or its beginning is damaged.") from error
        self._start, self._size = content.offset_data, content.size
        if not self._size or path.stat().st_size < self._start + self._size:
            raise BackupError(f"{path} is cut off: its end is missing.")
        try:
            self._identity = pyrage.x25519.Identity.from_str(
                pyrage.passphrase.decrypt(sealed, passphrase()).decode().strip()
            )
        except (pyrage.DecryptError, pyrage.IdentityError, UnicodeDecodeError) as error:
            raise BackupError(f"This is not the passphrase of {path}, or its key is damaged.") from error

    def manifest(self) -> dict[str, Any]:
        """Raises BackupError where this version cannot read the file."""
        with self.members() as members:
            name, _, stream = next(members)
            found = json.loads(stream.read(SMALL)) if name == MANIFEST else None
        if not isinstance(found, dict) or not isinstance(found.get("format"), int):
            raise BackupError(f"{self._path} begins with no manifest; this is not a backup of a portal.")
        if found["format"] > FORMAT:
            raise BackupError(
                f"{self._path} has format {found['format']}, and this portal reads formats up to {FORMAT}. "
                f"Restore it with version {found.get('portal') or 'of the portal that made it'} or newer."
            )
        return found

    @contextlib.contextmanager
    def members(self) -> Iterator[Iterator[tuple[str, tarfile.TarInfo, Readable]]]:
        """All members in order, each with a stream that is good until the next one is asked for. Once all are read, the file is
        known to be whole and unchanged. Raises BackupError."""
        read_end, write_end = os.pipe()
        failed: list[BaseException] = []
        decrypting = threading.Thread(target=self._decrypt, args=(write_end, failed), daemon=True)
        decrypting.start()
        with os.fdopen(read_end, "rb", CHUNK) as plain:
            try:
                yield self._checked(plain, decrypting, failed)
            except tarfile.TarError as error:
                raise self._damaged() from error
        decrypting.join()

    def _checked(
        self, plain: IO[bytes], decrypting: threading.Thread, failed: list[BaseException]
    ) -> Iterator[tuple[str, tarfile.TarInfo, Readable]]:
        with tempfile.TemporaryFile("w+b") as sums, tarfile.open(fileobj=plain, mode="r|") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # else every member stays in memory
                stream = tar.extractfile(member)
                if stream is None:
                    raise self._damaged()
                if member.name == SUMS:
                    self._compare(stream, sums)
                    break
                counted = _Counted(stream)
                yield member.name, member, counted
                while counted.read(CHUNK):
                    pass
                sums.write(f"{counted.digest}  {member.name}\n".encode("utf-8", "surrogateescape"))
            else:
                raise self._damaged()
            # The last bytes of age say that nothing is missing.
            while plain.read(CHUNK):
                pass
        decrypting.join()
        if failed:
            raise self._damaged() from failed[0]

    def _compare(self, said: Readable, found: IO[bytes]) -> None:
        found.seek(0)
        while True:
            expected, is_so = said.read(CHUNK), found.read(CHUNK)
            if expected != is_so:
                raise self._damaged()
            if not expected:
                return

    def _damaged(self) -> BackupError:
        return BackupError(f"{self._path} is damaged: some of its bytes are not those that were written.")

    def _decrypt(self, write_end: int, failed: list[BaseException]) -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(write_end, "wb", CHUNK) as plain:
            try:
                with self._path.open("rb") as file:
                    file.seek(self._start)
                    pyrage.decrypt_io(_Limited(file, self._size), plain, [self._identity])
            except BrokenPipeError:
                pass  # the reader has seen enough
            except BaseException as error:  # noqa: BLE001  raised again by the thread that reads
                failed.append(error)


class _Counted:
    """Computes the digest of what is read."""

    def __init__(self, stream: Readable) -> None:
        self._stream, self._sum, self.size = stream, hashlib.sha256(), 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._sum.update(data)
        self.size += len(data)
        return data

    @property
    def digest(self) -> str:
        return self._sum.hexdigest()


class _Limited:
    """The next `size` bytes of a file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def _header(name: str, size: int) -> bytes:
    """One block, whatever the size: GNU's format writes sizes beyond 8 GiB in the same place."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
