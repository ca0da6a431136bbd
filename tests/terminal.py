"""`manage.py shell-into` as an operator starts it, with or without a real terminal, on the tests' database."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time


def shell_into(*argv: str) -> list[str]:
    return [sys.executable, "manage.py", "shell-into", *argv]


def database_environment() -> dict[str, str]:
    """Environment for programs that use the database of this test process."""
    from django.db import connection

    base, _, query = os.environ["DATABASE_URL"].partition("?")
    url = f"{base.rpartition('/')[0]}/{connection.settings_dict['NAME']}" + (f"?{query}" if query else "")
    return {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "portal.settings"}


class Terminal:
    """`shell-into` in a window of that size. `shown` is the output since the last `until`."""

    def __init__(self, *argv: str, columns: int = 80, rows: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        # A new session with this as its controlling terminal, as in a terminal window.
        self.process = subprocess.Popen(
            shell_into(*argv),
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=database_environment(),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.shown = b""
        os.set_blocking(self.master, False)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def until(self, text: bytes, seconds: float = 60.0) -> bytes:
        """Waits for `text`; returns the output before it."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            try:
                self.shown += os.read(self.master, 65536)
            except BlockingIOError:
                time.sleep(0.02)
        before, _, self.shown = self.shown.partition(text)
        return before
