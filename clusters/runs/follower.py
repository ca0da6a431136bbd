"""Follows every cloud and has written down what happened there (`observe`), for as long as it lives: `manage.py controller`.

Each cloud is followed in a thread of its own, with a database connection of its own, so that one that fails or is slow
disturbs no other. Only one process follows a cloud at a time: its thread holds an advisory lock of PostgreSQL on the
connection that it writes with. So starting two controllers is safe, and the other takes over when the first dies.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Hashable
from contextlib import ExitStack

from django.db import DatabaseError, InterfaceError, OperationalError, connection, connections
from django.utils import timezone

from billing.efficiency.capacity import record as record_gpus
from clusters.clouds import registry
from clusters.clouds.drivers.base import Capacity, Cloud, CloudError, WatchExpired
from clusters.logs.collect import Holding
from clusters.models import CloudState
from clusters.runs.observe import apply_batch, apply_listing, save_capacity, save_trouble
from portal.db.advisory_lock import Lock, advisory_lock
from portal.health import alive

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
# How long a thread waits for the lead before it looks whether it is still wanted.
LEAD_SECONDS = 2
# Seconds: from when on a watch counts as going well, and the longest pause before the next try.
STEADY, LONGEST_PAUSE = 10.0, 5.0
# While much happens, what is free is told at most so often.
CAPACITY_SECONDS = 0.5
# How long a thread that has its answer from PostgreSQL or Kubernetes waits at most for one that computes. Python's own 5 ms, at
# each of a batch's queries, would leave the processor idle for as long as it works.
SWITCH_SECONDS = 0.0005
# News are JSON, which has no cycles: looking for some among all that is remembered, at Python's own rate of every 700 objects,
# takes twice as long as parsing.
COLLECTED = (50_000, 20, 50)


def tune() -> None:
    """Settings of the interpreter for a process that reads news in one thread, writes them in another, and remembers much."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*COLLECTED)


def follow_all(stopped: threading.Event) -> None:
    """Follows every cloud that there is, those that come later too, until it is stopped."""
    followers: dict[str, Follower] = {}
    while not stopped.is_set():
        try:
            adjust(followers, registry.followed())
        except (OperationalError, InterfaceError) as error:
            log.warning("which clouds there are cannot be read now: %s", error)
            connections.close_all()
        alive()
        stopped.wait(LOOK_SECONDS)
    running = list(followers.values())
    adjust(followers, {})
    for follower in running:
        follower.join()
    connections.close_all()


def adjust(followers: dict[str, Follower], wanted: dict[str, Hashable]) -> None:
    """Ends what follows a cloud that is not wanted any more, or is reached in another way now, and begins what is missing."""
    for name, follower in list(followers.items()):
        if wanted.get(name) != follower.version or not follower.is_alive():
            follower.stop()
            del followers[name]
    for name in wanted.keys() - followers.keys():
        followers[name] = Follower(name, wanted[name])
        followers[name].start()


class Follower(threading.Thread):
    """Follows one cloud as it is reached in `version`. What is stopped ends with its next news; the one that takes its place
    waits for its lock meanwhile."""

    def __init__(self, cloud: str, version: Hashable) -> None:
        super().__init__(name=f"follow-{cloud}", daemon=True)
        self.cloud, self.version = cloud, version
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """A database that restarts or a cloud that is away is waited for, never given up on. After a time that went well the
        pauses are short again: what restarts once a day is followed again at once."""
        log.info("following %s", self.cloud)
        failures = 0
        while not self._stopped.is_set():
            began = time.monotonic()
            with ExitStack() as held:
                try:
                    # It belongs to the connection that `_follow` writes with: who loses that loses the lead and every later
                    # write at the same moment.
                    if held.enter_context(advisory_lock(Lock.FOLLOWER, self.cloud, seconds=LEAD_SECONDS)):
                        self._follow(registry.cloud(self.cloud))
                    continue
                except (CloudError, OperationalError, InterfaceError) as error:
                    log.warning("%s: trying again: %s", self.cloud, error)
                    trouble = str(error) if isinstance(error, CloudError) else ""
                except Exception as error:
                    # A mistake of ours about one cloud must not take the others along.
                    log.exception("%s: trying again", self.cloud)
                    trouble = f"The portal failed ({type(error).__name__}); the controller's log says more."
                self._tell(trouble)
            failures = 1 if time.monotonic() - began > STEADY else failures + 1
            connections.close_all()
            self._stopped.wait(min(0.1 * 2 ** min(failures, 10), LONGEST_PAUSE))
        self._forget()
        connections.close_all()
        log.info("not following %s any more", self.cloud)

    def _follow(self, source: Cloud) -> None:
        """Lists when there is no position, then watches until it is stopped. Raises CloudError or OperationalError when cut
        off."""
        with connection.cursor() as cursor:
            # A leader whose machine is gone says no goodbye; its lock is free when PostgreSQL has asked in vain.
            cursor.execute(
                "SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false), "
                "set_config('tcp_keepalives_count', '3', false)"
            )
        state = CloudState.objects.filter(name=source.name).first()
        position = state.position if state else ""
        known: Capacity | None = None
        told = 0.0
        holding = Holding(source)
        registry.identify(source)
        while not self._stopped.is_set():
            if not position:
                asked_at = timezone.now()
                listing = source.list()
                apply_listing(source.name, listing, asked_at)
                source.acknowledge(holding.settle(listing.items))
                position = listing.position
                known = source.capacity()
                save_capacity(source.name, known)
            try:
                for batch in source.watch(position):
                    apply_batch(source.name, batch)
                    source.acknowledge(holding.settle(batch.items))
                    position = batch.position
                    if not batch.items or known is None or time.monotonic() - told > CAPACITY_SECONDS:
                        told = time.monotonic()
                        if (seen := source.capacity()) != known:
                            known = seen
                            save_capacity(source.name, known)
                    if self._stopped.is_set():
                        return
            except WatchExpired:
                log.info("%s: listing again", source.name)
                position = ""

    def _forget(self) -> None:
        """Of a cloud that was removed, this thread may have written the last news after that."""
        try:
            if self.cloud not in registry.cloud_names():
                CloudState.objects.filter(name=self.cloud).delete()
                record_gpus(self.cloud, {}, timezone.now())
        except DatabaseError as error:
            log.warning("%s: what was known of it stays for now: %s", self.cloud, error)

    def _tell(self, trouble: str) -> None:
        if trouble and not self._stopped.is_set():
            try:
                save_trouble(self.cloud, trouble)
            except DatabaseError as error:
                log.warning("%s: its trouble is not written down: %s", self.cloud, error)
