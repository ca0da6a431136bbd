"""Appcodes that are generated examples, in which nothing real is ever run. The portal makes none; billing says which those are
when it starts:

portal.examples.known_by(is_example)
"""

from __future__ import annotations

from collections.abc import Callable

from portal.errors import Conflict
from portal.models import Appcode

_known: list[Callable[[Appcode], bool]] = []


def known_by(told: Callable[[Appcode], bool]) -> None:
    _known[:] = [told]


def keep_disabled(appcode: Appcode) -> None:
    """Raises Conflict for an example: what ran in it would keep it from ever being removed."""
    if any(told(appcode) for told in _known):
        raise Conflict(f"{appcode.code} is a generated example and stays disabled; request an appcode of your own.")
