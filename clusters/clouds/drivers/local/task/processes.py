"""Processes that outlive their parent, found again by the lock on their folder.

The lock (flock) is taken before the process exists and inherited by it, so at every instant either the process lives and the
folder is locked, or neither; nothing can be started twice in a folder. The file `lock` contains the pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_BLOCKED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Detached:
    """One such process. The event loop calls `on_start` once its pid is known, and `on_exit` once it has ended."""

    def __init__(self, folder: Path, on_exit: Callable[[], None], on_start: Callable[[], None] | None = None) -> None:
        self.folder, self.on_exit, self.on_start = folder, on_exit, on_start
        self.pidfd = -1
        self._waiting: list[int] = []

    @classmethod
    def launch(
        cls, script: str, folder: Path, on_exit: Callable[[], None], on_start: Callable[[], None] | None = None
    ) -> Detached:
        """Starts `python -I -S script folder LOCK`. Raises OSError (BlockingIOError if one lives there already)."""
        self = cls(folder, on_exit, on_start)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        errors = os.open(folder / "errors", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Blocks signals that arrive before the new process has its handlers; it unblocks them itself.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            starter = subprocess.Popen(
                [sys.executable, "-I", "-S", script, str(folder), str(lock)],
                pass_fds=(lock,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                env={"LANG": "C.UTF-8"},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(lock)
            os.close(errors)
        handle = os.pidfd_open(starter.pid)

        def started() -> None:
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)
            starter.wait()
            self._follow()

        asyncio.get_running_loop().add_reader(handle, started)
        return self

    @classmethod
    def adopt(
        cls, folder: Path, on_exit: Callable[[], None], on_start: Callable[[], None] | None = None
    ) -> Detached | None:
        """Returns the process that lives in `folder`, or None."""
        if not is_locked(folder):
            return None
        self = cls(folder, on_exit, on_start)
        self._follow()
        return self

    def _follow(self) -> None:
        """Watches the pid in the lock file. A locked folder without a pid: its process is still being started."""
        loop = asyncio.get_running_loop()
        pid = int((self.folder / "lock").read_text().strip() or 0)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                self.pidfd = os.pidfd_open(pid)
        if not is_locked(self.folder):  # also if the pid has been reused
            self._close()
            loop.call_soon(self.on_exit)
        elif self.pidfd < 0:
            loop.call_later(0.02, self._follow)
        else:
            loop.add_reader(self.pidfd, self._ended)
            for number in self._waiting:
                self.send(number)
            self._waiting.clear()
            if self.on_start is not None:
                self.on_start()

    def send(self, number: int) -> None:
        """Sends a signal as soon as the pid is known."""
        if self.pidfd < 0:
            self._waiting.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self.pidfd)
        self._close()
        self.on_exit()

    def _close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def run_once(script: str, folder: Path) -> None:
    """Runs `script` like `Detached.launch` and waits for its end."""
    start(script, folder)
    again = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(again, fcntl.LOCK_EX)
    os.close(again)


def start(script: str, folder: Path) -> None:
    """Starts `script` like `Detached.launch` and waits until it has left its starter."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The next pid may have fewer digits.
        os.ftruncate(lock, 0)
        argv = [sys.executable, "-I", "-S", script, str(folder), str(lock)]
        subprocess.run(argv, pass_fds=(lock,), stdin=subprocess.DEVNULL, check=False, cwd="/")
    finally:
        os.close(lock)


def end(folder: Path) -> None:
    """Kills the process that lives in `folder`, if any."""
    if is_locked(folder):
        kill_and_wait(int((folder / "lock").read_text()))


def is_locked(folder: Path) -> bool:
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def kill_and_wait(pid: int) -> None:
    """Sends SIGKILL and waits until the process is gone (with a PID 1 its whole namespace, which is quick)."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(5000)
        os.close(handle)
