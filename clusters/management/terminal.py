"""Connects this terminal with a command in a task: input is passed on as is, Ctrl-C included, and output is printed.

The terminal is put into raw mode and always restored. Knows neither rows nor clouds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from types import FrameType

from clusters.clouds.drivers.base import CloudError, Session

PIECE = 1 << 16
# Seconds within which a new window size is passed on.
LOOK_SECONDS = 0.2
STDIN, STDOUT, STDERR = 0, 1, 2


def is_terminal() -> bool:
    return os.isatty(STDIN) and os.isatty(STDOUT)


def talk(session: Session, *, terminal: bool) -> int:
    """Runs until the command has ended and returns its exit code. Raises CloudError when it was cut off."""
    threading.Thread(target=_type, args=(session, terminal), daemon=True).start()
    if not terminal:
        return _listen(session)
    with _raw(), _window_changes() as changed:
        return _listen(session, changed)


def _listen(session: Session, changed: threading.Event | None = None) -> int:
    while session.exit_code is None:
        if changed and changed.is_set():
            changed.clear()
            session.resize(*os.get_terminal_size(STDOUT))
        output = session.receive(LOOK_SECONDS if changed else 60.0)
        if output is not None:
            _write(STDERR if output.stream == "stderr" else STDOUT, output.data)
    return session.exit_code


def _type(session: Session, terminal: bool) -> None:
    """Runs in a thread that is never joined: it may still block in read() when the command has ended."""
    try:
        while data := os.read(STDIN, PIECE):
            session.send(data)
        if not terminal:
            session.end_input()
    except CloudError:
        # The command has ended; the reader gets the exit code.
        return
    except OSError as error:
        sys.stderr.write(f"The input cannot be read: {error.strerror}\r\n")


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    before = termios.tcgetattr(STDIN)
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    tty.setraw(STDIN)
    try:
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _window_changes() -> Iterator[threading.Event]:
    """An event that is set when the command does not know the window's size yet, as at the start."""
    changed = threading.Event()
    changed.set()
    before = signal.signal(signal.SIGWINCH, lambda *_: changed.set())
    try:
        yield changed
    finally:
        signal.signal(signal.SIGWINCH, before)


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
