"""Which version of the portal a database belongs to, and whether this version may work with it.

Django's own table says which migrations were applied. `migrate` notes the version that ran it in the comment of that table: it
needs no table of its own, every version can read it, and a dump keeps it. `migrate` refuses a database with migrations that it
does not know. Programs that serve accept a database of the next minor version, because neighbouring versions run side by side
during a rolling upgrade (docs/releases.md), and refuse later ones.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass

from django.db import OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor

from portal import __version__

log = logging.getLogger(__name__)

TABLE = "django_migrations"
PRODUCT = "GPU cloud portal"
# Seconds between two looks whether the migrations are applied.
PAUSE = 2.0


@dataclass(frozen=True)
class State:
    """A database compared with the migrations of this version, which are named as `app.name`: `unknown` ones were applied by
    another version, `pending` ones are yet to be applied."""

    is_empty: bool
    unknown: tuple[str, ...]
    pending: tuple[str, ...]


def state_of(database: BaseDatabaseWrapper) -> State:
    executor = MigrationExecutor(database)
    loader = executor.loader
    applied, known = {*(loader.applied_migrations or ())}, {*(loader.disk_migrations or ())}
    known |= {replaced for migration in loader.replacements.values() for replaced in migration.replaces}
    plan = executor.migration_plan(loader.graph.leaf_nodes())
    return State(
        is_empty=not applied,
        unknown=tuple(sorted(map(".".join, applied - known))),
        pending=tuple(f"{migration.app_label}.{migration.name}" for migration, _ in plan),
    )


def why_not_migrate(unknown: Collection[str], made_by: str, own: str = __version__) -> str:
    """Why `migrate` of version `own` must not touch a database, "" when it may. Pure. `made_by` is the noted version."""
    theirs, ours = parts(made_by), parts(own)
    # What an earlier version left and this one no longer has is no reason.
    if not unknown or (theirs and theirs < ours):
        return ""
    newer, start = (
        (f"version {made_by}", f"{made_by} or later") if theirs > ours else ("a newer version", "that version")
    )
    first, more = min(unknown), len(unknown) - 1
    changes = first + (f" and {more} more" if more else "")
    return (
        f"The database was last used by {newer} of the portal, and this is version {own}, which does not know its changes "
        f"({changes}): start {start}, or restore a backup of before the upgrade."
    )


def why_not_serve(made_by: str, own: str = __version__) -> str:
    """Why a program of version `own` that changes no tables must not work with a database, "" when it may. Pure."""
    theirs, ours = parts(made_by), parts(own)
    if not theirs or theirs[0] < ours[0] or (theirs[0] == ours[0] and theirs[1] <= ours[1] + 1):
        return ""
    return (
        f"The database was last used by version {made_by} of the portal, and this is version {own}: start {made_by} or later. "
        "Only neighbouring minor versions work side by side."
    )


def is_behind(made_by: str, own: str = __version__) -> bool:
    """Whether `migrate` of version `own` is yet to run. Pure. Of a database without a noted version it does not say."""
    return bool(made_by) and parts(made_by) < parts(own)


def admit() -> None:
    """Returns when a program of this version may work with the database: a new worker starts before `migrate` is done, and must
    not look for tables or columns that are not there yet. Returns, too, when the database does not answer, which every program
    can bear.

    Raises SystemExit with a sentence where the database is too new.
    """
    try:
        # `migrate` notes its version at its end, so no version is also that of a new database that it is still filling.
        while is_behind(made_by := noted(connection)) or (not made_by and state_of(connection).pending):
            log.info("waiting for the migrations to version %s", __version__)
            time.sleep(PAUSE)
    except OperationalError:
        return
    if sentence := why_not_serve(made_by):
        sys.exit(sentence)


def noted(database: BaseDatabaseWrapper) -> str:
    """The version that last ran `migrate`, "" where none has said so."""
    with database.cursor() as cursor:
        cursor.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", [TABLE])
        (comment,) = cursor.fetchone() or (None,)
    found = re.fullmatch(rf"{PRODUCT} (\d+\.\d+\.\d+)", comment or "")
    return found[1] if found else ""


def note(database: BaseDatabaseWrapper) -> None:
    """This version has applied all of its migrations."""
    if noted(database) != __version__:
        with database.cursor() as cursor:
            cursor.execute(f"COMMENT ON TABLE {TABLE} IS %s", [f"{PRODUCT} {__version__}"])


def parts(version: str) -> tuple[int, ...]:
    """To be compared; () for none."""
    return tuple(map(int, version.split("."))) if version else ()
