"""Gives up a cloud that is lost for good: its runs end as lost, its volumes as deleted, and billing ends when the cloud
was last heard.

manage.py give_up_cloud training                    asks for the name again
manage.py give_up_cloud training --yes training     does not
manage.py give_up_cloud training --force            even if something there rejects the portal's credentials
"""

from __future__ import annotations

import getpass
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from clusters.cloud_admin import decommission
from clusters.clouds import registry
from portal.errors import Conflict
from portal.management.described import DescribedCommand


class Command(DescribedCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="as runs and manifests call it")
        parser.add_argument("--yes", metavar="NAME", help="its name again: do not ask for it")
        parser.add_argument(
            "--force",
            action="store_true",
            help="also where something answers that does not accept the portal's credentials",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        row = registry.registered().filter(name=name).first()
        if row is None:
            known = ", ".join(registry.registered().order_by("name").values_list("name", flat=True)) or "none"
            raise CommandError(f"There is no cloud “{name}”. Registered: {known}.")
        if sentence := decommission.why_not(row):
            raise CommandError(sentence)
        self.stdout.write(str(decommission.loss_of(row)))
        if (options["yes"] or self._ask(name)) != name:
            raise CommandError("That is not its name; nothing was changed.")
        try:
            decommission.give_up(row, acting_user=None, who=getpass.getuser(), force=options["force"])
        except Conflict as conflict:
            raise CommandError(str(conflict)) from conflict
        self.stdout.write(
            f"{row.title} is given up and takes no new runs. If it comes back, what is left there is ended. Place its business "
            "lines elsewhere, and remove it when you are sure."
        )

    def _ask(self, name: str) -> str:
        if not sys.stdin.isatty():
            raise CommandError(f"Say it again to do that: --yes {name}")
        return input(f"To go on, type {name}: ").strip()
