"""The data folder of one portal: its lock, its secrets and the ports of its inner servers.

One `up` at a time holds the folder's file lock, which the kernel releases however that process ends. Secrets are generated
once. Ports stay the same unless another program took them, because the URL of the S3 server is stored in datastores.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from portal.network import outgoing
from portal.up.running import folder_of
from portal.up.servers import index_url
from portal.up.services import ServiceError, free_port, loopback, private_folder, socket_folder, write_private
from portal.up.storage_address import StorageAddress, bracketed

NEEDED_MB = 500
# The folder in which `manage.py restore` works; gone when it is done.
RESTORING = "restoring"
LOGS_SECRET = "PORTAL_LOGS_S3_SECRET_KEY"  # noqa: S105  a name
# For changing keys; without the environment they are lines of secrets.env that people write.
KEYS_SETTINGS = ("PORTAL_SECRET_KEY_FALLBACKS", "PORTAL_SALT_KEYS")
# A server of a killed `up` ends within moments, so wait this long for its port.
PORT_SECONDS = 3.0


@dataclass(frozen=True)
class Data:
    """A locked data folder. `given` is the environment that `up` was started with."""

    folder: Path
    sockets: Path
    port: int
    demo: bool
    given: Mapping[str, str]
    secrets: Mapping[str, str]
    # Where pods reach the object storage, None if they cannot.
    storage_at: StorageAddress | None = None
    # The ports chosen in this start, by server name.
    ports: dict[str, int] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def open(cls, given: Mapping[str, str]) -> Iterator[Data]:
        """Opens the folder and checks what can be checked before any start. Raises ServiceError with one sentence."""
        port = _port(given.get("PORTAL_PORT") or "8000")
        storage_at = StorageAddress.of(given)
        folder = folder_of(given)
        _make(folder)
        with locked(folder / "up.lock", f"process {os.getpid()}, port {port}"):
            if (folder / RESTORING).exists():
                raise ServiceError(
                    f"The data folder {folder} is half restored; repeat `manage.py restore`, or remove the folder."
                )
            _check_port(port)
            if storage_at:
                storage_at.check()
            for name in ("log", "tmp"):
                private_folder(folder / name)
            yield cls(
                folder=folder,
                sockets=socket_folder(folder),
                port=port,
                demo=given.get("PORTAL_DEMO", "1") not in ("0", "false", "no"),
                given=given,
                secrets=_secrets(folder / "secrets.env"),
                storage_at=storage_at,
            )

    @property
    def logs(self) -> Path:
        return self.folder / "log"

    @property
    def credentials(self) -> Path:
        return self.folder / "credentials.json"

    @property
    def backups(self) -> Path:
        """What is dumped before a new version changes the database."""
        return self.folder / "backups"

    @property
    def has_database(self) -> bool:
        """Whether an earlier start may have left something in the database."""
        return bool(self.given.get("DATABASE_URL")) or (self.folder / "postgres" / "PG_VERSION").exists()

    @property
    def agent_socket(self) -> Path:
        return self.sockets / "agent.sock"

    @property
    def storage_folder(self) -> Path:
        """The folder of the portal's own object storage, which exists once it was first enabled."""
        return self.folder / "storage"

    @property
    def storage_port(self) -> int:
        """The port of the object storage's door, which the gateway calls."""
        return self.storage_at.port if self.storage_at and self.storage_at.port else self.inner_port("storage")

    @property
    def storage_url(self) -> str:
        """The URL at which users and tasks reach the object storage."""
        if self.storage_at and self.storage_at.url:
            return self.storage_at.url
        host = bracketed(self.storage_at.host) if self.storage_at else "localhost"
        return f"http://{host}:{self.storage_port}"

    @property
    def storage_socket(self) -> Path:
        """The socket of the object storage; the first connection starts it."""
        return self.sockets / "storage.sock"

    @property
    def origin(self) -> str:
        return self.given.get("PORTAL_ORIGIN") or f"http://portal.localhost:{self.port}"

    @property
    def apps_origin(self) -> str:
        """The parent origin of tasks' HTTP endpoints."""
        return self.given.get("PORTAL_APPS_ORIGIN") or self._beside("apps")

    @property
    def serve_origin(self) -> str:
        """The parent origin of services."""
        return self.given.get("PORTAL_SERVE_ORIGIN") or self._beside("serve")

    def _beside(self, name: str) -> str:
        """Returns an origin in the portal's domain."""
        scheme, host, port = urlsplit(self.origin).scheme, host_of(self.origin), urlsplit(self.origin).port
        rest = host.partition(".")[2] or "localhost"
        return f"{scheme}://{name}.{rest}{f':{port}' if port else ''}"

    @property
    def gateway_folder(self) -> Path:
        """The folder from which the gateway reads its routes."""
        return self.folder / "gateway"

    @property
    def public_env(self) -> dict[str, str]:
        """The environment for all programs: the given one without the portal's secrets, with our programs first in PATH."""
        hidden = {
            "PORTAL_SECRET_KEY",
            "PORTAL_SECRET_KEY_FALLBACKS",
            "PORTAL_SALT_KEYS",
            "PORTAL_GATEWAY_SECRET",
            "DATABASE_URL",
            "REDIS_URL",
            "PORTAL_S3_SECRET_KEY",
            "PORTAL_STORAGE_SECRET_KEY",
            "PORTAL_PACKAGE_INDEX",
            "PIP_INDEX_URL",
            LOGS_SECRET,
        }
        env = {name: value for name, value in self.given.items() if name not in hidden}
        path = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
        own = {"PATH": path, "PORTAL_DATA": str(self.folder), "PYTHONUNBUFFERED": "1"}
        return env | own | {outgoing.SETTING: ",".join(self._open())}

    def _open(self) -> list[str]:
        """Returns what portal and node agent may reach besides public addresses: networks that an administrator opened, S3
        servers named in the environment, and our own object storage."""
        given = self.given
        named = [given.get("PORTAL_STORAGE_URL", ""), given.get("PORTAL_S3_URL", "")]
        if not named[0]:
            named += [self.storage_url, *(f"http://{address}:{self.storage_port}" for address in loopback())]
        return list(filter(None, (given.get(outgoing.SETTING), *map(outgoing.server_of, named))))

    def portal_env(self, urls: Mapping[str, str]) -> dict[str, str]:
        """The environment for the portal's own programs only. `urls` are the URLs of the servers that we started, by name."""
        given, own = self.given, self.secrets
        return {
            "PORTAL_SECRET_KEY": given.get("PORTAL_SECRET_KEY") or own["PORTAL_SECRET_KEY"],
            **{name: value for name, value in {**own, **given}.items() if name in KEYS_SETTINGS},
            **({LOGS_SECRET: given[LOGS_SECRET]} if LOGS_SECRET in given else {}),
            "PORTAL_ORIGIN": self.origin,
            "PORTAL_APPS_ORIGIN": self.apps_origin,
            "PORTAL_SERVE_ORIGIN": self.serve_origin,
            "PORTAL_GATEWAY_FOLDER": str(self.gateway_folder),
            "PORTAL_GATEWAY_PORT": str(self.port),
            "DATABASE_URL": urls.get("postgres") or given["DATABASE_URL"],
            "REDIS_URL": urls.get("valkey") or given["REDIS_URL"],
            **{name: value for name, value in given.items() if name.startswith("PORTAL_S3_")},
            "PORTAL_PACKAGE_INDEX": index_url(given),
            **self._storage_env(),
            "LOCAL_CLOUD_DIR": given.get("LOCAL_CLOUD_DIR") or str(self.folder / "cloud"),
            "LOCAL_CLOUD_SOCKET": given.get("LOCAL_CLOUD_SOCKET") or str(self.agent_socket),
            "DJANGO_SETTINGS_MODULE": "portal.settings",
        }

    def _storage_env(self) -> dict[str, str]:
        if self.given.get("PORTAL_STORAGE_URL"):
            return {name: value for name, value in self.given.items() if name.startswith("PORTAL_STORAGE_")}
        return {
            "PORTAL_STORAGE_URL": self.storage_url,
            "PORTAL_STORAGE_INNER_URL": f"http://127.0.0.1:{self.inner_port('storage-store')}",
            "PORTAL_STORAGE_START": str(self.storage_socket),
            **{name: value for name, value in self.secrets.items() if name.startswith("PORTAL_STORAGE_")},
        }

    def inner_port(self, name: str) -> int:
        """Returns the loopback port of one of our servers: the same as last time, unless another program uses it now."""
        if name in self.ports:
            return self.ports[name]
        path = self.folder / "ports.json"
        ports = json.loads(path.read_text()) if path.exists() else {}
        wanted = int(ports.get(name, 0))
        end = time.monotonic() + PORT_SECONDS
        while (port := free_port(wanted)) != wanted and wanted and time.monotonic() < end:
            time.sleep(0.05)
        if port != wanted:
            write_private(path, json.dumps(ports | {name: port}, indent=2) + "\n")
        self.ports[name] = port
        return port


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
        free = shutil.disk_usage(folder).free // 2**20
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ServiceError(f"The disk of {folder} is full.") from error
        raise ServiceError(f"The data folder {folder} cannot be written: {error.strerror}.") from error
    if free < NEEDED_MB:
        raise ServiceError(f"The disk of {folder} has {free} MB left, and the portal needs at least {NEEDED_MB} MB.")


@contextmanager
def locked(path: Path, holder: str) -> Iterator[None]:
    """Holds the data folder; `holder` is for the person who finds it taken. Raises ServiceError when it is."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ServiceError(
                f"A portal already runs with the data in {path.parent} ({file.read().strip()})."
            ) from None
        file.truncate(0)
        file.write(holder)
        file.flush()
        yield


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ServiceError(f"PORTAL_PORT is “{text}”, and a port is a number from 1 to 65535.")
    return int(text)


def _check_port(port: int) -> None:
    """Checks that the port is free on every loopback address: on any other, a local program could pose as the portal to
    browsers."""
    for address in loopback():
        host = address.strip("[]")
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((host, port))
            except PermissionError:
                raise ServiceError(f"Port {port} is for root only; set PORTAL_PORT to a number above 1023.") from None
            except OSError as error:
                raise ServiceError(
                    f"Port {port} is in use by another program; set PORTAL_PORT to a free one."
                ) from error


def _secrets(path: Path) -> dict[str, str]:
    """Reads NAME=value lines; generates and stores missing secrets."""
    lines = path.read_text().splitlines() if path.exists() else []
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    made = {
        "PORTAL_SECRET_KEY": secrets.token_urlsafe(48),
        "PORTAL_GATEWAY_SECRET": secrets.token_hex(32),
        "PORTAL_STORAGE_ACCESS_KEY": "PORTAL" + secrets.token_hex(7).upper(),
        "PORTAL_STORAGE_SECRET_KEY": secrets.token_hex(20),
        "PORTAL_STORAGE_PROOF": secrets.token_hex(32),
    }
    if not made.keys() <= values.keys():
        values = made | values
        write_private(path, "".join(f"{name}={value}\n" for name, value in values.items()))
    return values


def host_of(origin: str) -> str:
    """Returns the host name of an origin, e.g. portal.localhost."""
    return urlsplit(origin).hostname or "localhost"
