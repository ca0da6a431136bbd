"""Makes the buckets of appcodes the portal's own on an S3 server into which a backup was restored: users, keys and versions.
`manage.py restore` calls it; it may be repeated.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from datastores.drivers.base import DriverError
from datastores.models import Storage
from datastores.storage.adopt import adopt
from datastores.storage.store import StorageAway


class Command(BaseCommand):
    help = __doc__

    def handle(self, *args: Any, **options: Any) -> None:
        for row in Storage.objects.select_related("appcode").order_by("pk"):
            try:
                same, others = adopt(row)
            except (StorageAway, DriverError) as error:
                raise CommandError(f"{row.bucket}: {error}") from error
            lost = f", {others} had other files before the backup" if others else ""
            self.stdout.write(f"{row.bucket}: new keys; {same} versions are as they were{lost}.")
