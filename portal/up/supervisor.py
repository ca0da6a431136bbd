"""Keeps programs alive until it is stopped, then stops them in the right order.

Existing process supervisors neither know when a server is ready nor guarantee that all programs end with them. An ordered start
and a clean machine after kill -9 need both. A pidfd reports an exit at once; a program that keeps ending is restarted with
growing delays, with a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from portal.up import services
from portal.up.services import Service, ServiceError

SETTLED_SECONDS = 10.0
SLOWEST_RESTART = 10.0
TOO_OFTEN = 5
# How long remains of a portal that was killed a moment ago may disturb a start.
LEFTOVER_SECONDS = 5.0
LOG_BYTES = 20 * 2**20


@dataclass
class _Kept:
    service: Service
    process: subprocess.Popen[bytes]
    began: float
    keeper: asyncio.Task[None] | None = None


class Supervisor:
    """Use it from the event loop of the main thread: programs end with the thread that started them."""

    def __init__(self, logs: Path, env: Mapping[str, str]) -> None:
        self._logs = logs
        self._env = env
        self._kept: list[_Kept] = []
        self._stopping = False
        self._rotation: asyncio.Task[None] | None = None
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._listening: list[asyncio.Server] = []

    @property
    def busy(self) -> bool:
        return bool(self._kept)

    async def start(self, *programs: Service) -> None:
        """Starts the programs concurrently, returns when all are ready, and keeps them alive from then on."""
        await asyncio.gather(*(self._start(service) for service in programs))

    async def start_when_asked(self, service: Service, at: Path, *, now: bool = False) -> None:
        """Starts the service on the first connection to the Unix socket `at`, or with `now` at once, and keeps it alive
        from then on. A client reads "ready" once it is, or the reason for a failure; the next client then tries again."""

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                # The client may disconnect; the start goes on.
                await asyncio.shield(self._ask(service))
                writer.write(b"ready")
            except ServiceError as error:
                writer.write(str(error).encode())
            finally:
                writer.close()

        at.unlink(missing_ok=True)  # noqa: ASYNC240  of an earlier start; nobody waits yet
        self._listening.append(await asyncio.start_unix_server(answer, at))
        if now:
            self._ask(service).add_done_callback(_say_why)

    def _ask(self, service: Service) -> asyncio.Task[None]:
        task = self._asked.get(service.name)
        if task is None or (task.done() and task.exception()):
            task = self._asked[service.name] = asyncio.create_task(self._start(service))
        return task

    async def run_once(self, service: Service, *, show: bool = False) -> None:
        """Runs a program to its end. With `show` its standard output goes to the terminal, and everything else to its log.

        Raises ServiceError with the last line of its log if it fails, and with nothing else if it refuses (REFUSED).
        """
        log = self._log(service)
        process = services.spawn(service, log, self._env, show=show)
        try:
            await _ended(process)
        finally:
            _kill(process)
        if process.returncode == services.REFUSED:
            raise ServiceError(services.last_line(log))
        if process.returncode:
            raise ServiceError(self._failure(service, "failed"))

    async def stop(self) -> None:
        """Stops everything, programs that serve users first, each within its `stop_seconds`."""
        self._stopping = True
        if self._rotation:
            self._rotation.cancel()
        for server in self._listening:
            server.close()
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        for order in sorted({kept.service.stop_order for kept in self._kept}):
            await asyncio.gather(*(self._stop(kept) for kept in self._kept if kept.service.stop_order == order))
        self._kept.clear()

    def watch_logs(self) -> None:
        self._rotation = asyncio.create_task(self._rotate())

    async def _start(self, service: Service) -> None:
        end = time.monotonic() + services.READY_SECONDS
        # Wait again for one that was not ready in time: a second copy would use the same ports and data.
        kept = next((each for each in self._kept if each.service is service and each.process.poll() is None), None)
        if kept is None:
            self._kept = [each for each in self._kept if each.service is not service]
            kept = _Kept(service, self._spawn(service), time.monotonic())
            self._kept.append(kept)
        leftovers = time.monotonic() + LEFTOVER_SECONDS
        while not await asyncio.to_thread(service.ready):
            if kept.process.poll() is not None:
                if time.monotonic() > leftovers:
                    raise ServiceError(self._failure(service, "ended at once"))
                await asyncio.sleep(0.5)
                kept.process = self._spawn(service)
            elif time.monotonic() > end:
                raise ServiceError(self._failure(service, f"was not ready after {services.READY_SECONDS:.0f} s"))
            # Nothing signals that a server listens, so poll.
            await asyncio.sleep(0.05)
        kept.keeper = asyncio.create_task(self._keep(kept))

    async def _keep(self, kept: _Kept) -> None:
        quick = 0
        while True:
            await _ended(kept.process)
            _kill_group(kept)
            if self._stopping:
                return
            quick = quick + 1 if time.monotonic() - kept.began < SETTLED_SECONDS else 0
            _report(kept, quick)
            if quick:
                await asyncio.sleep(min(0.25 * 2**quick, SLOWEST_RESTART))
            kept.began = time.monotonic()
            try:
                kept.process = self._spawn(kept.service)
            except (OSError, ServiceError) as error:
                # For example out of memory or processes: it counts as ended again and is retried later.
                print(f"{kept.service.name} cannot be started: {error}", file=sys.stderr, flush=True)

    async def _stop(self, kept: _Kept) -> None:
        if kept.process.poll() is None:
            kept.process.send_signal(kept.service.stop_signal)
            try:
                await asyncio.wait_for(_ended(kept.process), kept.service.stop_seconds)
            except TimeoutError:
                _kill(kept.process)
        if kept.keeper:
            # The keeper may be waiting to restart the program; nothing is started any more.
            kept.keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await kept.keeper
        _kill(kept.process)
        _kill_group(kept)

    async def _rotate(self) -> None:
        while True:
            rotate(self._logs)
            await asyncio.sleep(60)

    def _spawn(self, service: Service) -> subprocess.Popen[bytes]:
        return services.spawn(service, self._log(service), self._env)

    def _log(self, service: Service) -> Path:
        return self._logs / f"{service.name}.log"

    def _failure(self, service: Service, what: str) -> str:
        log = self._log(service)
        return f"{service.name} {what}: {services.last_line(log)} (more in {log})"


def rotate(logs: Path, limit: int = LOG_BYTES) -> None:
    """Keeps one older file of each log above `limit` bytes. Programs append, so a file can be truncated while they write."""
    for log in logs.glob("*.log"):
        if log.stat().st_size > limit:
            shutil.copy(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Returns when the process is gone, and reaps it."""
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    fd = os.pidfd_open(process.pid)
    loop.add_reader(fd, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _kill_group(kept: _Kept) -> None:
    """Kills what a killed web server leaves: its workers, which hold the port. The leader is reaped, so the id names only
    them."""
    if kept.service.with_group:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(kept.process.pid, signal.SIGKILL)


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        print(error, file=sys.stderr, flush=True)


def _report(kept: _Kept, quick: int) -> None:
    code = kept.process.returncode
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    if quick < TOO_OFTEN:
        print(f"{kept.service.name} ended ({how}) and is started again.", file=sys.stderr, flush=True)
    elif quick == TOO_OFTEN:
        print(f"{kept.service.name} keeps ending ({how}); its log says why.", file=sys.stderr, flush=True)
