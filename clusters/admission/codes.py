"""The codes of verdicts about runs. Stable: REST answers contain them."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

Fits = Literal["now", "waits", "never"]


class Code(StrEnum):
    FITS = "Fits"
    # The run waits.
    QUOTA = "Quota"
    BEHIND = "Behind"  # The nodes it could use are kept for earlier runs.
    PLACING = "Placing"  # Admitted: its cloud is placing its tasks.
    GPUS = "Gpus"
    RESOURCES = "Resources"  # CPU or memory.
    FRAGMENTED = "Fragmented"
    WINDOW = "Window"  # It fits, but on nodes that are closed or reserved before it would end.
    NO_NODES = "NoNodes"  # No node takes tasks now.
    NOT_BEFORE = "NotBefore"
    INPUT = "Input"
    HOOK = "Hook"
    UNREACHABLE = "Unreachable"
    # The run can never start.
    OVER_LIMIT = "OverLimit"  # Larger than the quota.
    NO_SUCH_GPU = "NoSuchGpu"
    OVER_NODE = "OverNode"
    OVER_POOL = "OverPool"

    @property
    def fits(self) -> Fits:
        return "now" if self is Code.FITS else "never" if self in _NEVER else "waits"


_NEVER = frozenset({Code.OVER_LIMIT, Code.NO_SUCH_GPU, Code.OVER_NODE, Code.OVER_POOL})
