"""The loop of services as threads of the controller: who hears that there is something to do, and who does it.

It is woken when an endpoint answers or does not any more (in this process, gateway/changes.py), when somebody changed a service
or asks for one that sleeps (NOTIFY), and every second while any lives, because time itself decides of rollouts and of scale. One
controller at a time does it, by a lock of its connection; two at once would only look twice.
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
from clusters.serving import loop, signal
from portal.db.advisory_lock import Lock, advisory_lock

# Seconds between two looks: while a service lives, and while none does; and between two looks at those that are at rest, too.
OFTEN, SELDOM, WHOLE = 1.0, 30.0, 5.0
# For how long it is waited for the lock, and for a word from PostgreSQL before it is asked whether it still lives.
LEAD_SECONDS, LISTEN_SECONDS = 2, 10.0
AGAIN = 1.0


class Ear(threading.Thread):
    """Hears what is said of services, on a connection of its own. `heard` is set after each word; `taken()` are the services that
    were changed, and those that somebody asks for."""

    def __init__(self, heard: threading.Event, stopped: threading.Event) -> None:
        super().__init__(name="services-ear", daemon=True)
        self.heard, self.stopped = heard, stopped
        self._said: dict[str, set[int]] = {signal.CHANGED: set(), signal.WANTED: set()}
        self._lock = threading.Lock()

    def taken(self) -> dict[str, frozenset[int]]:
        """As `loop.tick` takes them."""
        with self._lock:
            found = {channel: frozenset(said) for channel, said in self._said.items()}
            self._said = {channel: set() for channel in found}
        return {"changed": found[signal.CHANGED], "woken": found[signal.WANTED]}

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                self._listen()
            except (psycopg2.Error, OSError):
                # What was said meanwhile is seen with the next look.
                self.stopped.wait(AGAIN)
        connections.close_all()

    def _listen(self) -> None:
        listener = psycopg2.connect(**{**connection.get_connection_params(), "cursor_factory": None})
        try:
            listener.set_isolation_level(psycopg2.extensions.ISOLATION_LEVEL_AUTOCOMMIT)
            with listener.cursor() as cursor:
                cursor.execute(f"LISTEN {signal.CHANGED}; LISTEN {signal.WANTED}")
                self.heard.set()
                while not self.stopped.is_set():
                    ready, _, _ = select.select([listener], [], [], LISTEN_SECONDS)
                    if not ready:
                        # A connection that is gone says so.
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
    """Looks after services while it has the lead. `changed`, which wakes it, is set by the cloud's news, too."""

    def __init__(self, stopped: threading.Event) -> None:
        super().__init__(stopped)
        self.ear = Ear(self.changed, stopped)

    def start(self) -> None:
        self.ear.start()
        super().start()

    def work(self) -> float:
        """Holds the lead until it is stopped, or the connection with the lock is lost."""
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
                    # A row that somebody else had changed or locked: the next look sees what became of it.
                    pause = AGAIN
                else:
                    if is_whole:
                        whole_at, pause = time.monotonic(), OFTEN if found else SELDOM
                    elif found:
                        pause = OFTEN
                self.changed.wait(pause)
        return 0.0
