"""Encrypts every stored secret with the present PORTAL_SECRET_KEY and PORTAL_SALT_KEYS, so that older ones can be dropped.

manage.py rotate_keys            encrypts what an older key encrypted; may be repeated, and stopped at any time
manage.py rotate_keys --check    only counts; exit status 1 while an older key is still needed
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from portal.installation.rotation import rotate
from portal.management.described import DescribedCommand


class Command(DescribedCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="change nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        left, lost = 0, list[str]()
        for found in rotate(change=not options["check"]):
            left += found.older - found.rotated
            lost += [f"{found.label} of row {pk}" for pk in found.lost]
            if found.present or found.older:
                self.stdout.write(
                    f"{found.label}: {found.present} with the present key, {found.older} with an older one, "
                    f"{found.rotated} encrypted anew"
                )
        if lost:
            raise CommandError(
                "No listed key opens " + ", ".join(lost) + ". Enter these again, or list the key that made them."
            )
        if left:
            raise CommandError(f"{left} values still need an older key: run `manage.py rotate_keys` (again).")
        self.stdout.write(
            "Every stored secret is encrypted with the present key; older ones are no longer needed for any."
        )
