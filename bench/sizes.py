"""How much each part measures: the usual amount, or the smallest one, which only shows that the part works.

Import modules that ask here after the arguments are parsed.
"""

from __future__ import annotations

import os

VARIABLE = "BENCH_SMALLEST"


def is_smallest() -> bool:
    """True if `--smallest` was given."""
    return VARIABLE in os.environ


def size(usual: int, smallest: int) -> int:
    return smallest if is_smallest() else usual


def settling(seconds: float) -> float:
    """Seconds to wait until earlier work has settled, so that it does not distort a measurement. 0 in the smallest size."""
    return 0.0 if is_smallest() else seconds
