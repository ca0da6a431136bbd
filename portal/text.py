"""Text from outside, as the database takes it."""

from __future__ import annotations


def readable(text: str, most: int = 4096) -> str:
    """`text` from outside as a column takes it: its end, without NUL characters and halves of surrogate pairs."""
    return text[-most:].replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
