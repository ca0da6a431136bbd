"""A turn of a sweep whose trials share runs: judges each trial by its copy, and starts one run at a time, as full as possible."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied

from clusters.cluster import actions
from clusters.manifest.cluster import ClusterManifest
from clusters.runs.models import Cluster, Run, Task
from clusters.sweeps import copies, shared
from clusters.sweeps.models import Trial
from clusters.sweeps.step import Turn
from portal.db.bulk_update import update_rows
from portal.errors import Invalid, sentence
from portal.manifests import parse


class SharedTurn(Turn):
    def _judge(self, living: list[Trial]) -> list[Trial]:
        """Also detaches trials that an ended run left undone; they wait for the next run."""
        over, back = list[Trial](), list[Trial]()
        for run, those in shared.by_run(living):
            ends = shared.ends_of(run, those)
            for index, trial in those.items():
                task = ends.get(index)
                if self._is_over(trial, run, task):
                    trial.attempt = task.attempt if task else 0
                    trial.finished_at = (task and task.finished_at) or run.finished_at or self.now
                    over.append(trial)
                elif trial.cluster is None:
                    back.append(trial)
                elif task is not None and trial.pk not in self.waiting:
                    self.has_more = self.reads
        for trial in living:
            if trial.index is not None and trial.cluster is None:
                trial.phase, trial.message, trial.finished_at = Trial.Phase.STOPPED, "Its cluster is gone.", self.now
                over.append(trial)
        update_rows(back, ["cluster", "index"])
        self._note(over)
        left = [trial for trial in living if not trial.phase]
        self.resting += [trial.pk for trial in left if trial.cluster is None]
        self.waiting += self.resting
        return left

    def _is_over(self, trial: Trial, run: Run, task: Task | None) -> bool:
        if task is None or task.phase != "Succeeded":
            return shared.outcome(trial, run, task)
        if self.spec.goal is None:
            trial.phase = Trial.Phase.SUCCEEDED
            return True
        return self._is_read(trial, run, task.finished_at)

    def _end(self, living: list[Trial]) -> list[Trial]:
        """Ends all trials: they are one run."""
        self._stop(living)
        return []

    def _rest(self, living: list[Trial]) -> None:
        """Ends the run, since its copies cannot be held back one by one."""
        for cluster_id in {trial.cluster_id for trial in living if trial.cluster_id}:
            actions.end_part(cluster_id, shared.PAUSED, "Its sweep was paused.")

    def _start(self, begun: int, living: list[Trial]) -> tuple[int, list[Trial]]:
        """If no run is under way, starts one with as many trials as fit: first those left undone, then new ones."""
        new = range(begun, min(self.total, begun + copies.MOST))
        if any(trial.cluster_id for trial in living) or not (living or new) or (user := self._acting()) is None:
            return begun, living
        points = self._points(list(new)) if new else {}
        back = sorted(living, key=lambda trial: trial.number)
        trials = [*back, *(Trial(sweep=self.sweep, number=number, parameters=points[number]) for number in new)]
        count = copies.fitting(self.spec, [trial.parameters for trial in trials])
        if not count:
            self._pause(copies.TOO_LONG)
            return begun, living
        trials, later = trials[:count], back[count:]
        metadata = {"name": self._next_name(), "appcode": self.sweep.appcode.code}
        body = copies.shared_spec(self.spec, [trial.parameters for trial in trials])
        try:
            manifest = parse(ClusterManifest, {"kind": "cluster", "metadata": metadata, "spec": body})
            made = actions.create_cluster(manifest, acting_user=user, part_of=self.sweep.part_of)
        except (Invalid, PermissionDenied) as error:
            self._pause(sentence(error))
            return begun, living
        for index, trial in enumerate(trials):
            trial.cluster, trial.index, trial.message = made, index, ""
        update_rows(trials[: len(back)], ["cluster", "index", "message"])
        Trial.objects.bulk_create(trials[len(back) :])
        self.resting = []
        return begun + len(trials[len(back) :]), [*trials, *later]

    def _next_name(self) -> str:
        """Name of the next run that trials share, numbered from 1."""
        parts = Cluster.objects.filter(appcode=self.sweep.appcode_id, part_of=self.sweep.part_of)
        numbers = [int(name.rpartition("-")[2]) for name in parts.values_list("name", flat=True)]
        return f"{self.sweep.name}-{max(numbers, default=0) + 1}"
