"""Starting programs, checking their readiness and stopping them, shared by `manage.py up` and the tests.

A program ends with the process that started it (`dies_with_parent`), so nothing is left even after kill -9. It runs in its own
session, so that Ctrl-C in the terminal reaches only the process in charge.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import secrets
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

# Maximum length in bytes of a Unix socket's path; PostgreSQL adds the longest name to a folder.
MAX_SOCKET_PATH = 107
LONGEST_SOCKET_NAME = "/.s.PGSQL.5432"
# Generous: a program that ends is noticed earlier, and training may keep every core busy.
READY_SECONDS = 120.0
PORTS = range(20000, 30000)
# For programs that nobody waits for: a third of the CPU time of one that serves users, if both want all of it.
BACKGROUND_NICE = 5
# The exit status of a command that refuses its work. The last line of its log is a sentence that says why.
REFUSED = 3
# The system user of last resort (see servers.py), named by the wheel.
POSTGRES_USER = "pgserver"


class ServiceError(Exception):
    """A server cannot run on this machine. The text is one sentence for the person who started it."""


@dataclass(frozen=True)
class Service:
    """One program to keep running.

    `url` is for its clients ("" if it has none). `ready` returns at once. `env` is added to the environment. On a stop the
    program gets `stop_signal` and, after `stop_seconds`, SIGKILL. It gets `death_signal` (a name for setpriv) when the
    process that started it ends; `prefix` is a command that changes the user first. Programs with a low `stop_order` stop
    first; 0 is for those that serve users. `with_group`: kill what its process leaves in its process group. `background`:
    on a busy machine other programs get more CPU time.
    """

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool] = lambda: True
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    death_signal: str = "KILL"
    prefix: tuple[str, ...] = ()
    stop_order: int = 0
    with_group: bool = False
    background: bool = False


def http_ready(port: int) -> Callable[[], bool]:
    """Returns a check: does a web server on that loopback port answer, without a 5xx and with its routes loaded?"""

    def ready() -> bool:
        answer = ask(port, b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        # A gateway listens a moment before it has its routes; the text is Traefik's.
        return answer.startswith(b"HTTP/") and answer[9:10] < b"5" and b"404 page not found" not in answer

    return ready


def spawn(service: Service, log: Path | None, env: Mapping[str, str], *, show: bool = False) -> subprocess.Popen[bytes]:
    """Starts it in its own session, out of reach of Ctrl-C in the terminal, with output to `log` or else to our own. With `show`
    its standard output goes to ours, and only its errors go to `log`.

    Call this from the main thread: the kernel sends the death signal when the *thread* that started the process ends.
    """
    try:
        with open_log(log) if log else nullcontext() as out:
            process = subprocess.Popen(
                [*service.prefix, *dies_with_parent(service.argv, service.death_signal)],
                env={**env, **service.env},
                stdin=subprocess.DEVNULL,
                stdout=None if show else out,
                stderr=out,
                start_new_session=True,
            )
    except FileNotFoundError as error:
        raise ServiceError(f"The program {error.filename} is missing; it comes with requirements.txt.") from error
    if service.background:
        _step_back(process.pid)
    return process


def dies_with_parent(argv: Sequence[str], death_signal: str = "KILL") -> list[str]:
    """Returns a command that gets `death_signal` from the kernel when the thread of this process that starts it ends."""
    # Request the signal last, because a change of user would clear it. A parent that ended earlier is never announced, so check
    # afterwards that it still exists.
    check = '[ "$PPID" = "$0" ] && exec "$@"'
    return ["setpriv", "--pdeathsig", death_signal, "--", "sh", "-c", check, str(os.getpid()), *argv]


def _step_back(pid: int) -> None:
    """Gives other programs more CPU time. A kernel that schedules by session (autogroup) uses the session's nice value and
    applies those of processes only inside it."""
    with contextlib.suppress(OSError):  # it has ended already, or the kernel has no autogroup
        os.setpriority(os.PRIO_PROCESS, pid, BACKGROUND_NICE)
        Path(f"/proc/{pid}/autogroup").write_text(str(BACKGROUND_NICE))


def wait_ready(service: Service, process: subprocess.Popen[bytes], log: Path, seconds: float = READY_SECONDS) -> None:
    """Returns when it is ready. Raises ServiceError with the end of its log if it ended or took too long."""
    end = time.monotonic() + seconds
    while not service.ready():
        if process.poll() is not None:
            raise ServiceError(f"{service.name} ended at once: {last_line(log)} (more in {log})")
        if time.monotonic() > end:
            raise ServiceError(f"{service.name} was not ready after {seconds:.0f} s: {last_line(log)} (more in {log})")
        # Nothing signals that a server listens, so poll; often, because every start waits for it.
        time.sleep(0.02)


def stop(service: Service, process: subprocess.Popen[bytes]) -> None:
    """Stops it: SIGKILL after `stop_seconds`. Returns when it is gone."""
    if process.poll() is None:
        process.send_signal(service.stop_signal)
        try:
            process.wait(service.stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running(services: Sequence[Service], logs: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Starts all of them concurrently and waits until they are ready; stops them in reverse order at the end."""
    started: list[tuple[Service, subprocess.Popen[bytes]]] = []
    try:
        for service in services:
            started += [(service, spawn(service, logs / f"{service.name}.log", env))]
        for service, process in started:
            wait_ready(service, process, logs / f"{service.name}.log")
        yield
    finally:
        for service, process in reversed(started):
            stop(service, process)


def program(name: str) -> str:
    """Returns the path of a program that a wheel installed next to our Python, e.g. rclone. Raises ServiceError if it is
    missing."""
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise ServiceError(f"The program {name} is missing in {path.parent}; it comes with requirements.txt.")
    return str(path)


def loopback() -> list[str]:
    """Returns this machine's addresses that browsers try for localhost, as in a URL. The kernel may have no IPv6."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as server:
        server.bind(("::1", 0))
        return ["127.0.0.1", "[::1]"]
    return ["127.0.0.1"]


def free_port(wanted: int = 0) -> int:
    """Returns `wanted` if nothing listens there, otherwise a free loopback port.

    It is chosen at random below the range for outgoing connections (Linux: from 32768), so that no other program has taken
    it when the server starts to listen.
    """
    for port in (*([wanted] if wanted else []), *(secrets.choice(PORTS) for _ in range(100))):
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServiceError("No loopback port is free.")


def socket_folder(data: Path) -> Path:
    """Returns `data`/run or, if that is too long for a socket's path, a private folder with a short name."""
    run = data / "run"
    if len(os.fsencode(run)) + len(LONGEST_SOCKET_NAME) <= MAX_SOCKET_PATH:
        return private_folder(run)
    short = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
    return private_folder(Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"portal-{os.getuid()}-{short}")  # noqa: S108


def private_folder(path: Path) -> Path:
    """Creates the folder (mode 700) or checks that it is ours: in a shared folder others could place a link there."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid not in (os.geteuid(), postgres_uid()):
        raise ServiceError(f"{path} belongs to somebody else.")
    return path


def write_private(path: Path, text: str) -> None:
    """Replaces the file atomically; only its owner can read it."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def open_log(path: Path) -> IO[bytes]:
    """Opens a log to append to. Only its owner may read it."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
    # A file of an earlier version may have another mode.
    os.fchmod(file.fileno(), 0o600)
    return file


def last_line(log: Path) -> str:
    """Returns the last line that is not empty, for an error message."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it wrote nothing"


def ask(where: int | Path, request: bytes, address: str = "127.0.0.1") -> bytes:
    """Returns the first bytes that a port or Unix socket answers, or nothing after two seconds."""
    family, place = (socket.AF_UNIX, str(where)) if isinstance(where, Path) else (socket.AF_INET, (address, where))
    try:
        with socket.socket(family) as client:
            client.settimeout(2)
            client.connect(place)
            client.sendall(request)
            answer = b""
            while chunk := client.recv(4096):
                answer += chunk
                if len(answer) > 4096:
                    break
            return answer
    except OSError:
        return b""


def postgres_uid() -> int:
    """Returns the uid whose folders root also trusts; root's own if that user does not exist."""
    try:
        return pwd.getpwnam(POSTGRES_USER).pw_uid if os.geteuid() == 0 else os.geteuid()
    except KeyError:
        return os.geteuid()
