"""The controller: one process that listens to the cloud and writes what happened (`clusters.watch`), for as long as it lives.

Only one works at a time: the leader holds an advisory lock of PostgreSQL on the connection that it writes with; a second
controller waits for that lock, so starting two is safe and the other takes over when the first dies.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from django.core.management.base import BaseCommand
from django.db import InterfaceError, OperationalError, connection, connections
from django.utils import timezone

from clusters.clouds.base import Cloud, CloudError, WatchExpired
from clusters.clouds.registry import cloud
from clusters.models import CloudState
from clusters.watch import apply_batch, apply_listing, save_capacity

log = logging.getLogger(__name__)

# Any fixed number: the name of the lock in this database.
LEADER_LOCK = 6_117_001
# Seconds: from when on a watch counts as going well, and the longest pause before the next try.
STEADY, LONGEST_PAUSE = 10.0, 5.0


class Command(BaseCommand):
    help = __doc__

    def handle(self, *args: Any, **options: Any) -> None:
        # A database that restarts or a cloud that is away is waited for, never given up on. After a time that went well the
        # pauses are short again: what restarts once a day is followed again at once.
        failures = 0
        while True:
            began = time.monotonic()
            try:
                connections.close_all()
                lead()
                follow(cloud())
            except (CloudError, OperationalError, InterfaceError) as error:
                failures = 1 if time.monotonic() - began > STEADY else failures + 1
                pause = min(0.1 * 2**failures, LONGEST_PAUSE) if failures < 10 else LONGEST_PAUSE
                log.warning("trying again in %.1f s: %s", pause, error)
                time.sleep(pause)


def lead() -> None:
    """Blocks until this process is the leader. The lock belongs to the connection that `follow` writes with, so a lost
    connection loses the lead and every later write at the same moment."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [LEADER_LOCK])


def follow(source: Cloud) -> None:
    """Lists when there is no position, then watches for ever. Raises CloudError or OperationalError when cut off."""
    state = CloudState.objects.filter(name=source.name).first()
    position = state.position if state else ""
    while True:
        if not position:
            asked_at = timezone.now()
            listing = source.list()
            apply_listing(source.name, listing, asked_at)
            source.acknowledge(listing.items)
            position = listing.position
        capacity = source.capacity()
        save_capacity(source.name, capacity)
        try:
            for batch in source.watch(position):
                apply_batch(source.name, batch)
                source.acknowledge(batch.items)
                position = batch.position
                if batch.items and (seen := source.capacity()) != capacity:
                    capacity = seen
                    save_capacity(source.name, capacity)
        except WatchExpired:
            log.warning("the watch position is too old; listing again")
            position = ""
