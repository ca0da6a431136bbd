"""The codes of verdicts about runs, and of what became of them. Stable: REST answers contain them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

Fits = Literal["now", "waits", "never"]
# What a verdict is about: numbers and names, from which `words.sentence` makes a sentence.
Values = Mapping[str, int | str]


class Code(StrEnum):
    FITS = "Fits"
    # The run has what it asked for.
    PLACED = "Placed"
    WHOLE = "Whole"
    STARTED = "Started"  # Its tasks run, where the portal does not place them.
    # The run waits.
    QUOTA = "Quota"
    BEHIND = "Behind"  # The nodes it could use are kept for earlier runs.
    TAKING_BACK = "TakingBack"  # Runs that are ending, or are being taken back for it, still hold what it needs.
    PLACING = "Placing"  # Admitted: its cloud is placing its tasks.
    GPUS = "Gpus"
    RESOURCES = "Resources"  # CPU or memory.
    FRAGMENTED = "Fragmented"
    WINDOW = "Window"  # It fits, but on nodes that are closed or reserved before it would end.
    NO_NODES = "NoNodes"  # No node takes tasks now.
    TURN = "Turn"  # Not decided yet, or too far back in the queue.
    CLOUD = "Cloud"  # Its cloud holds it back, and says why in its own words.
    NOT_BEFORE = "NotBefore"
    INPUT = "Input"
    HOOK = "Hook"
    BUDGET = "Budget"
    DISABLED = "Disabled"  # Its appcode.
    EXPIRED = "Expired"  # Its appcode.
    UNREACHABLE = "Unreachable"
    GIVEN_BACK = "GivenBack"  # It lost its places: its tasks could not take them, or not keep them.
    TAKEN_BACK = "TakenBack"  # It lost its places to a run that comes before it.
    # The run can never start.
    OVER_LIMIT = "OverLimit"  # Larger than the quota.
    NO_SUCH_GPU = "NoSuchGpu"
    OVER_NODE = "OverNode"
    OVER_POOL = "OverPool"

    @property
    def fits(self) -> Fits:
        return "now" if self in _NOW else "never" if self in _NEVER else "waits"


_NOW = frozenset({Code.FITS, Code.PLACED, Code.WHOLE, Code.STARTED})
_NEVER = frozenset({Code.OVER_LIMIT, Code.NO_SUCH_GPU, Code.OVER_NODE, Code.OVER_POOL})
# The reasons that runs store while they wait. For GPUs and other resources, until a pass decides.
_OF_REASON: Mapping[str, Code] = {
    "": Code.FITS,
    "QuotaExceeded": Code.QUOTA,
    "AppcodeDisabled": Code.DISABLED,
    "AppcodeExpired": Code.EXPIRED,
    "BudgetUsedUp": Code.BUDGET,
    "WaitingForInput": Code.INPUT,
    "WaitingForHook": Code.HOOK,
    "WaitingForGPUs": Code.TURN,
    "WaitingForResources": Code.TURN,
    "CloudUnreachable": Code.UNREACHABLE,
    "Scheduled": Code.NOT_BEFORE,
}


def code_of(reason: str, fits: Fits = "waits") -> Code:
    """The code of a reason, or of a code by its name. Raises ValueError for other words."""
    code = _OF_REASON.get(reason) or Code(reason)
    return Code.OVER_LIMIT if code is Code.QUOTA and fits == "never" else code
