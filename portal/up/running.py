"""Reads the settings of the portal that runs on a data folder, for commands typed next to it.

No file contains all settings: some are generated, some were given to `up`. They are in the environment of the portal's
programs, which the kernel shows to those who may act for the portal anyway: its user and root.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Mapping
from pathlib import Path

import psutil

from portal.up.services import ServiceError

# Variables that show that a program has the settings, or that a person set them.
OWN = ("PORTAL_SECRET_KEY", "PORTAL_SECRET_KEY_FILE")


def folder_of(given: Mapping[str, str]) -> Path:
    return Path(given.get("PORTAL_DATA") or "var").absolute()


def settings_beside(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the running portal's settings that `given` lacks; nothing if a person set them.

    Raises ServiceError with one sentence if no such portal runs, or if this user may not read its settings.
    """
    if any(name in given for name in OWN):
        return {}
    folder = folder_of(given)
    try:
        found = _environment(running_process(folder), folder)
    except (PermissionError, psutil.AccessDenied) as error:
        raise ServiceError(
            f"The portal with the data in {folder} is another user's; run this as that user, or as root."
        ) from error
    return {name: value for name, value in found.items() if name not in given or name == "PORTAL_DATA"}


def running_process(folder: Path) -> int:
    """Returns the pid of the `up` that holds the folder's lock. Raises ServiceError."""
    try:
        with (folder / "up.lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if found := re.match(r"process (\d+)", file.read()):
                    return int(found[1])
    except FileNotFoundError:
        pass
    raise ServiceError(
        f"No portal runs with its data in {folder}, and this command needs its settings. Start it with `make run`, name another "
        "folder by PORTAL_DATA, or set PORTAL_SECRET_KEY, DATABASE_URL and REDIS_URL (docs/deployment.md)."
    )


def _environment(process: int, folder: Path) -> dict[str, str]:
    try:
        for program in psutil.Process(process).children():
            if OWN[0] in (env := program.environ()):
                return env
    except psutil.NoSuchProcess:
        pass  # It is just ending, or one of its start-up programs is.
    raise ServiceError(
        f"The portal with its data in {folder} is starting or stopping; try again when it says that it is ready."
    )
