"""Frames of a session in a task, in both directions: one byte for the kind, four for the length, then the data.

Imported by `exec.py`, which must start quickly, so it imports only small modules of the standard library.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# To the command: input, end of input, a new terminal size ("columns rows").
INPUT, END, SIZE = b"i", b"e", b"s"
# From the command: stdout, stderr, the exit code; or a sentence on why there is none.
STDOUT, STDERR, EXIT, REFUSED = b"o", b"x", b"q", b"!"

HEAD = 5
LARGEST = 1 << 16


def pack(kind: bytes, data: bytes = b"") -> bytes:
    return kind + len(data).to_bytes(4, "big") + data


class Frames:
    """Parses received frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._buffer += data
        while len(self._buffer) >= HEAD:
            end = HEAD + int.from_bytes(self._buffer[1:HEAD], "big")
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[:1]), bytes(self._buffer[HEAD:end])
            del self._buffer[:end]
            yield frame
