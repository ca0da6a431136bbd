"""What a portal's servers and secrets are: of the one that runs beside, or of the one whose settings are in the environment."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from portal.backup.archive import BackupError
from portal.up.running import OWN, folder_of, running_process, settings_beside

# Settings that a backup keeps, by how their names begin. They are for people who set up the portal elsewhere.
_KEPT = ("PORTAL_", "OIDC_", "EMAIL_", "DATABASE_URL", "REDIS_URL", "LOCAL_CLOUD_")
_NOT_KEPT = ("PORTAL_BACKUP_", "PORTAL_TEST_")
# What secrets.env in the data folder holds.
IN_FOLDER = (
    "PORTAL_SECRET_KEY",
    "PORTAL_SALT_KEYS",
    "PORTAL_GATEWAY_SECRET",
    "PORTAL_STORAGE_ACCESS_KEY",
    "PORTAL_STORAGE_SECRET_KEY",
    "PORTAL_STORAGE_PROOF",
)


@dataclass(frozen=True)
class Server:
    """An S3 server, with keys that may read and write every bucket of the portal."""

    url: str
    region: str
    access_key: str
    secret_key: str


@dataclass(frozen=True)
class Source:
    """`folder` is the data folder of `make run`, and `up` its process; None where containers run the portal."""

    settings: Mapping[str, str]
    folder: Path | None
    up: int

    @classmethod
    def found(cls, given: Mapping[str, str]) -> Source:
        """Raises ServiceError where no portal runs here and the environment names none, and BackupError."""
        if any(name in given for name in OWN):
            return cls(from_files(given), None, 0)
        settings = {**given, **settings_beside(given)}
        folder = folder_of(given)
        kept = read_settings((folder / "secrets.env").read_text())
        used = {name: settings[name] for name in IN_FOLDER if name in settings}
        return cls({**settings, **kept, **used}, folder, running_process(folder))

    @property
    def database(self) -> str:
        if not self.settings.get("DATABASE_URL"):
            raise BackupError("DATABASE_URL is not set; it names the database.")
        return self.settings["DATABASE_URL"]

    @property
    def has_own_storage(self) -> bool:
        """Whether its object storage is a folder in the data folder. PORTAL_STORAGE_START is what `make run` sets then."""
        return self.folder is not None and bool(self.settings.get("PORTAL_STORAGE_START"))

    @property
    def storage(self) -> Server | None:
        """Of appcodes and, without another one, of logs: a server of one's own."""
        return None if self.has_own_storage else server(self.settings, "PORTAL_STORAGE")

    def kept(self) -> str:
        """NAME=value, a line each."""
        found = {
            name: value
            for name, value in self.settings.items()
            if name.startswith(_KEPT)
            and not name.startswith(_NOT_KEPT)
            and not name.endswith("_FILE")
            and "\n" not in value
        }
        return "".join(f"{name}={value}\n" for name, value in sorted(found.items()))


def server(settings: Mapping[str, str], prefix: str) -> Server | None:
    """That of PORTAL_STORAGE_… or PORTAL_LOGS_S3_…; None where its URL is not set."""
    url = settings.get(f"{prefix}_INNER_URL") or settings.get(f"{prefix}_URL")
    if not url:
        return None
    if urlsplit(url).scheme not in ("http", "https"):
        raise BackupError(f"{prefix}_URL starts with http:// or https://.")
    region = settings.get(f"{prefix}_REGION") or "us-east-1"
    return Server(url, region, settings.get(f"{prefix}_ACCESS_KEY", ""), settings.get(f"{prefix}_SECRET_KEY", ""))


def from_files(given: Mapping[str, str]) -> dict[str, str]:
    """The environment, with what the files hold that NAME_FILE names."""
    found = dict(given)
    for name, path in given.items():
        plain = name.removesuffix("_FILE")
        if plain != name and plain not in given and plain.startswith(_KEPT) and not name.startswith(_NOT_KEPT):
            # Some names end so by chance (PORTAL_ALIVE_FILE). What is missing is said by whoever needs it.
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found[plain] = Path(path).read_text().strip()
    return found


def read_settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
