"""Runs a shell, or the command after --, inside a running task, for operators on the portal's own machine.
Its exit code is passed on.

manage.py shell-into ops-demo/show1 worker 0
manage.py shell-into ops-demo/show1 worker 0 -- nvidia-smi -L
"""

from __future__ import annotations

import getpass
import sys
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from clusters.clouds.drivers.base import NO_COMMANDS, SHELL, CloudError, RunsCommands
from clusters.clouds.registry import cloud_of, run_ref
from clusters.cluster.actions import note_command
from clusters.frameworks import starting
from clusters.management import terminal as management_terminal
from clusters.runs.models import Cluster, Run
from portal.management.described import DescribedCommand

# The exit code that ssh uses for a failed connection, as opposed to the command's.
CUT_OFF = 255


class Command(DescribedCommand):
    help = __doc__
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("cluster", help="appcode/name")
        parser.add_argument("role", help="master, ps, worker, …")
        parser.add_argument("index", type=int)
        parser.add_argument("command", nargs="*", help="after --; a shell when absent")

    def handle(self, *args: Any, **options: Any) -> None:
        run = _run(options["cluster"])
        role, index, terminal = options["role"], options["index"], management_terminal.is_terminal()
        argv = options["command"] or list(SHELL)
        if index not in range(run.spec["roles"].get(role, {}).get("count", 0)):
            raise CommandError(f"Run {run.number} of {run.cluster} has no task {role}-{index}.")
        try:
            cloud, ref = cloud_of(run), run_ref(run)
            if not isinstance(cloud, RunsCommands):
                raise CommandError(NO_COMMANDS)
            session = cloud.exec(ref, role, index, starting.beside(argv), stdin=True, tty=terminal)
        except CloudError as error:
            raise CommandError(str(error)) from error
        try:
            note_command(run, role, index, argv, acting_user=None, who=getpass.getuser())
            # The session may last for hours: do not hold database connections.
            connections.close_all()
            code = management_terminal.talk(session, terminal=terminal)
        except CloudError as error:
            raise CommandError(str(error), returncode=CUT_OFF) from error
        except KeyboardInterrupt:
            code = 130
        finally:
            session.close()
        sys.exit(code)


def _run(name: str) -> Run:
    appcode, _, cluster = name.partition("/")
    rows = Cluster.objects.select_related("appcode", "current_run")
    found = rows.filter(appcode__code=appcode, name=cluster, deleted_at=None).first()
    if found is None:
        raise CommandError(f"There is no cluster “{name}”; name it as appcode/name.")
    if found.current_run is None:
        raise CommandError(f"{name} has never been deployed.")
    run = found.current_run
    run.cluster = found
    return run
