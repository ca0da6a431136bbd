"""Programs that are started, asked whether they are ready, and stopped: what `manage.py up` and the tests share.

A program dies with the process that started it (`dies_with_parent`), so that nothing is left behind even after kill -9.
It has a session of its own, so that a Ctrl-C in the terminal reaches only the one who decides.
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

# A Unix socket's address has 107 bytes; the longest name that we put behind a folder is PostgreSQL's.
MAX_SOCKET_PATH = 107
LONGEST_SOCKET_NAME = "/.s.PGSQL.5432"
# Generous: a program that ended is noticed anyway, and training may keep every core busy.
READY_SECONDS = 120.0
PORTS = range(20000, 30000)
# Of a program that nobody waits for: a third of the processor time of one that answers people, while both want all of it.
BACKGROUND_NICE = 5
# The system user of last resort, see servers.py; the wheel's own name for it.
POSTGRES_USER = "pgserver"


class ServiceError(Exception):
    """A server cannot run here. The text is one sentence for the person who started it."""


@dataclass(frozen=True)
class Service:
    """One program to keep running.

    `url` is what clients are given ("" for a program that nobody connects to). `ready` answers at once. `env` is added to
    the environment. On a stop the program gets `stop_signal` and, after `stop_seconds`, SIGKILL. It gets `death_signal`
    (the name that setpriv takes) when the process that started it is gone; `prefix` is a command that changes user before.
    When everything is stopped, low `stop_order`s go first; 0 is for what faces people. `with_group`: what its process leaves
    behind in its process group goes with it. `background`: on a busy machine the others go first.
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
    """A probe: does a web server on that loopback port answer, neither with an error of its own nor for lack of routes?"""

    def ready() -> bool:
        answer = ask(port, b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        # A gateway listens a moment before it knows its routes; the text is Traefik's.
        return answer.startswith(b"HTTP/") and answer[9:10] < b"5" and b"404 page not found" not in answer

    return ready


def spawn(service: Service, log: Path | None, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts it in a session of its own (a Ctrl-C in the terminal is not for it), writing to `log` or else where we do.

    To be called from the main thread: the kernel sends the death signal when the *thread* that started it ends.
    """
    try:
        with open_log(log) if log else nullcontext() as out:
            process = subprocess.Popen(
                [*service.prefix, *dies_with_parent(service.argv, service.death_signal)],
                env={**env, **service.env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
    except FileNotFoundError as error:
        raise ServiceError(f"The program {error.filename} is missing; it comes with requirements.txt.") from error
    if service.background:
        _step_back(process.pid)
    return process


def dies_with_parent(argv: Sequence[str], death_signal: str = "KILL") -> list[str]:
    """A command that the kernel sends `death_signal` when the thread that starts it, of this process, ends."""
    # A change of user would clear the signal, so it is asked for last. A parent that is gone by then is never announced: only
    # afterwards it is looked whether it is still there.
    check = '[ "$PPID" = "$0" ] && exec "$@"'
    return ["setpriv", "--pdeathsig", death_signal, "--", "sh", "-c", check, str(os.getpid()), *argv]


def _step_back(pid: int) -> None:
    """Lets other programs go first. Where the kernel shares time among sessions (autogroup) it asks each session for its own
    nice value and looks at those of processes only inside it."""
    with contextlib.suppress(OSError):  # it has ended already, or the kernel has no autogroup
        os.setpriority(os.PRIO_PROCESS, pid, BACKGROUND_NICE)
        Path(f"/proc/{pid}/autogroup").write_text(str(BACKGROUND_NICE))


def wait_ready(service: Service, process: subprocess.Popen[bytes], log: Path, seconds: float = READY_SECONDS) -> None:
    """Returns when it is ready. Raises ServiceError with the end of its log when it ended or took too long."""
    end = time.monotonic() + seconds
    while not service.ready():
        if process.poll() is not None:
            raise ServiceError(f"{service.name} ended at once: {last_line(log)} (more in {log})")
        if time.monotonic() > end:
            raise ServiceError(f"{service.name} was not ready after {seconds:.0f} s: {last_line(log)} (more in {log})")
        # Nothing tells when a server starts to listen, so it is asked; short, because this is what a start waits for.
        time.sleep(0.02)


def stop(service: Service, process: subprocess.Popen[bytes]) -> None:
    """Asks it to end, insists after `stop_seconds`, returns when it is gone."""
    if process.poll() is None:
        process.send_signal(service.stop_signal)
        try:
            process.wait(service.stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running(services: Sequence[Service], logs: Path, env: Mapping[str, str]) -> Iterator[None]:
    """All of them, started side by side and ready; stopped in reverse order at the end."""
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
    """The path of a program that a wheel put beside our Python, e.g. rclone. Raises ServiceError when it is missing."""
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise ServiceError(f"The program {name} is missing in {path.parent}; it comes with requirements.txt.")
    return str(path)


def loopback() -> list[str]:
    """This machine's own addresses that a browser tries for localhost, as they stand in a URL; the kernel may know no IPv6."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as server:
        server.bind(("::1", 0))
        return ["127.0.0.1", "[::1]"]
    return ["127.0.0.1"]


def free_port(wanted: int = 0) -> int:
    """`wanted` when nobody listens there, otherwise any free port of loopback.

    It is taken from below those that systems give to outgoing connections (Linux: from 32768 on), and at random: nobody else
    has it by the time that a server listens there.
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
    """`data`/run, or, where that is too long for a socket's address, a private folder with a short name."""
    run = data / "run"
    if len(os.fsencode(run)) + len(LONGEST_SOCKET_NAME) <= MAX_SOCKET_PATH:
        return private_folder(run)
    short = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
    return private_folder(Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"portal-{os.getuid()}-{short}")  # noqa: S108


def private_folder(path: Path) -> Path:
    """Makes it (mode 700) or checks that it is ours: in a shared folder somebody else might have put a link there."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid not in (os.geteuid(), postgres_uid()):
        raise ServiceError(f"{path} belongs to somebody else.")
    return path


def write_private(path: Path, text: str) -> None:
    """Replaces the file in one step; only its owner can read it."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def open_log(path: Path) -> IO[bytes]:
    """To be appended to. What programs say of their work is for its owner alone."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
    # One of an earlier version may be there already.
    os.fchmod(file.fileno(), 0o600)
    return file


def last_line(log: Path) -> str:
    """The last line with something in it, for a sentence about what went wrong."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it wrote nothing"


def ask(where: int | Path, request: bytes, address: str = "127.0.0.1") -> bytes:
    """The first bytes of the answer of a port or a Unix socket, or nothing when there is none within two seconds."""
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
    """Whose folders root also trusts; root's own id where that user does not exist."""
    try:
        return pwd.getpwnam(POSTGRES_USER).pw_uid if os.geteuid() == 0 else os.geteuid()
    except KeyError:
        return os.geteuid()
