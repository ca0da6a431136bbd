"""A router's connection to the database: receives changes at once, reports state, and survives an outage.

One thread runs queries; the event loop watches a second connection for notifications. Failed queries are retried with a pause
that grows to five seconds; counters wait in memory meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psycopg2

from clusters.router import rows
from clusters.router.admission import Hall
from clusters.router.counters import Tally
from clusters.router.table import Table

log = logging.getLogger(__name__)
Found = TypeVar("Found")
# Seconds.
RESYNC = 30.0
QUIET = 5.0
MINUTES = 5.0
USED = 60.0
WANTED_AGAIN = 2.0
LAST = 2.0
LONGEST_PAUSE = 5.0


class Link:
    """`name`: of the router's row. `place`: the prefix of `name` shared with earlier routers at this host and port. `path`: file
    of the routing table. `known`: true once there is a routing table."""

    def __init__(self, database: str, name: str, place: str, path: Path, hall: Hall, tally: Tally) -> None:
        self.known = False
        self.tokens: set[int] = set()
        self._database, self._name, self._place, self._path = database, name, place, path
        self._hall, self._tally = hall, tally
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")
        self._connection: rows.Connection | None = None
        self._ear: rows.Connection | None = None
        self._away = False
        self._stale = asyncio.Event()
        self._stale.set()
        self._said: dict[str, Any] | None = None
        self._said_at = self._written_at = self._used_at = self._wanted_at = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []

    def recall(self) -> None:
        """Loads the routing table from its file, if there is one."""
        try:
            self._hall.swap(Table.of(json.loads(self._path.read_bytes())))
            self.known = True
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("%s is of no use: %s", self._path, error)

    def start(self) -> None:
        for work in (self._follow, self._listen, self._tell, self._call):
            self._tasks.append(asyncio.create_task(work()))

    async def stop(self) -> None:
        """Writes the last counters and deletes the router's row, if the database answers within LAST seconds."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(psycopg2.Error, TimeoutError):
            async with asyncio.timeout(LAST):
                await self._write()
                await self._asked(lambda connection: rows.goodbye(connection, self._name))
        self._thread.shutdown(wait=False, cancel_futures=True)
        # A thread blocked on a silent database would keep this process alive.
        for connection in (self._connection, self._ear):
            rows.hang_up(connection)

    async def _follow(self) -> None:
        """Reads changed services on notification, and all services every RESYNC seconds."""
        whole, pause = True, 0.0
        while True:
            try:
                async with asyncio.timeout(pause or RESYNC):
                    await self._stale.wait()
            except TimeoutError:
                whole = True
            self._stale.clear()
            before = self._hall.table
            known = {} if whole else {number: each.route for number, each in before.by_id.items()}
            try:
                found, living = await self._asked(lambda connection, known=known: rows.read(connection, known))  # type: ignore[misc]
            except (psycopg2.Error, ValueError) as error:
                self._lost(error)
                pause, whole = min(LONGEST_PAUSE, max(0.25, 2 * pause)) * random.uniform(0.75, 1), True  # noqa: S311
                continue
            whole, pause = False, 0.0
            table = before.changed(found, living)
            self.known = True
            if table.by_id != before.by_id or self._said is None:
                self._hall.swap(table)
                await self._report()
                await asyncio.to_thread(self._keep, table)

    async def _listen(self) -> None:
        """Listens for notifications. Reconnects when the connection breaks, then triggers a read for the missed ones."""
        loop, pause = asyncio.get_running_loop(), 0.0
        while True:
            try:
                connection = await asyncio.to_thread(self._listening)
            except psycopg2.Error:
                pause = min(LONGEST_PAUSE, max(0.25, 2 * pause))
                await asyncio.sleep(pause * random.uniform(0.75, 1))  # noqa: S311
                continue
            pause, lost, number = 0.0, asyncio.Event(), connection.fileno()

            def heard(connection: rows.Connection = connection, lost: asyncio.Event = lost) -> None:
                try:
                    connection.poll()
                except psycopg2.Error:
                    lost.set()
                if connection.closed:
                    lost.set()
                if connection.notifies:
                    connection.notifies.clear()
                    self._stale.set()

            self._stale.set()
            loop.add_reader(number, heard)
            try:
                await lost.wait()
            finally:
                loop.remove_reader(number)
                connection.close()

    def _listening(self) -> rows.Connection:
        self._ear = connection = rows.connect(self._database)
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {rows.ROUTES}")
        return connection

    async def _call(self) -> None:
        """Notifies the autoscaler of services with waiting requests, at once; `_tell` repeats it while they wait."""
        while True:
            await self._hall.asked.wait()
            self._hall.asked.clear()
            with contextlib.suppress(psycopg2.Error):
                await self._want()

    async def _want(self) -> None:
        self._wanted_at = time.monotonic()
        if wanted := self._hall.take_wanted():
            await self._asked(lambda connection: rows.want(connection, wanted))

    async def _tell(self) -> None:
        """Writes requests in flight every second, and counters every MINUTES seconds."""
        with contextlib.suppress(psycopg2.Error):
            await self._asked(lambda connection: rows.forget(connection, self._place, self._name))
        while True:
            await asyncio.sleep(1)
            now = time.monotonic()
            try:
                if self._said is not None:
                    await self._report()
                if now - self._written_at >= MINUTES:
                    self._written_at = now
                    await self._write()
                if now - self._wanted_at >= WANTED_AGAIN:
                    await self._want()
            except psycopg2.Error as error:
                self._lost(error)
            if lost := self._tally.forget(now):
                log.warning("the database was away for too long: %s requests stand in no row", lost)

    async def _report(self) -> None:
        said, now = self._hall.report(), time.monotonic()
        if said == self._said and now - self._said_at < QUIET:
            return
        try:
            others = await self._asked(lambda connection: rows.report(connection, self._name, said))
        except psycopg2.Error as error:
            self._said = self._said or {}
            self._lost(error)
            return
        self._said, self._said_at, self._hall.routers = said, now, others + 1

    async def _write(self) -> None:
        if minutes := self._tally.unwritten():
            await self._asked(lambda connection: rows.write(connection, self._name, minutes))
            self._tally.written(minutes)
        now = time.monotonic()
        if self.tokens and now - self._used_at >= USED:
            tokens, self.tokens, self._used_at = self.tokens, set(), now
            await self._asked(lambda connection: rows.used(connection, tokens))

    async def _asked(self, question: Callable[[rows.Connection], Found]) -> Found:
        """Runs a query on the database thread and returns its result. Raises psycopg2.Error."""
        found = await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, question)
        if self._away:
            self._away = False
            log.warning("the database answers again")
            self._stale.set()
        return found

    def _ask(self, question: Callable[[rows.Connection], Found]) -> Found:
        if self._connection is None or self._connection.closed:
            self._connection = rows.connect(self._database)
        try:
            return question(self._connection)
        except psycopg2.OperationalError:
            self._connection.close()
            raise

    def _lost(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            log.warning(
                "goes on with what it knows: %s: %s",
                type(error).__name__,
                str(error).splitlines()[0] if str(error) else "",
            )

    def _keep(self, table: Table) -> None:
        """Writes the table to disk for the next start. Mode 0600: it holds token digests and the proofs of replicas."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = self._path.with_name(f".{self._path.name}.new")
            temporary.unlink(missing_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(table.document(), file)
            temporary.replace(self._path)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)
