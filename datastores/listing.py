#!/usr/bin/env python3
"""The contents of a folder in short: number of files, bytes, and a digest of their names, sizes and times.

Two listings with the same digest are of the same files, without reading them. The time is the store's modification time
in seconds: unlike ETags, every store lists it with the names, a thousand files per response. The digest is a sum, so
files may come in any order and none is kept in memory; it detects changes, but does not protect against somebody who
forges files to match it.

It is also a program of docker/rclone: `listing NAMES` reads the output of `rclone lsjson`, writes the names into the
file NAMES, one per line, and prints digest, files and bytes. rclone encodes a line break in a name as another
character, so each name is one line. Only the standard library is imported here.
"""

import datetime as dt
import hashlib
import json
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    # Path, bytes, seconds since 1970.
    Row = tuple[str, int, int]

# The folder of a datastore's trash (files/trash.py); runs must not read it.
TRASH = ".portal-trash"
# Options of every copy and listing by rclone, except copies by a list of names.
WITHOUT_TRASH = ("--exclude", f"{TRASH}/**")
# As rclone encodes them (https://rclone.org/overview/#encoding).
_CONTROL = {chr(0x2400 + number): chr(number) for number in range(32)} | {"\u2421": "\x7f"}
_PICTURE = re.compile(f"(\u201b?)([{''.join(_CONTROL)}])")
# The rclone options for the input of `rows`.
LSJSON = ("--recursive", "--files-only", "--no-mimetype", "--use-server-modtime", *WITHOUT_TRASH)


class Listing:
    """The sums over the added files."""

    def __init__(self) -> None:
        self.files = self.size = self._sum = 0

    def add(self, path: str, size: int, modified: int) -> None:
        row = f"{path}\0{size}\0{modified}".encode("utf-8", "surrogateescape")
        self._sum = (self._sum + int.from_bytes(hashlib.sha256(row).digest(), "big")) % 2**256
        self.files += 1
        self.size += size

    @property
    def digest(self) -> str:
        """64 hexadecimal digits."""
        return f"{self._sum:064x}"

    @property
    def words(self) -> str:
        """Digest, files and bytes, separated by spaces."""
        return f"{self.digest} {self.files} {self.size}"


def listing_of(rows: "Iterable[Row]") -> Listing:
    found = Listing()
    for row in rows:
        found.add(*row)
    return found


def plain(name: str) -> str:
    """Decodes rclone's form of a name, which replaces control characters by their Unicode pictures and quotes real pictures."""
    return _PICTURE.sub(lambda found: found[2] if found[1] else _CONTROL[found[2]], name)


def rows(lines: "Iterable[bytes]") -> "Iterator[Row]":
    """Parses lines of `rclone lsjson`, one file per line, with rclone's form of the name."""
    for line in lines:
        if line[:1] == b"{":
            entry = json.loads(line.rstrip(b",\r\n"))
            yield entry["Path"], entry["Size"], int(dt.datetime.fromisoformat(entry["ModTime"]).timestamp())


def main(names: str) -> None:
    found = Listing()
    with open(names, "wb") as file:
        for row in rows(sys.stdin.buffer):
            found.add(plain(row[0]), *row[1:])
            file.write(row[0].encode("utf-8", "surrogateescape") + b"\n")
    sys.stdout.write(found.words + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
