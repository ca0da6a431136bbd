"""The settings of the portal that runs with a data folder, for commands that are typed beside it.

They are nowhere on disk as a whole: some are made, some were given to `up`. The kernel has them, in the environment of the
portal's own programs, and shows them to whoever may act for the portal anyway: its user and root.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Mapping
from pathlib import Path

import psutil

from portal.up.services import ServiceError

# What says that a program has the settings, and that somebody set them by hand.
OWN = ("PORTAL_SECRET_KEY", "PORTAL_SECRET_KEY_FILE")


def folder_of(given: Mapping[str, str]) -> Path:
    return Path(given.get("PORTAL_DATA") or "var").absolute()


def settings_beside(given: Mapping[str, str]) -> dict[str, str]:
    """What `given` lacks of the running portal's settings; nothing where they were set by hand.

    Raises ServiceError with a sentence when there is no such portal or its settings are not this user's to see.
    """
    if any(name in given for name in OWN):
        return {}
    folder = folder_of(given)
    try:
        found = _environment(_process(folder), folder)
    except (PermissionError, psutil.AccessDenied) as error:
        raise ServiceError(
            f"The portal with the data in {folder} is another user's; run this as that user, or as root."
        ) from error
    return {name: value for name, value in found.items() if name not in given or name == "PORTAL_DATA"}


def _process(folder: Path) -> int:
    """The id of the `up` that holds the folder's lock."""
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
        pass  # It ends at this moment, or a program of its start does.
    raise ServiceError(
        f"The portal with its data in {folder} is starting or stopping; try again when it says that it is ready."
    )
