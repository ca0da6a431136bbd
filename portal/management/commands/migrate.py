"""Django's `migrate`, which refuses a database of a newer version, backs one up before it is changed, and notes the version."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import CommandParser
from django.core.management.commands import migrate
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from portal import __version__
from portal.installation import upgrades
from portal.up import backup
from portal.up.services import REFUSED, ServiceError


class Command(migrate.Command):
    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--back-up-to",
            metavar="FOLDER",
            help='Where `manage.py up` keeps what it backs up before a migration; "" where the server is not its own.',
        )

    def handle(self, *args: Any, **options: Any) -> None:
        database = connections[options["database"]]
        if options["plan"] or options["check_unapplied"]:
            super().handle(*args, **options)
            return
        before = upgrades.state_of(database)
        if sentence := upgrades.why_not_migrate(before.unknown, upgrades.noted(database)):
            self._refuse(sentence)
        folder: str | None = options["back_up_to"]
        say = self.stdout.write
        if folder is not None:
            # Of `up` the standard output is the terminal, for people, and errors are its log.
            self.stdout = self.stderr
        if before.pending and not before.is_empty and folder is not None:
            self._keep(database, Path(folder) if folder else None, f"{len(before.pending)} migration(s)", say)
        super().handle(*args, **options)
        if not (options["app_label"] or options["fake"]):
            upgrades.note(database)

    def _keep(
        self, database: BaseDatabaseWrapper, folder: Path | None, what: str, say: Callable[[str], object]
    ) -> None:
        if folder is None:
            say(f"  {what} of version {__version__} follow. The database server is yours, and so are its backups.")
            return
        say(f"  Backing up the database before {what} of version {__version__} …")
        try:
            made = backup.backup_before_migration(database.get_connection_params(), folder, __version__, timezone.now())
        except ServiceError as error:
            self._refuse(str(error))
        say(f"  Backup: {made}")

    def _refuse(self, sentence: str) -> NoReturn:
        self.stderr.write(sentence)
        sys.exit(REFUSED)
