"""Follows every cloud and writes what happens there (`observe`) for as long as it lives: `manage.py controller`.

Each cloud has its own thread and database connection, so that a failing or slow one does not disturb others. Only one process
follows a cloud at a time: its thread holds a PostgreSQL advisory lock on the connection that it writes with. So two controllers
may run, and the second takes over when the first dies.
"""

from __future__ import annotations

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
from clusters.clouds.models import CloudState
from clusters.logs.collect import Holding
from clusters.machine.sampler import sampling
from clusters.runs.placing import pools
from clusters.runs.status.observe import apply_batch, apply_listing, save_capacity, save_trouble
from portal.db.advisory_lock import Lock, advisory_lock
from portal.garbage import settle
from portal.monitoring.health import alive

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
# Seconds that a thread waits for the lead before it checks whether it was stopped.
LEAD_SECONDS = 2
# Seconds after which a watch counts as stable; longest pause before a retry in seconds.
STEADY, LONGEST_PAUSE = 10.0, 5.0
# Minimum seconds between two updates of the capacity while there is much news.
CAPACITY_SECONDS = 0.5
# Seconds after which it is read again what flavors and runs ask of nodes: which labels are stored, which taints tolerated.
ASKED_SECONDS = 2.0
# Maximum seconds for which a thread with an answer from PostgreSQL or Kubernetes waits for a computing thread. With Python's
# default of 5 ms, at each query of a batch, the processor would be idle as long as it works.
SWITCH_SECONDS = 0.0005


def tune() -> None:
    """Tunes the interpreter for a process that reads news in one thread, writes it in another, and remembers much."""
    sys.setswitchinterval(SWITCH_SECONDS)
    # News is JSON, which has no cycles.
    settle()


def follow_all(stopped: threading.Event) -> None:
    """Follows every cloud, including those added later, until `stopped` is set."""
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
    """Stops followers of clouds that were removed or are reached differently now, and starts the missing ones."""
    for name, follower in list(followers.items()):
        if wanted.get(name) != follower.version or not follower.is_alive():
            follower.stop()
            del followers[name]
    for name in wanted.keys() - followers.keys():
        followers[name] = Follower(name, wanted[name])
        followers[name].start()


class Follower(threading.Thread):
    """Follows one cloud with the connection settings of `version`. After `stop` it ends at its next news and frees the lock."""

    def __init__(self, cloud: str, version: Hashable) -> None:
        super().__init__(name=f"follow-{cloud}", daemon=True)
        self.cloud, self.version = cloud, version
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """Retries forever while the database restarts or the cloud is away. Pauses are short again after a stable period, so
        that a cloud that restarts once a day is followed again at once."""
        log.info("following %s", self.cloud)
        failures = 0
        while not self._stopped.is_set():
            began = time.monotonic()
            with ExitStack() as held:
                try:
                    # `_follow` writes with the connection that holds the lock: losing it ends the lead and all later writes.
                    if held.enter_context(advisory_lock(Lock.FOLLOWER, self.cloud, seconds=LEAD_SECONDS)):
                        source = registry.cloud(self.cloud)
                        held.enter_context(sampling(source))
                        self._follow(source)
                    continue
                except (CloudError, OperationalError, InterfaceError) as error:
                    log.warning("%s: trying again: %s", self.cloud, error)
                    trouble = str(error) if isinstance(error, CloudError) else ""
                except Exception as error:
                    # A bug with one cloud must not stop the others.
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
        """Lists if there is no position, then watches until it is stopped. Raises CloudError or OperationalError when cut off."""
        with connection.cursor() as cursor:
            # A leader whose machine dies does not disconnect; PostgreSQL frees its lock when its keepalives fail.
            cursor.execute(
                "SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false), "
                "set_config('tcp_keepalives_count', '3', false)"
            )
        state = CloudState.objects.filter(name=source.name).first()
        position = state.position if state else ""
        known: tuple[Capacity, pools.Asked] | None = None
        told, asked, asked_at = 0.0, pools.asked(), time.monotonic()
        holding = Holding(source)
        registry.identify(source)
        while not self._stopped.is_set():
            if not position:
                listed_at = timezone.now()
                listing = source.list()
                apply_listing(source.name, listing, listed_at)
                source.acknowledge(holding.settle(listing.items))
                position = listing.position
                known = source.capacity(), asked
                save_capacity(source.name, *known)
            try:
                for batch in source.watch(position):
                    apply_batch(source.name, batch)
                    source.acknowledge(holding.settle(batch.items))
                    position = batch.position
                    if not batch.items or known is None or time.monotonic() - told > CAPACITY_SECONDS:
                        told = time.monotonic()
                        if told - asked_at > ASKED_SECONDS:
                            asked, asked_at = pools.asked(), told
                        if (seen := (source.capacity(), asked)) != known:
                            known = seen
                            save_capacity(source.name, *known)
                    if self._stopped.is_set():
                        return
            except WatchExpired:
                log.info("%s: listing again", source.name)
                position = ""

    def _forget(self) -> None:
        """Deletes the state of a removed cloud, as this thread may have written it after the removal."""
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
