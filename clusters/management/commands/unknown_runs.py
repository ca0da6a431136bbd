"""Lists runs on registered clouds that carry this portal's name but are not in the database, and ends them with --end.
This happens after the database was restored from a backup, or when two portals share a name."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from clusters.clouds import registry
from clusters.clouds.drivers.base import Cloud, CloudError, RunFound, RunRef
from clusters.runs.models import Run


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--end", action="store_true", help="End them: their programs are stopped at once.")

    def handle(self, *args: Any, **options: Any) -> None:
        for row in registry.registered().order_by("name"):
            try:
                # A separate connection: another thread may be following with the shared one.
                self._look(registry.connect(row), end=options["end"])
            except CloudError as error:
                raise CommandError(f"{row.name}: {error}") from error

    def _look(self, cloud: Cloud, *, end: bool) -> None:
        for ref in unknown(cloud.name, [item.run for item in cloud.list().items if isinstance(item, RunFound)]):
            about = f"run {ref.number} of {ref.appcode}/{ref.cluster} in namespace {ref.namespace} (id {ref.id})"
            self.stdout.write(f"{cloud.name}: {about}{', ended' if end else ''}")
            if end:
                cloud.delete(ref)


def unknown(cloud: str, found: list[RunRef]) -> list[RunRef]:
    known = set(Run.objects.filter(cloud=cloud, pk__in=[ref.id for ref in found]).values_list("pk", flat=True))
    return [ref for ref in found if ref.id not in known]
