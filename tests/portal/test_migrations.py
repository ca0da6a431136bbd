"""Tables are those of the models. What the database keeps by itself stands in the apps' SQL files; a later migration that changes
it changes them, too."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

FUNCTION = re.compile(r"CREATE FUNCTION (\w+)\(.*?AS \$\$(.*?)\$\$;", re.DOTALL)
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
    text = "\n".join(path.read_text() for path in sorted(settings.BASE_DIR.glob("*/sql/*.sql")))
    text = re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)
    with connection.cursor() as cursor:
        cursor.execute(FUNCTIONS)
        assert dict(cursor.fetchall()) == dict(FUNCTION.findall(text))
        cursor.execute(TRIGGERS)
        assert sorted(cursor.fetchall()) == sorted(TRIGGER.findall(text))
    assert len(TRIGGER.findall(text)) == text.count("TRIGGER ")
