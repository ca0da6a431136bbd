"""Hides optional modules from packages that import them if they are installed: loading them takes seconds.

This text runs inside tasks, where images have none of our modules: `programs.text` puts it in front of other programs.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Imports inside find none of these modules, as if they were not installed; later imports find them."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
