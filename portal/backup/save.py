"""`manage.py backup FILE`: one moment of the portal, in one file.

On one machine, database and object storage are of exactly the same moment: the snapshot of the database is taken while the
storage stands still (storage.py), and both are copied afterwards. With an S3 server of one's own the snapshot of the database
comes first, then the buckets: an object that was there at the snapshot is in the file unless somebody removed it before the copy
came to it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError

import portal
from portal.backup import buckets, database, storage
from portal.backup.archive import FORMAT, MANIFEST, BackupError, Writer
from portal.backup.progress import Progress, amount
from portal.backup.source import Source

SETTINGS, CREDENTIALS, DUMP = "settings.env", "credentials.json", "database.dump"
STORAGE = "storage/"
_SPARE = 64 * 2**20


def save(source: Source, path: Path, passphrase: str, progress: Progress, *, without_storage: bool = False) -> None:
    """Raises BackupError; nothing is left at `path` then."""
    _check_path(path)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(database.connected(source.database))
        copy = storage.Copy()
        if not without_storage and source.has_own_storage and source.folder and (source.folder / "storage").is_dir():
            # Outside of the pause: connecting takes longer than all of it.
            with storage.frozen(source.folder / "storage", source.up):
                snapshot = database.snapshot(connection)
                copy = storage.take(source.folder / "storage")
            stack.callback(copy.close)
        else:
            snapshot = database.snapshot(connection)
        made_at = dt.datetime.now(dt.UTC)
        found = [] if without_storage else buckets.of(source, snapshot)
        spare = source.folder / "tmp" if source.folder else Path(tempfile.gettempdir())
        _check_room(path.parent, spare, snapshot.size, copy.size)
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backup-", dir=spare)))
        progress.step("Database")
        database.dump(source.database, work / DUMP, snapshot.name)
        manifest = {
            "format": FORMAT,
            "portal": getattr(portal, "__version__", ""),
            "made_at": made_at.isoformat(timespec="seconds"),
            "origin": source.settings.get("PORTAL_ORIGIN", ""),
            "postgresql": connection.server_version // 10_000,
            "migrations": snapshot.migrations,
            "database": {"bytes": snapshot.size, "dump_bytes": (work / DUMP).stat().st_size},
            "storage": _told(copy, found),
        }
        connection.close()
        writer = stack.enter_context(Writer(path, passphrase))
        for name, stream, size, headers in _members(source, manifest, work / DUMP, copy):
            writer.add_stream(name, progress.counted(stream, name), size, headers)
        for bucket in found:
            _add(writer, bucket, progress)
        total = writer.close()
    progress.done(f"{path}: {amount(total)}, as the portal was at {manifest['made_at']}.")


def _add(writer: Writer, bucket: buckets.Bucket, progress: Progress) -> None:
    for key, stream, size, headers in buckets.objects(bucket):
        member = buckets.member_of(bucket.name, key)
        try:
            writer.add_stream(member, progress.counted(stream, bucket.name), size, headers)
        except BotoCoreError as error:
            raise BackupError(f"The object storage stopped in the middle of {member}; try again.") from error


def _members(
    source: Source, manifest: dict[str, Any], dump: Path, copy: storage.Copy
) -> Iterator[tuple[str, Any, int, dict[str, str]]]:
    for name, text in (
        (MANIFEST, json.dumps(manifest, indent=1) + "\n"),
        (SETTINGS, source.kept()),
        (CREDENTIALS, _credentials(source)),
    ):
        if text:
            with tempfile.SpooledTemporaryFile() as small:
                small.write(text.encode())
                size = small.tell()
                small.seek(0)
                yield name, small, size, {}
    with dump.open("rb") as file:
        yield DUMP, file, os.fstat(file.fileno()).st_size, {}
    for path, stream, size in copy.streams():
        yield STORAGE + path, stream, size, {}


def _told(copy: storage.Copy, found: list[buckets.Bucket]) -> dict[str, Any]:
    folder = {"files": copy.files, "bytes": copy.size, "folders": copy.folders} if copy.files else None
    return {"folder": folder, "buckets": [each.name for each in found]}


def _credentials(source: Source) -> str:
    """Passwords and tokens of the demonstration, where there is one."""
    path = source.folder / CREDENTIALS if source.folder else None
    return path.read_text() if path and path.exists() else ""


def _check_path(path: Path) -> None:
    if path.is_dir():
        raise BackupError(f"{path} is a folder; name a file in it.")
    if not path.parent.is_dir():
        raise BackupError(f"The folder {path.parent} does not exist.")
    if path.exists():
        raise BackupError(f"{path} exists; name a new file, or remove it first.")
    if not os.access(path.parent, os.W_OK):
        raise BackupError(f"The folder {path.parent} cannot be written.")


def _check_room(target: Path, spare: Path, database_bytes: int, storage_bytes: int) -> None:
    """A dump is compressed and has no indexes, so it takes less than half of its database."""
    dump = database_bytes // 2 + _SPARE
    if target.stat().st_dev == spare.stat().st_dev:
        needed = [(target, 2 * dump + storage_bytes)]
    else:
        needed = [(target, dump + storage_bytes), (spare, dump)]
    for folder, size in needed:
        free = shutil.disk_usage(folder).free
        if free < size:
            raise BackupError(
                f"The disk of {folder} has {amount(free)} left, and the backup needs about {amount(size)}."
            )
