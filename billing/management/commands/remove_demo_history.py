"""`manage.py remove_demo_history`: takes generated example data away with everything that was made of it (billing/history.py)."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing import history
from portal.errors import Conflict


class Command(BaseCommand):
    help = "Removes the generated example data; nothing that was real is touched."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            removed = history.remove(acting_user=None)
        except Conflict as conflict:
            raise CommandError(str(conflict)) from conflict
        self.stdout.write(
            f"The example data of {removed} appcodes is gone." if removed else "There is no generated example data."
        )
