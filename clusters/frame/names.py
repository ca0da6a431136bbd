"""Names that are suggested to people."""

from __future__ import annotations

import itertools
from collections.abc import Container


def free_name(name: str, taken: Container[str], longest: int) -> str:
    """`name`, or the first of name-2, name-3, … that is not `taken`, cut to `longest` characters."""
    endings = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    return next(free for ending in endings if (free := name[: longest - len(ending)].rstrip("-") + ending) not in taken)
