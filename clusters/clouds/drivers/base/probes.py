"""Sends one HTTP request to an untrusted program: used by agents and the portal to poll tasks.

The connection must be open already, and the caller sets the time limit, so a program that sends slowly holds nobody up."""

from __future__ import annotations

import asyncio

# Maximum bytes read of a report, and of each line before it.
MOST_SAID = 64 * 1024


async def answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, most: int
) -> tuple[int, bytes]:
    """Returns the status of the answer (0 if it is not HTTP) and at most `most` bytes of its body, which ends with the
    connection. Closes the connection. Raises OSError, and ValueError for an endless line."""
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
