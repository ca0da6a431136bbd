"""How much of everything is measured: the usual size, or the smallest one, in which each part shows only that it works."""

from __future__ import annotations

import os

VARIABLE = "BENCH_SMALLEST"


def size(usual: int, smallest: int) -> int:
    """`smallest` where `--smallest` was given, for which a module has to be imported after the arguments were read."""
    return smallest if VARIABLE in os.environ else usual
