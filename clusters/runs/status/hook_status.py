"""The hooks of a run for pages and REST: done, pending and skipped ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db.models import Prefetch, QuerySet

from clusters.hooks.models import HookRun
from clusters.manifest.hook_spec import HookSpec, On
from clusters.runs.models import Run
from clusters.runs.status.phase import TERMINAL

_SKIPPED: dict[On, str] = {
    "before": "The run was ended before it.",
    "success": "It is done after a run that has succeeded.",
    "failure": "It is done after a run that has failed.",
    "always": "",
}


@dataclass(frozen=True)
class ShownHook:
    """`did` is the run that does the hook, None until that is created; `state` is its phase. Without a run it is Pending before
    the hook's turn (the end of its run, or for a `before` hook the moment its run could start), Due after that, Skipped if the
    run ended otherwise, and Refused if it cannot be created."""

    name: str
    on: str
    uses: str
    state: str
    message: str
    did: Run | None
    # Done, but its model version is not registered yet; `message` says why.
    waits: bool = False

    @property
    def note(self) -> str:
        """What pages show beside its state. For a succeeded hook, only why its version is not registered yet."""
        return self.message if self.waits or self.state != "Succeeded" else ""

    @property
    def started(self) -> dt.datetime | None:
        return self.did.started_at if self.did else None

    @property
    def finished(self) -> dt.datetime | None:
        return self.did.finished_at if self.did else None

    def cost_at(self, now: dt.datetime) -> Decimal:
        return self.did.cost_at(now) if self.did else Decimal(0)


def with_hooks(way: str = "") -> Prefetch[Any]:
    """Prefetches what `hooks_of` reads of the runs at `way` (`current_run__`). For lists: two queries for all rows."""
    return Prefetch(f"{way}hook_runs", queryset=joined())


def joined() -> QuerySet[HookRun]:
    return HookRun.objects.select_related("did__cluster").defer("did__spec", "did__cluster__spec")


def hooks_of(run: Run) -> Sequence[ShownHook]:
    """In the order of the manifest. One query if there are any, none if they were fetched `with_hooks`."""
    said = [HookSpec.stored(each) for each in run.spec.get("hooks") or ()]
    if not said:
        return ()
    fetched = "hook_runs" in getattr(run, "_prefetched_objects_cache", {})
    rows = {row.name: row for row in (run.hook_runs.all() if fetched else joined().filter(run=run))}
    return [_shown(each, rows.get(each.name), run) for each in said]


def _shown(hook: HookSpec, row: HookRun | None, run: Run) -> ShownHook:
    did = row.did if row else None
    if did:
        # Refused: it did its part, but no model version was registered.
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
