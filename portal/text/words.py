"""Text from outside, as the database takes it, and counts as people say them."""

from __future__ import annotations


def readable(text: str, most: int = 4096) -> str:
    """The last `most` characters of `text`, without NUL and half surrogate pairs, which PostgreSQL cannot store."""
    return text[-most:].replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def is_unicode(text: str) -> bool:
    """Whether the text has no half surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def often(times: int) -> str:
    """ "twice", "5 times"."""
    return {1: "once", 2: "twice"}.get(times, f"{times} times")
