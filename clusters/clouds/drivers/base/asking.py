"""One question by HTTP to a program that may answer anything: what agents and the portal ask of tasks.

It is said over a connection that is there, within the time limit of whoever asks: no program that drips holds them."""

from __future__ import annotations

import asyncio

# Bytes that are read of what a program says of its work, and of each line before that.
MOST_SAID = 64 * 1024


async def answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, most: int
) -> tuple[int, bytes]:
    """The status of the answer to `request`, 0 for what is no HTTP, and at most so many bytes of its body, which ends with the
    connection. Closes the connection. Raises OSError, and ValueError for a line without end."""
    body = b""
    try:
        writer.write(request)
        line = await reader.readline()
        if most:
            while (await reader.readline()).strip():
                pass
            while len(body) < most and (data := await reader.read(most - len(body))):
                body += data
    finally:
        writer.close()
    known = line.startswith(b"HTTP/1.") and line[9:12].isdigit()
    return (int(line[9:12]), body) if known else (0, b"")
