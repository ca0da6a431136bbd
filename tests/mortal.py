"""Runs code in a process that is killed (-9) before any chosen database call, on the rows of the test's database."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psycopg2.extensions


class _Mortal:
    """Number of database calls before the process is killed without cleanup."""

    left = 0

    @classmethod
    def step(cls) -> None:
        if cls.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        cls.left -= 1


class _Cursor(psycopg2.extensions.cursor):
    def execute(self, *args: object) -> None:
        _Mortal.step()
        super().execute(*args)

    def copy_expert(self, *args: object) -> None:
        _Mortal.step()
        super().copy_expert(*args)


class _Connection(psycopg2.extensions.connection):
    def commit(self) -> None:
        _Mortal.step()
        super().commit()


def child(allowed: int, work: Callable[[], object]) -> int:
    """Forks a process that runs `work` and is killed after `allowed` calls; returns its wait status."""
    from django.db import connection

    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    status = 1
    try:
        # The child must not use the parent's connection; it opens a new one that counts calls.
        connection.connection = None
        connection.settings_dict["OPTIONS"] |= {"connection_factory": _Connection, "cursor_factory": _Cursor}
        _Mortal.left = 10**6
        connection.ensure_connection()
        _Mortal.left = allowed
        work()
        status = 0
    finally:
        os._exit(status)
