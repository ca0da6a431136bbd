"""`manage.py make_demo_history`: some weeks of generated usage for the dashboards, clearly labelled (billing/history.py)."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing import history
from portal.errors import Conflict
from portal.models import User


class Command(BaseCommand):
    help = "Makes generated example data for the dashboards; manage.py remove_demo_history takes it away again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--owner", help="who owns the appcodes of the example; default: the first administrator")

    def handle(self, *args: Any, **options: Any) -> None:
        people = User.objects.filter(is_active=True).order_by("pk")
        name = options["owner"]
        owner = people.filter(username=name).first() if name else people.filter(is_superuser=True).first()
        if owner is None:
            raise CommandError(f"There is nobody called “{name}”." if name else "There is no administrator to own it.")
        try:
            made = history.make(timezone.now(), owner=owner)
        except Conflict as conflict:
            raise CommandError(str(conflict)) from conflict
        self.stdout.write(f"{made} runs of example data were generated.")
