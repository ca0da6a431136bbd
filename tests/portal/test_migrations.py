"""Tables match the models, functions match the SQL files, and released migrations never change (docs/migrations.md)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, models
from django.db.migrations import Migration, operations
from django.db.migrations.loader import MigrationLoader
from django.db.models.fields import NOT_PROVIDED

from portal import __version__
from portal.installation.upgrades import parts
from tests.running import ROOT

# As `sha256sum` writes it: the migrations and SQL files of all releases.
RELEASED = Path(__file__).parent / "released.sha256"
OURS = ("portal", "billing", "datastores", "clusters")
FUNCTION = re.compile(r"CREATE (?:OR REPLACE )?FUNCTION (\w+)\(.*?AS \$\$(.*?)\$\$;", re.DOTALL)
TRIGGER = re.compile(r"CREATE (?:CONSTRAINT )?TRIGGER (\w+) .*?\bON (\w+)\b.*?EXECUTE FUNCTION (\w+)\(\);", re.DOTALL)
FUNCTIONS = """
SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    AND NOT EXISTS (SELECT 1 FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')
"""
TRIGGERS = """
SELECT tgname, tgrelid::regclass::text, tgfoid::regproc::text FROM pg_trigger WHERE NOT tgisinternal
"""


def test_the_tables_are_those_of_the_models(db: None, capsys: Any) -> None:
    try:
        call_command("makemigrations", check=True, dry_run=True)
    except SystemExit:
        pytest.fail(capsys.readouterr().out)


def test_functions_and_triggers_of_the_database_are_those_of_the_files(db: None, settings: Any) -> None:
    # Files of later migrations begin with the number of the migration, and replace what files without a number define.
    found = sorted(settings.BASE_DIR.glob("*/sql/*.sql"), key=lambda path: (path.name[0].isdigit(), path.name))
    text = "\n".join(path.read_text() for path in found)
    text = re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)
    with connection.cursor() as cursor:
        cursor.execute(FUNCTIONS)
        assert dict(cursor.fetchall()) == dict(FUNCTION.findall(text))
        cursor.execute(TRIGGERS)
        assert sorted(cursor.fetchall()) == sorted(TRIGGER.findall(text))
    assert len(TRIGGER.findall(text)) == text.count("TRIGGER ")


def released() -> dict[str, str]:
    """The digest of each released file, by its path."""
    return {path: digest for digest, path in map(str.split, RELEASED.read_text().splitlines())}


def test_released_migrations_never_change() -> None:
    for path, digest in released().items():
        assert (ROOT / path).exists(), (
            f"{path} is gone. It was released, and new databases are still made by it. Bring it back and write a new migration "
            "(docs/migrations.md)."
        )
        assert hashlib.sha256((ROOT / path).read_bytes()).hexdigest() == digest, (
            f"{path} has changed. It was released, so databases that it made would differ from new ones. Take the change "
            "back and write a new migration (docs/migrations.md)."
        )


def new_migrations() -> list[Migration]:
    """Those that no release has."""
    known, loader = released(), MigrationLoader(None)
    found = [each for (app, _), each in loader.disk_migrations.items() if app in OURS]
    return [each for each in found if f"{each.app_label}/migrations/{each.name}.py" not in known]


def test_the_version_before_survives_new_migrations() -> None:
    assert [f"{each.app_label}.{each.name}: {why}" for each in new_migrations() for why in objections(each)] == []


SHRINKS = (
    operations.RemoveField, operations.DeleteModel, operations.RenameField, operations.RenameModel, operations.AlterModelTable,
    operations.RemoveConstraint,
)  # fmt: skip


def objections(migration: Migration) -> Iterable[str]:
    """Why programs of the version before would fail on a database that has this migration, as far as its operations show it."""
    unused: str = getattr(migration, "unused_since", "")
    is_released = bool(unused) and parts(unused) <= parts(__version__)
    for each in migration.operations:
        name = type(each).__name__
        if isinstance(each, operations.AddField) and not _fills_itself(each.field):
            yield f"{name} {each.model_name}.{each.name}: rows of the version before have no value for it; add db_default or null"
        elif isinstance(each, SHRINKS) and not is_released:
            yield f"{name}: the version before may still use it; say in `unused_since` which released version no longer does"


def _fills_itself(field: models.Field[Any, Any]) -> bool:
    return field.null or field.many_to_many or field.generated or field.db_default is not NOT_PROVIDED


def made(*wanted: Any, **more: str) -> Migration:
    return type("Migration", (Migration,), {"operations": wanted, **more})("0003_new", "portal")


@pytest.mark.parametrize(
    ("migration", "objection"),
    [
        (made(operations.AddField("appcode", "colour", models.TextField(default=""))), "add db_default or null"),
        (made(operations.AddField("appcode", "colour", models.TextField(default="", db_default=""))), ""),
        (made(operations.AddField("appcode", "colour", models.TextField(null=True))), ""),
        (made(operations.CreateModel("Colour", [("id", models.BigAutoField(primary_key=True))])), ""),
        (made(operations.RemoveField("appcode", "remark")), "unused_since"),
        (made(operations.RemoveField("appcode", "remark"), unused_since="99.0.0"), "unused_since"),
        (made(operations.RemoveField("appcode", "remark"), unused_since=__version__), ""),
        (made(operations.RenameModel("Appcode", "Project")), "unused_since"),
    ],
)
def test_what_the_version_before_would_not_survive_is_said(migration: Migration, objection: str) -> None:
    said = " ".join(objections(migration))
    assert objection in said
    assert bool(objection) == bool(said)
