"""One turn of a sweep, in a single transaction: judges ended trials, starts the next ones, ends those no longer needed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from functools import partial

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from clusters import wakeups
from clusters.cluster import actions
from clusters.manifest.cluster import ClusterManifest
from clusters.runs import budgets
from clusters.runs.models import Run
from clusters.runs.status.phase import TERMINAL
from clusters.sweeps.access import SWEEPS
from clusters.sweeps.manifest import Goal, StopEarly, SweepSpec, trial_name, trial_spec
from clusters.sweeps.models import Sweep, Trial
from clusters.sweeps.notifications import tell_end
from clusters.sweeps.objective import Reading, is_comparable
from clusters.sweeps.parameters import Value
from clusters.sweeps.points import best_of, known_points
from clusters.sweeps.search.sampler import next_points
from clusters.sweeps.search.stopping import Progress, follow
from portal.access import OPERATE, may
from portal.db.bulk_update import update_rows
from portal.errors import Invalid, sentence
from portal.manifests import parse
from portal.models import User

# Limits of one turn. What is left is done in another turn.
START_AT_ONCE, END_AT_ONCE, DELETE_AT_ONCE = 20, 50, 200
# How long after a run's end its value is retried if its storage does not answer.
PATIENCE = dt.timedelta(minutes=10)
# Pause once this many trials have failed and none has not, so that a user looks before more GPUs are spent.
ALL_FAILED = 5
# Concurrent trials of an appcode in all its sweeps. The quota only bounds GPUs, and each trial is a cluster.
MOST_AT_ONCE = 1000
# The latest trials that reached a rung and are compared.
RIVALS = 1000

# Fields that are not loaded, as there may be a thousand trials.
SPECS = ("cluster__spec", "cluster__current_run__spec")

# Words for the ends of trials, in this order.
ENDS = {"Succeeded": "succeeded", "Failed": "failed", "Pruned": "ended early", "Stopped": "stopped"}

Readings = Mapping[tuple[int, int], Reading]
Steps = Mapping[tuple[int, int], Sequence[tuple[int, float]]]


class Turn:
    """One turn of a sweep whose trials are clusters. `has_more`: there is already work for another turn."""

    def __init__(self, sweep_id: int, readings: Readings | None, steps: Steps) -> None:
        """`readings` is None if nothing could be read."""
        self.sweep_id, self.readings, self.steps = sweep_id, readings or {}, steps
        self.reads = readings is not None
        self.has_more = False
        # Ended trials that wait; those of them that wait for the sweep to be resumed; and when the sweep's row last changed.
        self.waiting: list[int] = []
        self.resting: list[int] = []
        self.changed_at: dt.datetime | None = None

    def is_overtaken(self) -> bool:
        """Whether something changed that this turn did not see, and whose wake-up found the sweep locked."""
        row = Sweep.objects.filter(pk=self.sweep_id).values_list("changed_at", flat=True).first()
        ended = _ended(Trial.objects.filter(sweep=self.sweep_id, phase="")).exclude(pk__in=self.waiting)
        if not self.reads:
            ended = ended.exclude(cluster__current_run__phase=Run.Phase.SUCCEEDED)
        return row != self.changed_at or (row is not None and ended.exists())

    @transaction.atomic
    def make(self) -> None:
        rows = Sweep.objects.select_for_update(of=("self",), no_key=True).select_related("appcode", "acts_for")
        sweep = rows.filter(pk=self.sweep_id).first()
        if sweep is None:
            return
        self.sweep, self.now = sweep, timezone.now()
        if sweep.deleted_at:
            self.has_more = actions.delete_parts(sweep.appcode_id, sweep.part_of, DELETE_AT_ONCE)
            if not self.has_more:
                sweep.delete()
            else:
                self.changed_at = sweep.changed_at
            return
        self.spec = SweepSpec.stored(sweep.spec)
        before = (sweep.phase, sweep.message, sweep.best, sweep.settled)
        living = sweep.trials.filter(phase="").select_related("cluster__current_run")
        living = living.defer(*SPECS).order_by("pk")
        left = self._judge(list(living))
        if self.spec.stop_early and self.spec.goal and self.steps:
            left = self._compare(left, self.spec.stop_early, self.spec.goal)
        if sweep.phase == Sweep.Phase.STOPPED:
            left = self._end(left)
        begun = sweep.trials.count()
        if sweep.phase == Sweep.Phase.RUNNING:
            begun, left = self._start(begun, left)
        elif sweep.phase == Sweep.Phase.PAUSED:
            self._rest(left)
        if sweep.phase == Sweep.Phase.RUNNING and not left and begun >= self.total:
            self._finish()
        sweep.settled = len(left) == len(self.resting) and sweep.phase != Sweep.Phase.RUNNING
        if before != (sweep.phase, sweep.message, sweep.best, sweep.settled):
            sweep.save()
        self.changed_at = sweep.changed_at

    @property
    def total(self) -> int:
        return self.spec.points * (self.spec.folds or 1)

    def _judge(self, living: list[Trial]) -> list[Trial]:
        """Sets the phase of ended trials. Returns those that are alive."""
        left, over = list[Trial](), list[Trial]()
        for trial in living:
            run = trial.cluster.current_run if trial.cluster else None
            if run is not None and run.phase not in TERMINAL:
                left.append(trial)
                continue
            if trial.cluster and trial.cluster.next_by_id and not trial.cluster.deleted_at:
                # A restart was requested: the next run counts.
                self.waiting.append(trial.pk)
                left.append(trial)
                continue
            if self._try_again(trial, run) or not self._is_judged(trial, run):
                left.append(trial)
                continue
            trial.finished_at = (run and run.finished_at) or self.now
            over.append(trial)
        self._note(over)
        return left

    def _note(self, over: list[Trial]) -> None:
        """Stores trials that got a phase, and the consequences for the sweep."""
        if over:
            update_rows(over, ["phase", "value", "message", "finished_at", "attempt"])
            self.sweep.best = best_of(self.sweep, self.spec)
        failed = sum(trial.phase == Trial.Phase.FAILED for trial in over)
        if failed and self.sweep.phase == Sweep.Phase.RUNNING:
            self._look_at_failures(failed)

    def _is_judged(self, trial: Trial, run: Run | None) -> bool:
        if run is None or run.phase == Run.Phase.STOPPED:
            trial.phase, trial.message = Trial.Phase.STOPPED, run.message if run else "Its cluster is gone."
        elif run.phase == Run.Phase.FAILED:
            trial.phase, trial.message = Trial.Phase.FAILED, run.message
        elif self.spec.goal is None:
            trial.phase = Trial.Phase.SUCCEEDED
        else:
            return self._is_read(trial, run, run.finished_at)
        return True

    def _is_read(self, trial: Trial, run: Run, finished_at: dt.datetime | None) -> bool:
        reading = self.readings.get((trial.pk, run.pk))
        if reading is None:
            return False
        if reading.again and self.now < (finished_at or self.now) + PATIENCE:
            self.waiting.append(trial.pk)
            if trial.message != reading.why:
                trial.message = reading.why
                trial.save(update_fields=["message"])
            return False
        trial.value, trial.message = reading.value, reading.why
        trial.phase = Trial.Phase.FAILED if reading.value is None else Trial.Phase.SUCCEEDED
        return True

    def _try_again(self, trial: Trial, run: Run | None) -> bool:
        """Whether its failed run is restarted, now or when the sweep resumes. A run that a budget stopped is restarted, too,
        without counting as an attempt; it waits until the budget allows it."""
        if run is None or self.sweep.phase == Sweep.Phase.STOPPED or trial.cluster is None or trial.cluster.deleted_at:
            return False
        is_stopped = run.phase == Run.Phase.STOPPED and run.stop_reason == budgets.REASON
        if not is_stopped and (run.phase != Run.Phase.FAILED or trial.attempt >= self.spec.retries):
            return False
        user = None if self.sweep.phase == Sweep.Phase.PAUSED else self._acting()
        try:
            if user:
                actions.deploy(trial.cluster, acting_user=user)
                if not is_stopped:
                    trial.attempt += 1
                    trial.save(update_fields=["attempt"])
                return True
        except (Invalid, PermissionDenied) as error:
            self._pause(sentence(error))
        self.waiting.append(trial.pk)
        self.resting.append(trial.pk)
        return True

    def _look_at_failures(self, new: int) -> None:
        phases = Q(phase=Trial.Phase.FAILED), ~Q(phase__in=[Trial.Phase.FAILED, ""])
        found = self.sweep.trials.aggregate(failed=Count("pk", filter=phases[0]), others=Count("pk", filter=phases[1]))
        # Only once: the user who resumes it has seen it.
        if not found["others"] and found["failed"] - new < ALL_FAILED <= found["failed"] < self.total:
            last = self.sweep.trials.filter(phase=Trial.Phase.FAILED).latest("finished_at", "pk")
            self._pause(f"The first {found['failed']} trials have all failed. The last one: {last.message}")

    def _compare(self, living: list[Trial], rule: StopEarly, goal: Goal) -> list[Trial]:
        """Ends trials that fall behind. Returns the others."""
        rows = self.sweep.trials.exclude(compared={}).order_by("-pk").values_list("number", "compared")[:RIVALS]
        rivals = {number: Progress(number, remembered=remembered) for number, remembered in rows}
        left = []
        for trial in living:
            run = trial.cluster.current_run if trial.cluster else None
            # One that has ended meanwhile is judged by its end.
            told = self.steps.get((trial.pk, run.pk), ()) if run and run.phase not in TERMINAL else ()
            was = Progress(trial.number, -1 if trial.step is None else trial.step, None, trial.compared)
            found, is_behind = follow(rule, goal, was, told, rivals.values()) if told else (was, False)
            if found.step > was.step:
                trial.step, trial.compared = found.step, dict(found.remembered)
                if found.remembered:
                    rivals[trial.number] = found
                if is_behind:
                    self._prune(trial, found, goal)
                trial.save()
            if not is_behind:
                left.append(trial)
        return left

    def _prune(self, trial: Trial, found: Progress, goal: Goal) -> None:
        is_number = found.value is not None and is_comparable(found.value)
        trial.phase, trial.finished_at = Trial.Phase.PRUNED, self.now
        trial.value = found.value if is_number else None
        trial.message = (
            f"Ended early at step {found.step}: {goal.metric} = {found.value:g}, and others were better there."
        )
        if trial.cluster_id:
            actions.end_part(trial.cluster_id, "Pruned", trial.message)

    def _end(self, living: list[Trial]) -> list[Trial]:
        """Ends as many trials as one turn may. Returns those that are left."""
        ended = living[:END_AT_ONCE]
        self._stop(ended)
        self.has_more = len(living) > END_AT_ONCE
        return living[END_AT_ONCE:]

    def _stop(self, ended: list[Trial]) -> None:
        for trial in ended:
            trial.phase, trial.message, trial.finished_at = Trial.Phase.STOPPED, self.sweep.message, self.now
        for cluster_id in dict.fromkeys(trial.cluster_id for trial in ended if trial.cluster_id):
            actions.end_part(cluster_id, "Cancelled", f"Its sweep was ended. {self.sweep.message}")
        update_rows(ended, ["phase", "message", "finished_at"])

    def _rest(self, living: list[Trial]) -> None:
        """Called while the sweep is paused. Running trials go on."""

    def _start(self, begun: int, living: list[Trial]) -> tuple[int, list[Trial]]:
        """Starts as many trials as may run at once. Returns how many were started in all, and those alive."""
        wanted = min(self.spec.parallel - len(living), self.total - begun)
        wanted = self._within(wanted) if wanted > 0 else 0
        count = min(wanted, START_AT_ONCE)
        user = self._acting() if count > 0 else None
        if user is None:
            return begun, living
        folds = self.spec.folds or 1
        numbers = [divmod(unit, folds) for unit in range(begun, begun + count)]
        points = self._points(sorted({number for number, _ in numbers}))
        for number, fold in numbers:
            fold = fold + 1 if self.spec.folds else 0
            metadata = {"name": trial_name(self.sweep.name, number, fold), "appcode": self.sweep.appcode.code}
            body = {"kind": "cluster", "metadata": metadata, "spec": trial_spec(self.spec, points[number], fold)}
            try:
                manifest = parse(ClusterManifest, body)
                made = actions.create_cluster(manifest, acting_user=user, part_of=self.sweep.part_of)
            except (Invalid, PermissionDenied) as error:
                self._pause(sentence(error))
                return begun, living
            trial = self.sweep.trials.create(number=number, fold=fold, parameters=points[number], cluster=made)
            begun, living = begun + 1, [*living, trial]
        self.has_more = wanted > count
        return begun, living

    def _within(self, wanted: int) -> int:
        """How many of `wanted` trials the appcode may have besides those alive. Sets the message of a sweep that has to wait.
        Sweeps that call this concurrently may exceed the limit by the size of a turn."""
        code = self.sweep.appcode.code
        alive = Trial.objects.filter(sweep__appcode=self.sweep.appcode_id, phase="", index=None)
        room = max(MOST_AT_ONCE - alive.filter(sweep__settled=False).count(), 0)
        full = f"{code} has {MOST_AT_ONCE:,} trials at once, as many as it may have; others start as these end."
        self.sweep.message = full if room < wanted else ""
        return min(wanted, room)

    def _points(self, numbers: list[int]) -> dict[int, Mapping[str, Value]]:
        """The parameters of each point: the stored ones if a fold of it was started, else new ones."""
        rows = self.sweep.trials.filter(number__in=numbers)
        found = dict(rows.values_list("number", "parameters"))
        new = [number for number in numbers if number not in found]
        if new:
            known = known_points(self.sweep, self.spec) if self.spec.sampler == "tpe" else ()
            found |= zip(new, next_points(self.spec, new[0], len(new), known), strict=True)
        return found

    def _acting(self) -> User | None:
        """The user in whose name clusters are created. If they may not, pauses the sweep and returns None."""
        user, code = self.sweep.acts_for, self.sweep.appcode.code
        if user is not None and may(user, self.sweep.appcode, OPERATE):
            return user
        who = user.display_name if user else "Whoever made it"
        self._pause(f"{who} may start nothing in {code} any more. Resume it, and it goes on in your name.")
        return None

    def _pause(self, why: str) -> None:
        self.sweep.phase, self.sweep.message = Sweep.Phase.PAUSED, why
        SWEEPS.record(self.sweep, "paused", None, why)

    def _finish(self) -> None:
        counts = dict(self.sweep.trials.values_list("phase").annotate(Count("pk")).order_by())
        is_good = counts.get(Trial.Phase.SUCCEEDED, 0) > 0
        all_of = sum(counts.values())
        said = f"Of {all_of} trial{'s' * (all_of > 1)} "
        said += ", ".join(f"{counts[phase]} {words}" for phase, words in ENDS.items() if phase in counts)
        if self.sweep.best and self.spec.goal:
            best, sd = self.sweep.best, self.sweep.best["sd"]
            said += f"; the best is trial {best['number']}: {self.spec.goal.metric} = {best['value']:g}"
            said += "" if sd is None else f" ± {sd:g}"
        last = self.sweep.trials.filter(phase=Trial.Phase.FAILED).order_by("finished_at", "pk").last()
        if not is_good and last:
            # Only the first line: a run's message continues with the end of its log.
            said += f". The last one that failed: {last.message.partition(chr(10))[0].rstrip('.')}"
        self.sweep.phase = Sweep.Phase.SUCCEEDED if is_good else Sweep.Phase.FAILED
        self.sweep.message, self.sweep.finished_at = f"{said}.", self.now
        SWEEPS.record(self.sweep, self.sweep.phase.lower(), None, self.sweep.message)
        tell_end(self.sweep)
        for name in self.sweep.stages.values_list("pipeline_run__pipeline__name", flat=True).distinct():
            transaction.on_commit(partial(wakeups.wake_whole, self.sweep.appcode_id, f"pipelines/{name}"))


def _ended(trials: QuerySet[Trial]) -> QuerySet[Trial]:
    return trials.filter(cluster__current_run__phase__in=TERMINAL)
