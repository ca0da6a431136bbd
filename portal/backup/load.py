"""`manage.py restore FILE`: checks everything that can be checked, then writes.

In the data folder everything is first made in `restoring/`, and moved to its place when the whole file has been read and found
intact. While that folder exists, `make run` refuses the data folder, and another `restore` begins anew. A database server of
one's own gets everything in one transaction, and nothing before the whole file has been verified.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portal.backup import buckets, database
from portal.backup.archive import CHUNK, SMALL, BackupError, Readable, Reader
from portal.backup.progress import Progress, amount
from portal.backup.save import CREDENTIALS, DUMP, SETTINGS, STORAGE
from portal.backup.source import IN_FOLDER, Server, from_files, read_settings, server
from portal.up import servers, services
from portal.up.data import RESTORING, locked
from portal.up.running import folder_of
from portal.up.services import private_folder, socket_folder, write_private

BASE_DIR = Path(__file__).resolve().parent.parent.parent
# What is moved to its place in the data folder, and so what a restore that was cut off may have left there.
_MOVED = ("postgres", "storage", "secrets.env", CREDENTIALS)
# What may lie in a data folder that counts as empty.
_NOTHING = {"up.lock", "lost+found", RESTORING, "run"}
_SPARE = 200 * 2**20


@dataclass(frozen=True)
class Target:
    """Where the parts go: `folder` is the data folder, for all that the environment names no server or key for."""

    folder: Path | None
    database: str
    secret_key: str
    storage: Server | None
    logs: Server | None
    logs_bucket: str

    def server_of(self, bucket: str) -> Server | None:
        return self.logs if self.logs and bucket == self.logs_bucket else self.storage


def load(
    given: Mapping[str, str],
    path: Path,
    passphrase: Callable[[], str],
    progress: Progress,
    *,
    without_storage: bool = False,
) -> None:
    """Raises BackupError and ServiceError; everything is as before then, or marked as half restored."""
    reader = _open(path, passphrase)
    manifest = reader.manifest()
    check_migrations(manifest)
    if without_storage:
        manifest["storage"] = {"folder": None, "buckets": []}
    settings = from_files(given)
    target = _target(settings, manifest)
    with contextlib.ExitStack() as stack:
        if target.folder:
            stack.enter_context(_held(target.folder))
        _check_room(target, manifest)
        if target.database:
            database.check_empty(target.database, manifest["postgresql"])
        if target.database or target.storage or target.logs or target.secret_key:
            # What goes elsewhere than into a folder beside cannot be taken back.
            progress.step("Checking the file")
            _check_keys(settings, _verify(reader, progress))
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="restore-")))
        wanted = _buckets_of(manifest, target)
        buckets.prepare(wanted)
        into = buckets.Restored(wanted, work)
        folder = stack.enter_context(_begun(target.folder)) if target.folder else work
        _fill(reader, manifest, target, folder, into, progress)
        into.finish()
        if target.folder:
            _finish(target.folder)
    if not target.folder:
        progress.step("Migrations, keys and versions" if wanted else "Migrations")
        # The backup may be older, and its storage server may have had another address.
        _manage("migrate", "--no-input", "--verbosity=0")
        if wanted:
            _manage("adopt_storage")
    progress.done(f"Restored, as the portal was at {manifest['made_at']}." + _next(target, adopt=bool(wanted)))


def extract_settings(path: Path, to: Path, passphrase: Callable[[], str]) -> None:
    """Writes the settings of the portal that made the backup, with its secrets, into a new file of mode 600. Raises
    BackupError."""
    if to.exists():
        raise BackupError(f"{to} exists; name a new file.")
    reader = _open(path, passphrase)
    reader.manifest()
    with reader.members() as members:
        for name, _, stream in members:
            if name == SETTINGS:
                write_private(to, stream.read(SMALL).decode())
                return
    raise BackupError(f"{path} has no settings.")


def check_migrations(manifest: Mapping[str, Any]) -> None:
    """Raises BackupError for a backup of a newer portal: nothing here could read its database."""
    own = {app.name for app in BASE_DIR.iterdir() if (app / "migrations").is_dir()}
    for each in manifest["migrations"]:
        app, _, name = each.partition(".")
        if app in own and not (BASE_DIR / app / "migrations" / f"{name}.py").exists():
            version = f" ({manifest['portal']})" if manifest.get("portal") else ""
            raise BackupError(
                f"The backup is of a newer portal{version}: its database has the migration {each}, which this one does not know."
            )


def _open(path: Path, passphrase: Callable[[], str]) -> Reader:
    if not path.is_file():
        raise BackupError(f"There is no file {path}.")
    try:
        return Reader(path, passphrase)
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}.") from error


def _target(settings: Mapping[str, str], manifest: Mapping[str, Any]) -> Target:
    folder, names = manifest["storage"]["folder"], manifest["storage"]["buckets"]
    secret_key, url = settings.get("PORTAL_SECRET_KEY", ""), settings.get("DATABASE_URL", "")
    in_containers = settings.get("PORTAL_SINGLE_MACHINE") == "0"
    if in_containers and not (secret_key and url):
        raise BackupError(
            "Set PORTAL_SECRET_KEY and DATABASE_URL; in containers there is no data folder to restore into."
        )
    storage, logs = server(settings, "PORTAL_STORAGE"), server(settings, "PORTAL_LOGS_S3")
    if folder and (storage or in_containers):
        raise BackupError(
            "The backup has the object storage of `make run`, which is restored into a data folder only; "
            "unset PORTAL_STORAGE_URL, and run this on a machine where `make run` is to follow."
        )
    logs_bucket = settings.get("PORTAL_LOGS_S3_BUCKET") or buckets.LOGS
    target = Target(
        folder=folder_of(settings) if folder or not (secret_key and url) else None,
        database=url,
        secret_key=secret_key,
        storage=storage if names else None,
        logs=logs if logs_bucket in names else None,
        logs_bucket=logs_bucket,
    )
    if lost := [name for name in names if target.server_of(name) is None]:
        raise BackupError(
            f"The backup has the buckets {', '.join(lost)}; set PORTAL_STORAGE_URL and its keys, so that they can be restored."
        )
    return target


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Nobody else uses the folder, and nothing is in it. Raises BackupError and ServiceError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = folder / "up.lock"
        was_there = lock.exists()
        with locked(lock, f"process {os.getpid()}, restore"):
            found = {each.name for each in folder.iterdir()}
            if (folder / RESTORING).exists():
                found -= {*_MOVED}
            if others := sorted(found - _NOTHING):
                if not was_there:
                    lock.unlink()
                raise BackupError(
                    f"The data folder {folder} is not empty: there is {others[0]}. Name an empty one by PORTAL_DATA, or move it "
                    "away."
                )
            yield
    except OSError as error:
        raise BackupError(f"The data folder {folder} cannot be written: {error.strerror}.") from error


@contextlib.contextmanager
def _begun(folder: Path) -> Iterator[Path]:
    """The folder in which everything is made first. Removes what an earlier restore left that was cut off, and what this one
    leaves when it fails."""
    restoring = folder / RESTORING
    if restoring.exists():
        for name in _MOVED:
            path = folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        shutil.rmtree(restoring)
    private_folder(restoring)
    try:
        yield restoring
    except BaseException:
        if not any((folder / name).exists() for name in _MOVED):
            shutil.rmtree(restoring, ignore_errors=True)
        raise


def _finish(folder: Path) -> None:
    # Everything is on the disk before it counts.
    os.sync()
    for name in _MOVED:
        if (folder / RESTORING / name).exists():
            (folder / RESTORING / name).rename(folder / name)
    os.sync()
    shutil.rmtree(folder / RESTORING)


def _fill(
    reader: Reader,
    manifest: Mapping[str, Any],
    target: Target,
    folder: Path,
    into: buckets.Restored,
    progress: Progress,
) -> None:
    progress.step("Reading")
    stored = manifest["storage"]["folder"]
    if stored:
        for name in ("", *stored["folders"]):
            _inside(folder / "storage", name).mkdir(mode=0o700, parents=True)
    with reader.members() as members:
        for name, member, stream in members:
            stream = progress.counted(stream, name.partition("/")[0])
            if name == SETTINGS:
                _write_secrets(target, folder, stream.read(SMALL).decode())
            elif name == CREDENTIALS and target.folder:
                write_private(folder / CREDENTIALS, stream.read(SMALL).decode())
            elif name == DUMP:
                _write(folder / DUMP, stream)
            elif name.startswith(STORAGE) and stored:
                _write(_inside(folder / "storage", name.removeprefix(STORAGE)), stream)
            elif name.startswith(buckets.MEMBERS) and manifest["storage"]["buckets"]:
                into.put(member, stream)
    progress.step("Database")
    if target.database:
        database.restore(target.database, folder / DUMP)
    else:
        _restore_own(folder, folder / DUMP)
    (folder / DUMP).unlink()


def _restore_own(folder: Path, dump: Path) -> None:
    """Into a new PostgreSQL server of the data folder."""
    logs = private_folder(folder / "log")
    # Its files are written to the disk once, at the end.
    own = servers.postgres(folder / "postgres", socket_folder(folder), log=logs / "initdb.log", durable=False)
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    with services.running([own], logs, env):
        database.restore(own.url, dump)


def _write_secrets(target: Target, folder: Path, text: str) -> None:
    if target.folder:
        kept = read_settings(text)
        lines = [f"{name}={kept[name]}\n" for name in IN_FOLDER if name in kept]
        write_private(folder / "secrets.env", "".join(lines))


def _verify(reader: Reader, progress: Progress) -> dict[str, str]:
    """Reads everything; returns the settings in it. Raises BackupError."""
    kept: dict[str, str] = {}
    with reader.members() as members:
        for name, _, stream in members:
            if name == SETTINGS:
                kept = read_settings(stream.read(SMALL).decode())
            while piece := stream.read(CHUNK):
                progress.note("checked", len(piece))
    return kept


def _check_keys(settings: Mapping[str, str], kept: Mapping[str, str]) -> None:
    """Stored secrets open with the keys that they were encrypted with, and no others. Raises BackupError."""
    given, old = settings.get("PORTAL_SECRET_KEY"), kept.get("PORTAL_SECRET_KEY")
    if given and given != old:
        raise BackupError(
            "PORTAL_SECRET_KEY is not the one of the portal that made the backup, and stored secrets would not open. "
            "`manage.py restore FILE --settings NEW_FILE` writes it down."
        )
    if given and not {*_salts(kept)} <= {*_salts(settings)}:
        raise BackupError(
            "PORTAL_SALT_KEYS lacks a value that the portal had which made the backup, and stored secrets would not open. "
            "`manage.py restore FILE --settings NEW_FILE` writes it down."
        )


def _salts(settings: Mapping[str, str]) -> list[str]:
    return (settings.get("PORTAL_SALT_KEYS") or settings.get("PORTAL_SECRET_KEY") or "").split(",")


def _buckets_of(manifest: Mapping[str, Any], target: Target) -> list[buckets.Bucket]:
    names = manifest["storage"]["buckets"]
    return [buckets.Bucket(to, name) for name in names if (to := target.server_of(name))]


def _manage(*command: str) -> None:
    """A command that needs Django. Raises BackupError."""
    if subprocess.run([sys.executable, "manage.py", *command], cwd=BASE_DIR, check=False).returncode:
        raise BackupError(
            f"Database and objects are restored, but `manage.py {command[0]}` failed. Run `manage.py migrate`, then "
            "`manage.py adopt_storage`."
        )


def _check_room(target: Target, manifest: Mapping[str, Any]) -> None:
    needed = manifest["database"]["dump_bytes"] + _SPARE
    if target.folder:
        needed += (0 if target.database else 2 * manifest["database"]["bytes"]) + (
            manifest["storage"]["folder"] or {"bytes": 0}
        )["bytes"]
    folder = target.folder or Path(tempfile.gettempdir())
    if (free := shutil.disk_usage(folder).free) < needed:
        raise BackupError(
            f"The disk of {folder} has {amount(free)} left, and the restore needs about {amount(needed)}."
        )


def _inside(top: Path, name: str) -> Path:
    """Raises BackupError for what would lie elsewhere."""
    path = Path(os.path.normpath(top / name))
    if path != top and top not in path.parents:
        raise BackupError(f"The backup names a file outside of its folder: {name}.")
    return path


def _write(path: Path, stream: Readable) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while piece := stream.read(CHUNK):
            file.write(piece)


def _next(target: Target, *, adopt: bool) -> str:
    if target.folder:
        then = ", and when it is ready: manage.py adopt_storage" if adopt else ""
        return f" Start it with: PORTAL_DATA={target.folder} make run{then}"
    return " Now start the portal (docs/deployment.md)."
