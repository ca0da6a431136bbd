"""A database of another version: who refuses it, who accepts it, and what is kept before it is changed."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpResponse
from django.test import RequestFactory

from portal import __version__
from portal.installation import upgrades
from portal.installation.upgrades import is_behind, noted, why_not_migrate, why_not_serve
from portal.monitoring.health import HealthMiddleware
from portal.up import backup
from portal.up.servers import postgres_binaries
from portal.up.services import REFUSED, ServiceError
from tests.running import ROOT, Portal, environment, up_once

FUTURE = ("portal", "0099_future")


@pytest.mark.parametrize(
    ("unknown", "made_by", "refused"),
    [
        ([], "1.4.0", ""),
        ([], "1.5.0", ""),  # no migration lies between the two
        (["portal.0009_x"], "1.5.0", "version 1.5.0"),
        (["portal.0009_x"], "1.4.1", "version 1.4.1"),
        (["portal.0009_x"], "2.0.0", "version 2.0.0"),
        # Between releases.
        (["portal.0009_x"], "1.4.0", "a newer version"),
        (["portal.0009_x"], "", "a newer version"),
        # Of an app that 1.4 has no more.
        (["old.0001_x"], "1.3.0", ""),
        (["old.0001_x"], "1.10.0", "version 1.10.0"),
    ],
)
def test_migrate_refuses_what_it_does_not_know(unknown: list[str], made_by: str, refused: str) -> None:
    sentence = why_not_migrate(unknown, made_by, "1.4.0")
    assert (f"last used by {refused} of the portal, and this is version 1.4.0" in sentence) == bool(refused)
    assert bool(sentence) == bool(refused)


@pytest.mark.parametrize(
    ("made_by", "serves", "behind"),
    [
        ("", True, False), ("1.4.0", True, False), ("1.4.9", True, False), ("1.5.3", True, False), ("1.6.0", False, False),
        ("1.3.9", True, True), ("1.2.0", True, True), ("2.0.0", False, False), ("0.9.0", True, True),
    ],
)  # fmt: skip
def test_neighbouring_versions_serve_side_by_side(made_by: str, serves: bool, behind: bool) -> None:
    assert (why_not_serve(made_by, "1.4.0") == "") == serves
    assert is_behind(made_by, "1.4.0") == behind


@pytest.fixture
def newer(db: None) -> None:
    MigrationRecorder(connection).record_applied(*FUTURE)
    say("1.7.0" if __version__ != "1.7.0" else "1.9.0")


def say(version: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("COMMENT ON TABLE django_migrations IS %s", [f"{upgrades.PRODUCT} {version}"])


def test_migrate_notes_its_version(db: None) -> None:
    say("0.9.0")
    call_command("migrate", "--check", verbosity=0)
    assert noted(connection) == "0.9.0"
    call_command("migrate", verbosity=0)
    assert noted(connection) == __version__


def test_migrate_and_probes_refuse_a_newer_database_with_a_sentence(newer: None, capsys: Any) -> None:
    with pytest.raises(SystemExit) as refused:
        call_command("migrate")
    assert refused.value.code == REFUSED
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("The database was last used by version 1.7.0 of the portal, and this is version ")
    assert "(portal.0099_future): start 1.7.0 or later" in said.err
    assert said.err.count("\n") == 1
    answer = ready()
    assert answer[0] == 503
    assert "start 1.7.0 or later" in answer[1]
    with pytest.raises(SystemExit, match="Only neighbouring"):
        upgrades.admit()


def ready() -> tuple[int, str]:
    """What a web server that has just started answers."""
    answer = HealthMiddleware(lambda request: HttpResponse())(RequestFactory().get("/readyz"))
    return answer.status_code, answer.content.decode()


def test_programs_of_the_version_before_go_on_while_versions_are_exchanged(newer: None) -> None:
    major, minor, _ = __version__.split(".")
    say(f"{major}.{int(minor) + 1}.0")
    assert ready() == (200, "ok\n")
    upgrades.admit()


def test_a_program_that_starts_before_the_migrations_waits_for_them(db: None, monkeypatch: Any) -> None:
    paused: list[float] = []

    def migrated(seconds: float) -> None:
        paused.append(seconds)
        say(__version__)

    say("0.9.0")
    monkeypatch.setattr("portal.installation.upgrades.time.sleep", migrated)
    upgrades.admit()
    assert paused == [upgrades.PAUSE]


def test_a_program_that_starts_before_a_new_database_is_filled_waits_until_it_is(db: None, monkeypatch: Any) -> None:
    """Else it would fail for want of its tables, and Kubernetes would start it again later and later."""
    paused: list[float] = []

    def migrated(seconds: float) -> None:
        paused.append(seconds)
        with connection.cursor() as cursor:
            if len(paused) == 1:  # `migrate` has begun
                cursor.execute("ALTER TABLE not_yet RENAME TO django_migrations")
                cursor.execute("DELETE FROM django_migrations WHERE app = 'portal'")
            else:
                cursor.execute("INSERT INTO django_migrations SELECT * FROM kept WHERE app = 'portal'")
                say(__version__)

    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE kept AS TABLE django_migrations")
        cursor.execute("COMMENT ON TABLE django_migrations IS NULL")
        cursor.execute("ALTER TABLE django_migrations RENAME TO not_yet")
    monkeypatch.setattr("portal.installation.upgrades.time.sleep", migrated)
    upgrades.admit()
    assert paused == [upgrades.PAUSE] * 2


@pytest.fixture
def database() -> Iterator[str]:
    """The name of a new database."""
    name = f"upgrades_{os.getpid()}"
    server = psycopg2.connect(os.environ["DATABASE_URL"])
    server.autocommit = True
    with server.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
            server.close()


def dsn(name: str) -> str:
    return psycopg2.extensions.make_dsn(**where(name))


def where(name: str) -> dict[str, str]:
    """The same as parameters of libpq."""
    given = psycopg2.extensions.parse_dsn(os.environ["DATABASE_URL"])
    return {"host": given["host"], "user": given["user"], "dbname": name}


def test_a_backup_can_be_restored_and_the_last_three_stay(database: str, tmp_path: Path, monkeypatch: Any) -> None:
    with psycopg2.connect(**where(database)) as session, session.cursor() as cursor:
        cursor.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    session.close()
    folder = tmp_path / "backups"
    made = [
        backup.backup_before_migration(
            where(database), folder, f"1.{9 + day}.0", dt.datetime(2027, 1, day, tzinfo=dt.UTC)
        )
        for day in (1, 2, 3, 4, 5)
    ]
    assert sorted(folder.iterdir()) == sorted(made[-backup.KEPT :])
    assert made[-1].name == "before-1.14.0-20270105T000000Z.dump"
    assert {path.stat().st_mode & 0o777 for path in made[-backup.KEPT :]} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    with psycopg2.connect(**where(database)) as session, session.cursor() as cursor:
        cursor.execute("DROP TABLE kept")
    session.close()
    argv = [postgres_binaries() / "pg_restore", f"--dbname={dsn(database)}", "--exit-on-error", made[-1]]
    subprocess.run(argv, check=True)
    with psycopg2.connect(**where(database)) as session, session.cursor() as cursor:
        cursor.execute("SELECT answer FROM kept")
        assert cursor.fetchall() == [(42,)]
    session.close()


def test_without_a_backup_nothing_is_migrated(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"could not be backed up .* so it was not migrated: .*no_such_database"):
        backup.backup_before_migration(where("no_such_database"), tmp_path, "1.1.0", dt.datetime.now(dt.UTC))
    assert list(tmp_path.iterdir()) == []


def test_backups_of_a_server_of_ones_own_are_ones_own(db: None, capsys: Any) -> None:
    MigrationRecorder(connection).record_unapplied("socialaccount", "0006_alter_socialaccount_extra_data")
    call_command("migrate", back_up_to="")
    said = capsys.readouterr()
    assert said.out.endswith("follow. The database server is yours, and so are its backups.\n")
    assert "Applying socialaccount.0006" in said.err
    call_command("migrate", back_up_to="")
    assert capsys.readouterr().out == ""


def test_worker_controller_and_migrate_end_with_the_sentence(database: str) -> None:
    """As containers start them."""
    with psycopg2.connect(**where(database)) as session, session.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE django_migrations (id bigint PRIMARY KEY, app text, name text, applied timestamptz)"
        )
        cursor.execute("INSERT INTO django_migrations VALUES (1, %s, %s, now())", FUTURE)
        cursor.execute(f"COMMENT ON TABLE django_migrations IS '{upgrades.PRODUCT} 1.7.0'")
    session.close()
    programs = {
        "controller": [sys.executable, "manage.py", "controller"],
        "worker": [sys.executable, "-m", "celery", "--quiet", "--app", "portal", "worker", "--pool", "threads"],
        "migrate": [sys.executable, "manage.py", "migrate", "--no-input"],
    }  # fmt: skip
    address = os.environ["DATABASE_URL"].replace("/portal?", f"/{database}?")
    for name, argv in programs.items():
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": address},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == (REFUSED if name == "migrate" else 1), (name, done)
        assert done.stderr.splitlines()[-1].startswith("The database was last used by version 1.7.0 of the portal"), (
            name,
            done,
        )


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_start_backs_up_before_it_migrates_and_refuses_what_a_newer_portal_left(tmp_path: Path) -> None:
    """One migration is taken back, by Django's own means, so that the next start has one to apply."""
    portal = Portal(tmp_path / "var", PORTAL_DEMO="0")
    own = where("portal") | {"host": str(portal.data / "run"), "user": "portal"}
    portal.start()
    argv = [sys.executable, "manage.py", "migrate", "socialaccount", "0005"]
    env = environment(portal.data, portal.port)
    subprocess.run(argv, cwd=ROOT, env=env, check=True, capture_output=True, timeout=120)
    assert portal.stop() == 0
    assert not portal_backups(portal), "a new data folder has nothing to back up"

    portal.start()
    said = portal.data.with_suffix(".out").read_text()
    (made,) = portal_backups(portal)
    lines = [
        f"  Backing up the database before 1 migration(s) of version {__version__} …",
        f"  Backup: {made}",
        "  Database and static files: up to date",
    ]
    assert [line for line in said.splitlines() if line in lines] == lines
    assert "Applying socialaccount.0006" in (portal.data / "log" / "migrate.log").read_text()
    with psycopg2.connect(**own) as session, session.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_migrations WHERE app = 'socialaccount' AND name LIKE '0006%'")
        assert cursor.fetchone() == (1,)
        cursor.execute("INSERT INTO django_migrations (app, name, applied) VALUES (%s, %s, now())", FUTURE)
        cursor.execute(f"COMMENT ON TABLE django_migrations IS '{upgrades.PRODUCT} 1.7.0'")
    session.close()
    listed = subprocess.run(
        [postgres_binaries() / "pg_restore", "--list", made], capture_output=True, text=True, check=True
    )
    assert "TABLE DATA public portal_user" in listed.stdout
    assert portal.stop() == 0

    before = {path: path.stat().st_mtime_ns for path in (portal.data / "log").iterdir()}
    refused = up_once(portal.data, portal.port)
    assert refused.returncode == 1
    assert refused.stderr == (
        f"The database was last used by version 1.7.0 of the portal, and this is version {__version__}, which does not know its "
        "changes (portal.0099_future): start 1.7.0 or later, or restore a backup of before the upgrade.\n"
    )
    changed = {path.name for path, at in before.items() if path.stat().st_mtime_ns != at}
    assert changed <= {"migrate.log", "postgres.log", "valkey.log"}
    assert portal_backups(portal) == [made]
    assert portal.left() == []


def portal_backups(portal: Portal) -> list[Path]:
    return sorted((portal.data / "backups").glob("*"))
