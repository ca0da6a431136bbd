"""`manage.py up`: the whole portal on this machine, from nothing, in one command.

It prepares the data folder, starts the servers, brings the database up to date, starts the portal's own programs and
then watches over all of them until Ctrl-C. What the environment names already (DATABASE_URL, REDIS_URL, PORTAL_STORAGE_URL) is
used and not started. This process stays small: it never imports the settings, and everything that needs Django runs in
a process of its own. Whatever goes wrong becomes one sentence on stderr and exit status 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from portal.up import programs
from portal.up.data import Data
from portal.up.services import Service, ServiceError
from portal.up.supervisor import Supervisor

BASE_DIR = Path(__file__).resolve().parent.parent.parent


def main(argv: Sequence[str]) -> int:
    """Runs until it is told to stop. Returns the exit status: 0 after Ctrl-C, SIGTERM or SIGHUP, otherwise 1."""
    if argv:
        print("manage.py up takes no arguments; PORTAL_DATA, PORTAL_PORT and PORTAL_DEMO change it.", file=sys.stderr)
        return 1
    try:
        with Data.open(os.environ) as data:
            os.chdir(BASE_DIR)
            return asyncio.run(_run(data))
    except ServiceError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"{error.strerror}: {error.filename or 'the data folder'}.", file=sys.stderr)
    return 1


async def _run(data: Data) -> int:
    supervisor = Supervisor(data.logs, data.public_env)
    told = asyncio.Event()

    # Told twice is told once: every step of a stop is bounded, and `make` passes on a SIGTERM that we get ourselves, too.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    start = asyncio.create_task(_start(data, supervisor))
    stop = asyncio.create_task(told.wait())
    try:
        await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            start.result()
            await stop
    finally:
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError, ServiceError):
            await start
        if supervisor.busy:
            _say("Stopping …")
        await supervisor.stop()
    _say("Stopped. Start it again and it continues where it was.")
    return 0


async def _start(data: Data, supervisor: Supervisor) -> None:
    """Everything from the empty folder to the first page, with a line for people at each step."""
    began = time.monotonic()
    _say(f"Starting the portal with its data in {data.folder}")
    servers = await asyncio.to_thread(programs.own_servers, data)
    await supervisor.start(*servers)
    _say("  " + (", ".join(_TITLES[server.name] for server in servers) or "The given servers") + ": ready")

    env = data.portal_env({server.name: server.url for server in servers})
    supervisor.watch_logs()
    storage = programs.storage(data, env)
    if storage:
        # Slower than the others; the demonstration's data will lie in it.
        wanted = data.storage_folder.is_dir() or (data.demo and not data.given.get("PORTAL_S3_URL"))
        await supervisor.start_when_asked(storage, data.storage_socket, now=wanted)
    steps = [_manage("migrate", "migrate", "--no-input", env=env)]
    if programs.static_files_changed(BASE_DIR, data):
        steps.append(_manage("collectstatic", "collectstatic", "--no-input", "--clear", env=env))
    await asyncio.gather(*(supervisor.run_once(step) for step in steps))
    programs.static_files_done(BASE_DIR, data)
    _say("  Database and static files: up to date")
    if data.demo:
        await supervisor.run_once(_manage("seed_demo", "seed_demo", env=env), show=True)
        _say("  Demonstration: ready")

    await supervisor.start(*programs.portal(data, env))
    _say("  Node agent, controller, workers, web server, gateway: ready")
    _say(
        f"\nThe portal is ready after {time.monotonic() - began:.0f} s:  {data.origin}  (or http://localhost:{data.port})"
    )
    if data.credentials.exists():
        _say(f"People, passwords and tokens of the demonstration:  {data.credentials}")
    _say(f"Logs:  {data.logs}\nCtrl-C stops everything.")


_TITLES = {"postgres": "PostgreSQL", "valkey": "Valkey"}


def _manage(name: str, *arguments: str, env: Mapping[str, str]) -> Service:
    return Service(name, (sys.executable, "manage.py", *arguments), env=env)


def _say(text: str) -> None:
    # The terminal may be gone (SIGHUP); the portal still has to be stopped properly.
    with contextlib.suppress(OSError):
        print(text, flush=True)
