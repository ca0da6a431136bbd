"""The empty database of a test process. Migrations run once for each state of their sources; later runs load a copy from outside
the tree, in a second."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from typing import Any

from django.conf import settings

from portal.up.servers import postgres_binaries
from tests.kube.binary import cache
from tests.running import ROOT

# Tables and rules; models, whose names and permissions are rows; clouds and serving runtimes that are rows from the beginning;
# the packages that have tables of their own; and the version, which `migrate` notes.
SOURCES = (
    "requirements.txt", "*/migrations/*.py", "*/sql/*.sql", "*/models.py", "*/models/*.py", "*/*/models.py", "portal/settings.py",
    "portal/__init__.py", "portal/installation/upgrades.py", "portal/management/commands/migrate.py",
    "clusters/clouds/registry.py", "clusters/clouds/kinds.py", "clusters/frameworks/runtimes.py",
)  # fmt: skip


def make(connection: Any) -> None:
    """Creates the test database of this connection and connects to it."""
    folder, name = cache("tables"), connection.creation._get_test_db_name()
    copy = folder / f"{_state()}.sql"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.exists():
            connection.creation.create_test_db(verbosity=0, serialize=False)
            dump = copy.with_suffix(".new")
            _run(connection, "pg_dump", "--no-owner", f"--file={dump}", name)
            dump.rename(copy)
            return
    _run(connection, "createdb", name)
    _run(connection, "psql", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", f"--file={copy}", name)
    connection.close()
    connection.settings_dict["NAME"] = settings.DATABASES[connection.alias]["NAME"] = name


def _run(connection: Any, program: str, *arguments: str) -> None:
    where = connection.get_connection_params()
    argv = [postgres_binaries() / program, f"--host={where['host']}", f"--username={where['user']}", *arguments]
    subprocess.run(argv, check=True, capture_output=True)


def _state() -> str:
    found = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]
