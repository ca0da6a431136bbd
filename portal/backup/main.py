"""The commands `backup` and `restore` of manage.py. Whatever goes wrong becomes one sentence on stderr and exit status 1."""

from __future__ import annotations

import argparse
import getpass
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from portal.backup import load, save
from portal.backup.archive import BackupError
from portal.backup.progress import Progress
from portal.backup.source import Source
from portal.up.services import ServiceError

PASSPHRASE_FILE = "PORTAL_BACKUP_PASSPHRASE_FILE"  # noqa: S105  a name
SHORTEST = 12
_PASSPHRASE = (
    f"It is asked for at the terminal, or read from the file that {PASSPHRASE_FILE} names, or from standard input."
)


def main(argv: Sequence[str]) -> int:
    """Returns the exit status."""
    arguments = _parser().parse_args(argv)
    # Else a killed command would leave its temporary files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(1))
    progress = Progress()
    try:
        if arguments.command == "backup":
            source = Source.found(os.environ)
            without = arguments.without_storage
            save.save(source, Path(arguments.file).absolute(), passphrase(new=True), progress, without_storage=without)
        elif arguments.settings:
            load.extract_settings(Path(arguments.file), Path(arguments.settings).absolute(), passphrase)
        else:
            without = arguments.without_storage
            load.load(os.environ, Path(arguments.file).absolute(), passphrase, progress, without_storage=without)
    except (BackupError, ServiceError) as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.", file=sys.stderr)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
    else:
        return 0
    return 1


def passphrase(*, new: bool = False) -> str:
    """Raises BackupError for none, and for a `new` one that is short."""
    if path := os.environ.get(PASSPHRASE_FILE):
        try:
            found = Path(path).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise BackupError(f"{PASSPHRASE_FILE} names {path}, which cannot be read.") from error
    elif sys.stdin.isatty():
        found = getpass.getpass("Passphrase of the backup: ")
        if new and getpass.getpass("Once more: ") != found:
            raise BackupError("The two passphrases differ.")
    else:
        found = sys.stdin.readline().rstrip("\r\n")
    if not found:
        raise BackupError(f"There is no passphrase. {_PASSPHRASE}")
    if new and len(found) < SHORTEST:
        raise BackupError(
            f"The passphrase is short; use {SHORTEST} characters or more, for it protects every secret of the portal."
        )
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("manage.py", epilog=f"The passphrase: {_PASSPHRASE}")
    commands = parser.add_subparsers(dest="command", required=True)
    backup = commands.add_parser(
        "backup",
        help="everything that the portal keeps, in one encrypted file",
        epilog=f"The passphrase: {_PASSPHRASE}",
    )
    backup.add_argument("file", metavar="FILE", help="a new file")
    backup.add_argument(
        "--without-storage", action="store_true", help="leave out the object storage, which you back up yourself"
    )
    restore = commands.add_parser(
        "restore", help="an empty portal becomes the one in the file", epilog=f"The passphrase: {_PASSPHRASE}"
    )
    restore.add_argument("file", metavar="FILE", help="made by backup")
    restore.add_argument(
        "--settings", metavar="NEW_FILE", help="only write the old portal's settings and secrets into this file"
    )
    restore.add_argument("--without-storage", action="store_true", help="leave the object storage as it is")
    return parser
