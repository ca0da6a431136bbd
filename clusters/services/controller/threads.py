"""The loop of services, as threads of the controller: one listens for work, one does it.

It wakes when an endpoint starts or stops answering (in this process, gateway/changes.py), when a service was changed or a
sleeping one gets a request (NOTIFY), and every second while a service is alive, because rollouts and scale depend on time. One
controller at a time runs it, by a lock on its connection. Two at once would only check twice.
"""

from __future__ import annotations

import select
import threading
import time

import psycopg2
import psycopg2.extensions
from django.db import DatabaseError, connection, connections
from django.utils import timezone

from clusters.runs.routing import Routing
from clusters.services import notify
from clusters.services.controller import loop
from portal.db.advisory_lock import Lock, advisory_lock

# Seconds between two ticks while a service is alive; while none is; and between two ticks that include services at rest.
OFTEN, SELDOM, WHOLE = 1.0, 30.0, 5.0
# Seconds to wait for the lock, and for a notification before the connection is checked.
LEAD_SECONDS, LISTEN_SECONDS = 2, 10.0
AGAIN = 1.0


class Ear(threading.Thread):
    """Listens for notifications about services on its own connection. Sets `heard` after each. `taken()` returns the services
    that were changed, and those with waiting requests."""

    def __init__(self, heard: threading.Event, stopped: threading.Event) -> None:
        super().__init__(name="services-ear", daemon=True)
        self.heard, self.stopped = heard, stopped
        self._said: dict[str, set[int]] = {notify.CHANGED: set(), notify.WANTED: set()}
        self._lock = threading.Lock()

    def taken(self) -> dict[str, frozenset[int]]:
        """The services since the last call, as arguments of `loop.tick`."""
        with self._lock:
            found = {channel: frozenset(said) for channel, said in self._said.items()}
            self._said = {channel: set() for channel in found}
        return {"changed": found[notify.CHANGED], "woken": found[notify.WANTED]}

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                self._listen()
            except (psycopg2.Error, OSError):
                # The next tick finds what was missed meanwhile.
                self.stopped.wait(AGAIN)
        connections.close_all()

    def _listen(self) -> None:
        listener = psycopg2.connect(**{**connection.get_connection_params(), "cursor_factory": None})
        try:
            listener.set_isolation_level(psycopg2.extensions.ISOLATION_LEVEL_AUTOCOMMIT)
            with listener.cursor() as cursor:
                cursor.execute(f"LISTEN {notify.CHANGED}; LISTEN {notify.WANTED}")
                self.heard.set()
                while not self.stopped.is_set():
                    ready, _, _ = select.select([listener], [], [], LISTEN_SECONDS)
                    if not ready:
                        # Raises if the connection is gone.
                        cursor.execute("SELECT 1")
                    listener.poll()
                    self._note([(each.channel, each.payload) for each in listener.notifies])
                    listener.notifies.clear()
        finally:
            listener.close()

    def _note(self, said: list[tuple[str, str]]) -> None:
        with self._lock:
            for channel, payload in said:
                if payload.isascii() and payload.isdigit() and len(payload) < 19:
                    self._said[channel].add(int(payload))
        if said:
            self.heard.set()


class Servicing(Routing):
    """Runs the loop while it has the lead. News from clouds sets `changed`, too, which wakes it."""

    def __init__(self, stopped: threading.Event) -> None:
        super().__init__(stopped)
        self.ear = Ear(self.changed, stopped)

    def start(self) -> None:
        self.ear.start()
        super().start()

    def work(self) -> float:
        """Holds the lead until it is stopped or the connection with the lock is lost."""
        with advisory_lock(Lock.SERVICES, seconds=LEAD_SECONDS) as is_mine:
            if not is_mine:
                return 0.0
            pause, whole_at = 0.0, float("-inf")
            while not self.stopped.is_set():
                self.changed.clear()
                is_whole = time.monotonic() - whole_at >= WHOLE
                try:
                    found = loop.tick(timezone.now(), **self.ear.taken(), all_of_them=is_whole)
                except DatabaseError:
                    if connection.connection is None or connection.connection.closed:
                        raise
                    # Another transaction changed or locked a row; the next tick sees the result.
                    pause = AGAIN
                else:
                    if is_whole:
                        whole_at, pause = time.monotonic(), OFTEN if found else SELDOM
                    elif found:
                        pause = OFTEN
                self.changed.wait(pause)
        return 0.0
