"""The loop of a sweep: what has ended is judged, what is next is started, what nobody wants is ended. It can die at any line.

One worker at a time is at a sweep. It reads the numbers of runs that have succeeded outside any transaction, and then makes one
turn in a single one: trials and the clusters that they are come to be, or end, together. Nothing is remembered between turns but
rows, so what is killed is simply done again by the next turn.
"""

from __future__ import annotations

import time

from django.core.cache import cache

from clusters import wakeups
from clusters.models import Run, Sweep, Trial
from clusters.sweeps import shared
from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.measured import Reading, read_steps, read_value
from clusters.sweeps.shared_turn import SharedTurn
from clusters.sweeps.turn import SPECS, Readings, Steps, Turn
from datastores.drivers.patience import within
from portal.db.advisory_lock import Lock, advisory_lock

# Of one turn. What is left makes another one.
READ_AT_ONCE, READ_SECONDS = 50, 30.0
RESYNC_LIMIT = 500
# Between two looks at how far trials are.
LOOK_SECONDS = 3


def advance(appcode_id: int, name: str) -> None:
    """Makes a turn, and asks for another one where there is more to do. Does nothing while another worker is at it: that one
    looks again at its end."""
    rows = Sweep.objects.filter(appcode=appcode_id, name=name, settled=False)
    found = rows.values_list("pk", "spec__oneRun").first()
    if found is None:
        return
    sweep_id, one_run = found
    with advisory_lock(Lock.SWEEP, str(sweep_id)) as is_mine:
        if not is_mine:
            return
        # One worker of an appcode reads: a server of theirs that is slow keeps no more. Nobody waits for
        # that, or many sweeps would keep a worker each; what was not read is when the sweep of every five seconds comes.
        with advisory_lock(Lock.TRIALS, str(appcode_id)) as reads:
            turn = (SharedTurn if one_run else Turn)(
                sweep_id, *((_readings(sweep_id), _steps(sweep_id)) if reads else (None, {}))
            )
        turn.make()
    if turn.has_more or turn.is_overtaken():
        wakeups.wake_whole(appcode_id, f"sweeps/{name}")


def resync() -> None:
    """Wakes those that live: a wake-up may have been lost, or what did not answer does now."""
    living = Sweep.objects.filter(settled=False).order_by("?")
    for appcode_id, name in living.values_list("appcode", "name")[:RESYNC_LIMIT]:
        wakeups.wake_whole(appcode_id, f"sweeps/{name}")


def _readings(sweep_id: int) -> Readings:
    """The numbers of runs that have succeeded and are not judged yet, by trial and run. What could not be read comes last."""
    sweep = Sweep.objects.filter(pk=sweep_id, deleted_at=None).first()
    spec = SweepSpec.model_validate(sweep.spec) if sweep else None
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
    """How far those are that run, where those are ended that fall behind: by trial and run, what they have told."""
    sweep = Sweep.objects.filter(pk=sweep_id, phase__in=(Sweep.Phase.RUNNING, Sweep.Phase.PAUSED)).first()
    spec = SweepSpec.model_validate(sweep.spec) if sweep else None
    # Each end of a trial makes a turn, too; nobody has to be looked at as often as that.
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
        # In another order each time: who is not reached now may be first then.
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
