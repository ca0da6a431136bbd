"""The hooks of a run as pages and REST show them: those that were done, those that are to be, and those that are not due."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db.models import Prefetch, QuerySet

from clusters.after import HookSpec, On
from clusters.models import HookRun, Run
from clusters.phase import TERMINAL

_SKIPPED: dict[On, str] = {
    "before": "The run was ended before it.",
    "success": "It is done after a run that has succeeded.",
    "failure": "It is done after a run that has failed.",
    "always": "",
}


@dataclass(frozen=True)
class ShownHook:
    """`did` is the run that does it, None before that is made. `state` is its phase; without it Pending before its turn comes
    (the end of the run that it follows; of one before it, when the run could start), Due after that, Skipped where that ended
    otherwise, and Refused where it cannot be made."""

    name: str
    on: str
    uses: str
    state: str
    message: str
    did: Run | None
    # It is done, and the version of a model that is to come of it is not there yet: `message` says why.
    waits: bool = False

    @property
    def note(self) -> str:
        """What pages say beside its state: of one that succeeded nothing but why its version is not there yet."""
        return self.message if self.waits or self.state != "Succeeded" else ""

    @property
    def started(self) -> dt.datetime | None:
        return self.did.started_at if self.did else None

    @property
    def finished(self) -> dt.datetime | None:
        return self.did.finished_at if self.did else None

    def cost_at(self, now: dt.datetime) -> Decimal:
        return self.did.cost_at(now) if self.did else Decimal(0)


# For lists: two queries for all rows.
def with_hooks(way: str = "") -> Prefetch[Any]:
    """What `hooks_of` reads of the runs at the end of `way` (`current_run__`)."""
    return Prefetch(f"{way}hook_runs", queryset=joined())


def joined() -> QuerySet[HookRun]:
    return HookRun.objects.select_related("did__cluster").defer("did__spec", "did__cluster__spec")


def hooks_of(run: Run) -> Sequence[ShownHook]:
    """In the order of the manifest. One query where there are any, none where they were fetched `with_hooks`."""
    said = [HookSpec.model_validate(each) for each in run.spec.get("hooks") or ()]
    if not said:
        return ()
    fetched = "hook_runs" in getattr(run, "_prefetched_objects_cache", {})
    rows = {row.name: row for row in (run.hook_runs.all() if fetched else joined().filter(run=run))}
    return [_shown(each, rows.get(each.name), run) for each in said]


def _shown(hook: HookSpec, row: HookRun | None, run: Run) -> ShownHook:
    did = row.did if row else None
    if did:
        # Of one that did its part, and of which no version of a model came.
        state, message = ("Refused", row.message) if row and row.message else (did.phase, did.message)
        if row and row.waits and not row.message:
            return ShownHook(hook.name, hook.when, hook.use or "", state, row.waits, did, waits=True)
    elif row:
        state, message = ("Refused", row.message) if row.message else ("Due", "")
    elif run.phase in TERMINAL:
        state, message = "Skipped", _SKIPPED[hook.when]
    else:
        state, message = "Pending", ""
    return ShownHook(hook.name, hook.when, hook.use or "", state, message, did)
