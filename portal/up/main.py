"""`manage.py up`: starts the whole portal on this machine with one command.

It prepares the data folder, starts the servers, migrates the database, starts the portal's own programs and supervises all
of them until Ctrl-C. Servers that the environment names (DATABASE_URL, REDIS_URL, PORTAL_STORAGE_URL) are used instead of
started ones. This process stays small: it never imports the settings, and whatever needs Django runs in a separate process.
Every failure becomes one sentence on stderr and exit status 1.
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
    """Runs until it is stopped. Returns the exit status: 0 after Ctrl-C, SIGTERM or SIGHUP, otherwise 1."""
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

    # Ignore repeated signals: every step of a stop has a time limit, and `make` forwards a SIGTERM that we also get ourselves.
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
    """Does everything from the empty folder to the first page, and prints a line at each step."""
    began = time.monotonic()
    _say(f"Starting the portal with its data in {data.folder}")
    is_new = not data.has_database
    servers = await asyncio.to_thread(programs.own_servers, data)
    await supervisor.start(*servers)
    _say("  " + (", ".join(_TITLES[server.name] for server in servers) or "The given servers") + ": ready")

    env = data.portal_env({server.name: server.url for server in servers})
    supervisor.watch_logs()
    back_up_to = "" if data.given.get("DATABASE_URL") else str(data.backups)
    # Without Django's checks: they look for mistakes in our code, load all pages for that, and belong to `make lint`.
    migrate = _manage("migrate", "migrate", "--no-input", "--skip-checks", f"--back-up-to={back_up_to}", env=env)
    if not is_new:
        # It refuses the data of a newer version. Nothing of this one may have touched them by then.
        await supervisor.run_once(migrate, show=True)
    storage = programs.storage(data, env)
    if storage:
        # Start it early: it is slower than the others, and the demonstration's data is stored in it.
        wanted = data.storage_folder.is_dir() or (data.demo and not data.given.get("PORTAL_S3_URL"))
        await supervisor.start_when_asked(storage, data.storage_socket, now=wanted)
    steps = [supervisor.run_once(migrate, show=True)] if is_new else []
    if programs.static_files_changed(BASE_DIR, data):
        steps.append(supervisor.run_once(_manage("collectstatic", "collectstatic", "--no-input", "--clear", env=env)))
    await asyncio.gather(*steps)
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
    # The terminal may be gone (SIGHUP), and the portal must still stop properly.
    with contextlib.suppress(OSError):
        print(text, flush=True)
