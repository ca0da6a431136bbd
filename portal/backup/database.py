"""pg_dump and pg_restore, of at least the server's version. Passwords reach them by the environment, never by arguments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extensions import ISOLATION_LEVEL_REPEATABLE_READ, parse_dsn

from portal.backup.archive import BackupError
from portal.up.servers import postgres_binaries
from portal.up.services import ServiceError

# libpq's variables for what a URL may say.
_VARIABLES = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "connect_timeout": "PGCONNECT_TIMEOUT",
    "options": "PGOPTIONS",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
}
# Names of these rows name things outside of the database, such as objects in a Kubernetes cluster. After a restore, numbers that
# the old portal gave away after its backup must not come again.
_NAMES = ("clusters_run", "datastores_volume")
_SKIPPED = 100_000


@dataclass(frozen=True)
class Snapshot:
    """What the database was at one moment; `name` is what pg_dump takes. Good while its connection is open."""

    name: str
    connection: Any

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    @property
    def migrations(self) -> list[str]:
        """Those that were applied, as "app.name"."""
        return [f"{app}.{name}" for app, name in self.rows("SELECT app, name FROM django_migrations ORDER BY id")]

    @property
    def size(self) -> int:
        """Of the database with its indexes, in bytes."""
        return int(self.rows("SELECT pg_database_size(current_database())")[0][0])


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """A connection. Raises BackupError."""
    try:
        connection = psycopg2.connect(url, connect_timeout=10)
    except psycopg2.Error as error:
        raise BackupError(f"The database cannot be reached: {_first_line(str(error))}") from error
    try:
        yield connection
    finally:
        connection.close()


def snapshot(connection: Any) -> Snapshot:
    """From now on the connection sees the database as it is at this moment, and pg_dump can."""
    connection.set_session(ISOLATION_LEVEL_REPEATABLE_READ, readonly=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_export_snapshot()")
        return Snapshot(cursor.fetchone()[0], connection)


def dump(url: str, path: Path, snapshot: str = "") -> None:
    """Writes the whole database into a new file of mode 600, in pg_dump's custom format. Raises BackupError."""
    with connected(url) as connection:
        program = _program("pg_dump", connection.server_version // 10_000)
    argv = [str(program), "--format=custom", "--no-password", *([f"--snapshot={snapshot}"] if snapshot else [])]
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        done = subprocess.run(
            argv, env=_environment(url), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, check=False
        )
        os.fsync(file.fileno())
    if done.returncode:
        path.unlink(missing_ok=True)
        raise BackupError(f"pg_dump failed: {_first_line(done.stderr.decode(errors='replace'))}")


def check_empty(url: str, major: int) -> None:
    """Raises BackupError unless the database has no tables and its server is at least of the version `major`."""
    with connected(url) as connection, connection.cursor() as cursor:
        own = connection.server_version // 10_000
        if own < major:
            raise BackupError(
                f"The database server is PostgreSQL {own}, and the backup is of PostgreSQL {major}; use a server of {major} or "
                "newer."
            )
        cursor.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname NOT LIKE 'pg\\_%' AND schemaname <> 'information_schema'"
        )
        if count := cursor.fetchone()[0]:
            raise BackupError(f"The database is not empty: it has {count} tables. Restore into a new, empty one.")
        _program("pg_restore", own)


def restore(url: str, path: Path) -> None:
    """Fills an empty database from a dump: all of it, or nothing. Raises BackupError."""
    with connected(url) as connection:
        program = _program("pg_restore", connection.server_version // 10_000)
    database = parse_dsn(url)["dbname"]
    argv = [str(program), "--no-owner", "--no-privileges", "--no-password", "--exit-on-error", "--single-transaction"]
    argv += [f"--dbname={database}", str(path)]
    done = subprocess.run(argv, env=_environment(url), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise BackupError(f"pg_restore failed: {_first_line(done.stderr.decode(errors='replace'))}")
    with connected(url) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for table in _NAMES:
                cursor.execute(
                    "SELECT setval(name::regclass, nextval(name::regclass) + %s) FROM pg_get_serial_sequence(%s, 'id') AS name",
                    [_SKIPPED, table],
                )
            cursor.execute("ANALYZE")


def _program(name: str, major: int) -> Path:
    """A program of PostgreSQL that is at least of the version `major`. Raises BackupError."""
    found = [*_places(name)]
    for path in found:
        if _version(path) >= major:
            return path
    raise BackupError(
        f"The database server is PostgreSQL {major}, and there is no {name} of this version or newer here; install "
        f"postgresql-client-{major}."
    )


def _places(name: str) -> Iterator[Path]:
    with suppress(ServiceError):
        yield postgres_binaries() / name
    if on_path := shutil.which(name):
        yield Path(on_path)
    yield from sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)


def _version(program: Path) -> int:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    found = re.search(r"\(PostgreSQL\) (\d+)", said)
    return int(found[1]) if found else 0


def _environment(url: str) -> dict[str, str]:
    said = parse_dsn(url)
    if unknown := sorted(said.keys() - _VARIABLES.keys()):
        raise BackupError(f"pg_dump cannot be told what DATABASE_URL says by {', '.join(unknown)}.")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PORTAL_", "DATABASE_URL"))}
    return own | {_VARIABLES[name]: value for name, value in said.items()}


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it did not say why")
