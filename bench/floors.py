"""The least programs that could do the job: a web server that only queries the database, processes that only start, and
any other program, started by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg2

from bench.web import Client
from portal.up.services import free_port, http_ready

ROOT = Path(__file__).resolve().parent.parent
_local = threading.local()


def app(environ: dict[str, object], start_response: Callable[..., object]) -> Iterable[bytes]:
    """WSGI application of the bare server: runs SELECT 1 on a kept connection."""
    if not hasattr(_local, "connection"):
        _local.connection = psycopg2.connect(os.environ["DATABASE_URL"])
        _local.connection.autocommit = True
    with _local.connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        text = str(cursor.fetchone()[0]).encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
    return [text]


@contextmanager
def bare_server() -> Iterator[Client]:
    """Runs gunicorn with the portal's configuration but only `app` behind it, and yields a client for it."""
    port = free_port()
    argv = [sys.executable, "-m", "gunicorn", "--config", "portal/gunicorn.conf.py", "bench.floors:app"]
    with running(argv, {**os.environ, "PORTAL_WEB_PORT": str(port)}) as process:
        ready = http_ready(port)
        while not ready():
            if process.poll() is not None:
                raise RuntimeError("the bare web server ended at once")
            time.sleep(0.05)
        yield Client(f"http://127.0.0.1:{port}")


@contextmanager
def running(
    argv: Sequence[str], env: Mapping[str, str], how: signal.Signals = signal.SIGTERM
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program without output. Ends it by the signal `how`."""
    process = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(how)
        process.wait()


def processes(count: int) -> tuple[float, float]:
    """Starts `count` shells side by side. Returns the seconds until the last one has run its first command, and to end all."""
    begin = time.perf_counter()
    shells = [
        subprocess.Popen(["bash", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        for _ in range(count)
    ]
    for shell in shells:
        assert shell.stdout is not None
        shell.stdout.readline()
    started = time.perf_counter() - begin
    begin = time.perf_counter()
    for shell in shells:
        shell.send_signal(signal.SIGTERM)
    for shell in shells:
        shell.wait()
    ended = time.perf_counter() - begin
    for shell in shells:
        if shell.stdout:
            shell.stdout.close()
    return started, ended
