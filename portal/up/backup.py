"""A dump of the portal's own database before a new version changes it, so that people can go back."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psycopg2.extensions import make_dsn

from portal.backup.archive import BackupError
from portal.backup.database import dump
from portal.up.services import ServiceError, private_folder

KEPT = 3


def backup_before_migration(database: Mapping[str, Any], folder: Path, version: str, at: dt.datetime) -> Path:
    """Writes a dump in the custom format of pg_dump into `folder`, keeps the last KEPT there, and returns its path.

    `database` has psycopg's parameters of the portal's own server, which wants no password. Raises ServiceError with a sentence;
    nothing of the failed dump is left then.
    """
    private_folder(folder)
    path = folder / f"before-{version}-{at.astimezone(dt.UTC):%Y%m%dT%H%M%SZ}.dump"
    making = path.with_suffix(".making")
    try:
        making.unlink(missing_ok=True)
        dump(make_dsn(**{name: database[name] for name in ("host", "user", "dbname")}), making)
        making.rename(path)
    except (OSError, BackupError) as error:
        why = f"{error.strerror}." if isinstance(error, OSError) else str(error)
        raise ServiceError(f"The database could not be backed up to {path}, so it was not migrated: {why}") from error
    finally:
        making.unlink(missing_ok=True)
    for old in sorted(folder.glob("before-*.dump"), key=lambda each: each.name.rpartition("-")[2])[:-KEPT]:
        old.unlink()
    return path
