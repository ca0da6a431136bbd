"""The loop of a sweep: judges ended trials, starts the next ones, ends those no longer needed. It may die at any line.

One worker at a time handles a sweep. It reads the values of succeeded runs outside any transaction, then makes a turn in a single
one: trials and their clusters begin or end together. All state is in rows, so the next turn repeats whatever was killed.
"""

from __future__ import annotations

import time

from django.core.cache import cache

from clusters import wakeups
from clusters.runs.models import Run
from clusters.sweeps import shared
from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.models import Sweep, Trial
from clusters.sweeps.objective import Reading, read_steps, read_value
from clusters.sweeps.shared_step import SharedTurn
from clusters.sweeps.step import SPECS, Readings, Steps, Turn
from datastores.drivers.patience import within
from portal.db.advisory_lock import Lock, advisory_lock

# Limits of one turn. What is left is done in another turn.
READ_AT_ONCE, READ_SECONDS = 50, 30.0
RESYNC_LIMIT = 500
# Minimum seconds between two readings of the trials' progress.
LOOK_SECONDS = 3


def advance(appcode_id: int, name: str) -> None:
    """Makes a turn, and requests another if there is more to do. Leaves it to a worker that is at it, which rechecks at its
    end."""
    rows = Sweep.objects.filter(appcode=appcode_id, name=name, settled=False)
    found = rows.values_list("pk", "spec__oneRun").first()
    if found is None:
        return
    sweep_id, one_run = found
    with advisory_lock(Lock.SWEEP, str(sweep_id)) as is_mine:
        if not is_mine:
            return
        # Only one worker of an appcode reads values, so its slow server does not block more. Others do not wait for it, or many
        # sweeps would each block a worker; the resync every five seconds repeats what was not read.
        with advisory_lock(Lock.TRIALS, str(appcode_id)) as reads:
            turn = (SharedTurn if one_run else Turn)(
                sweep_id, *((_readings(sweep_id), _steps(sweep_id)) if reads else (None, {}))
            )
        turn.make()
    if turn.has_more or turn.is_overtaken():
        wakeups.wake_whole(appcode_id, f"sweeps/{name}")


def resync() -> None:
    """Wakes live sweeps: a wake-up may have been lost, or a server that was silent may answer now."""
    living = Sweep.objects.filter(settled=False).order_by("?")
    for appcode_id, name in living.values_list("appcode", "name")[:RESYNC_LIMIT]:
        wakeups.wake_whole(appcode_id, f"sweeps/{name}")


def _readings(sweep_id: int) -> Readings:
    """Values of succeeded runs that are not judged yet, by trial and run. Those that could not be read before come last."""
    sweep = Sweep.objects.filter(pk=sweep_id, deleted_at=None).first()
    spec = SweepSpec.stored(sweep.spec) if sweep else None
    if spec is None or spec.goal is None:
        return {}
    goal, until = spec.goal, time.monotonic() + READ_SECONDS
    if spec.one_run:
        living = Trial.objects.filter(sweep=sweep_id, phase="", cluster__isnull=False)
        living = (
            living.select_related("cluster__appcode", "cluster__current_run").order_by("message", "pk").defer(*SPECS)
        )
        with within(READ_SECONDS):
            return shared.readings(living, goal.metric, READ_AT_ONCE, until)
    waiting = Trial.objects.filter(sweep=sweep_id, phase="", cluster__current_run__phase=Run.Phase.SUCCEEDED)
    waiting = waiting.select_related("cluster__appcode", "cluster__current_run").order_by("message", "pk")
    found: dict[tuple[int, int], Reading] = {}
    with within(READ_SECONDS):
        for trial in waiting[:READ_AT_ONCE]:
            if time.monotonic() < until and (run := _run_of(trial)):
                found[trial.pk, run.pk] = read_value(run, goal.metric)
    return found


def _steps(sweep_id: int) -> Steps:
    """The values that running trials have reported, by trial and run, if the sweep ends trials that fall behind."""
    sweep = Sweep.objects.filter(pk=sweep_id, phase__in=(Sweep.Phase.RUNNING, Sweep.Phase.PAUSED)).first()
    spec = SweepSpec.stored(sweep.spec) if sweep else None
    # Each end of a trial causes a turn, too, which is more often than progress needs to be read.
    if (
        spec is None
        or not spec.stop_early
        or not spec.goal
        or not cache.add(f"sweeps.look.{sweep_id}", 1, LOOK_SECONDS)
    ):
        return {}
    running = Trial.objects.filter(sweep=sweep_id, phase="", cluster__current_run__phase=Run.Phase.RUNNING)
    found: dict[tuple[int, int], list[tuple[int, float]]] = {}
    until = time.monotonic() + READ_SECONDS
    with within(READ_SECONDS):
        # Random order: a trial that is not reached now may be first next time.
        for trial in running.select_related("cluster__appcode", "cluster__current_run").order_by("?"):
            if time.monotonic() < until and (run := _run_of(trial)):
                found[trial.pk, run.pk] = read_steps(run, spec.goal.metric)
    return found


def _run_of(trial: Trial) -> Run | None:
    if trial.cluster is None or trial.cluster.current_run is None:
        return None
    run = trial.cluster.current_run
    run.cluster = trial.cluster
    return run
