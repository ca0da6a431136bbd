#!/usr/bin/env python3
"""What lay in a folder at one moment, in short: how many files and bytes, and a digest of their names, sizes and times.

Two listings with one digest are of the same files; nobody has read them for that. The time is when the store says that a file
was last written, to the second: unlike an ETag every store tells it with the names, a thousand files in one answer. The
digest is a sum, so files may come in any order and none is kept; it finds changes, and is no proof against somebody who makes
files to fit it.

A program of docker/rclone, too: `listing NAMES` reads what `rclone lsjson` writes, writes the names into the file NAMES, one
a line, and says digest, files and bytes. For rclone a line break in a name
is another character, so no name is two lines. Only the standard library is imported here.
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

# The folder of a datastore in which what people removed waits (files/trash.py); no run is to read it.
TRASH = ".portal-trash"
# What every copy and listing by rclone says, but those of a list of names.
WITHOUT_TRASH = ("--exclude", f"{TRASH}/**")
# As rclone writes them (https://rclone.org/overview/#encoding).
_CONTROL = {chr(0x2400 + number): chr(number) for number in range(32)} | {"\u2421": "\x7f"}
_PICTURE = re.compile(f"(\u201b?)([{''.join(_CONTROL)}])")
# How rclone writes what `rows` reads.
LSJSON = ("--recursive", "--files-only", "--no-mimetype", "--use-server-modtime", *WITHOUT_TRASH)


class Listing:
    """Of the files that were added."""

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
        """Digest, files and bytes, divided by spaces."""
        return f"{self.digest} {self.files} {self.size}"


def listing_of(rows: "Iterable[Row]") -> Listing:
    found = Listing()
    for row in rows:
        found.add(*row)
    return found


def plain(name: str) -> str:
    """The name that rclone calls so: it shows control characters by their pictures in Unicode, and marks such a picture."""
    return _PICTURE.sub(lambda found: found[2] if found[1] else _CONTROL[found[2]], name)


def rows(lines: "Iterable[bytes]") -> "Iterator[Row]":
    """Of the lines of `rclone lsjson`, one file in each, with the name that rclone has for it."""
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
