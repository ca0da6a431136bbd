"""Finds the hooks that are due, of runs that have just ended or could start. Written in the transaction that discovers them, so
none is lost; `clusters/hooks/loop.py` starts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.db import transaction

from clusters import wakeups
from clusters.hooks.models import HookRun
from clusters.manifest.hook_spec import HookSpec, model_of, part_of
from clusters.runs.models import Run
from clusters.runs.status.phase import TERMINAL


def note_due(ended: Iterable[Run]) -> None:
    """Records the due hooks of ended runs, except those of deleted clusters. One statement, none without hooks."""
    due = []
    for run in ended:
        if run.cluster.deleted_at is None and (hooks := list(_hooks(run))):
            due += [HookRun(run=run, name=hook.name, model=model_of(hook, name=run.cluster.name)) for hook in hooks]
            _wake(run)
    HookRun.objects.bulk_create(due)


def before(run: Run) -> tuple[str, str]:
    """For a locked run that nothing else holds back: the hook that it waits for, or a sentence on why it will never start. Both
    are "" once all its `before` hooks have succeeded. These hooks run one after the other, so this marks the first
    unfinished one as due. One query, none without hooks."""
    names = [said["name"] for said in run.spec.get("hooks") or () if said["on"] == "before"]
    rows = {row.name: row for row in run.hook_runs.select_related("did__cluster")} if names else {}
    for name in names:
        row = rows.get(name)
        if row is None:
            HookRun.objects.create(run=run, name=name, before=True)
            _wake(run)
        if row is None or not (row.message or (row.did and row.did.phase in TERMINAL)):
            return name, ""
        if row.did is None:
            return "", f"Its hook {name} could not be done: {row.message}"
        if row.did.phase != Run.Phase.SUCCEEDED:
            how = "has failed" if row.did.phase == Run.Phase.FAILED else "was stopped"
            return "", f"Its hook {name} {how} ({row.did.cluster.name}/{row.did.number}). {row.did.message}".strip()
    return "", ""


def _wake(run: Run) -> None:
    transaction.on_commit(lambda: wakeups.wake_whole(run.cluster.appcode_id, part_of(run.cluster.name)))


def _hooks(run: Run) -> Iterator[HookSpec]:
    for said in run.spec.get("hooks") or ():
        hook = HookSpec.stored(said)
        if hook.is_due(run.phase):
            yield hook
