"""Processes that are killed (-9) between any two statements, with the rows of the test's own database."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psycopg2.extensions


class _Mortal:
    """How many more calls of the database a process may make before it is killed, without a chance to clean up."""

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
    """Runs `work` in a process of its own that is killed after `allowed` calls; returns how it ended."""
    from django.db import connection

    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    status = 1
    try:
        # The parent's connection is the parent's: a new one, that counts.
        connection.connection = None
        connection.settings_dict["OPTIONS"] |= {"connection_factory": _Connection, "cursor_factory": _Cursor}
        _Mortal.left = 10**6
        connection.ensure_connection()
        _Mortal.left = allowed
        work()
        status = 0
    finally:
        os._exit(status)
