"""Counts the attempts of a service's tasks, because pods of Deployments and StatefulSets carry no number; `upkeep` writes the
attempts on the pods. No network calls.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from clusters.clouds.drivers.base import TaskSeen
from clusters.clouds.drivers.kubernetes.watch import pod_status
from clusters.clouds.drivers.kubernetes.watch.objects import Object


class Attempts:
    def __init__(self) -> None:
        # Pods that need their attempt written before their counted predecessors disappear.
        self.unwritten: dict[str, TaskSeen] = {}
        self._numbers: defaultdict[int, dict[tuple[str, int], dict[str, int]]] = defaultdict(dict)

    def counted(self, pod: Object, seen: TaskSeen, *, gone: bool) -> TaskSeen:
        """Returns `seen` with the attempt written on the pod, or one more than the last of its (role, index)."""
        numbers = self._numbers[seen.run_id].setdefault((seen.role, seen.index), {})
        if seen.uid not in numbers:
            numbers[seen.uid] = seen.attempt or max(numbers.values(), default=-1) + 1
        seen = replace(seen, attempt=numbers[seen.uid])
        if gone or not seen.attempt or pod_status.attempt_of(pod) == seen.attempt:
            self.unwritten.pop(seen.uid, None)
        else:
            self.unwritten[seen.uid] = seen
        return seen

    def forget(self, run_id: int) -> None:
        self._numbers.pop(run_id, None)
