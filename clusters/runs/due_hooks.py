"""Which hooks are due after runs that have just come to their end. Written in the transaction of the phase, so that none is lost;
`clusters/run_hooks/loop.py` makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.db import transaction

from clusters import wakeups
from clusters.after import HookSpec, part_of
from clusters.models import HookRun, Run


def note_due(ended: Iterable[Run]) -> None:
    """Of a deleted cluster none is. One statement, none where there are no hooks."""
    due = []
    for run in ended:
        if run.cluster.deleted_at is None and (names := list(_names(run))):
            due += [HookRun(run=run, name=name) for name in names]
            transaction.on_commit(
                lambda run=run: wakeups.wake_whole(run.cluster.appcode_id, part_of(run.cluster.name))  # type: ignore[misc]
            )
    HookRun.objects.bulk_create(due)


def _names(run: Run) -> Iterator[str]:
    for said in run.spec.get("hooks") or ():
        hook = HookSpec.model_validate(said)
        if hook.is_due(run.phase):
            yield hook.name
