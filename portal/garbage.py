"""How often Python searches the objects of a process for cycles that nobody needs any more. Its idea: what was loaded lives as
long as the process, so only newer objects are searched, and these seldom, since nearly all are freed without it.

At Python's default (every 700 objects), a preview among 1,000 waiting runs is interrupted about 20 times, and at some of them all
objects of the process are searched, for more time than the rest of the preview takes.
"""

from __future__ import annotations

import gc

COLLECTED = (50_000, 20, 50)


def settle() -> None:
    """Called when the process has loaded what it needs."""
    gc.freeze()
    gc.set_threshold(*COLLECTED)
