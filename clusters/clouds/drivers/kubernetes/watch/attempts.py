"""Which attempt a pod of a service is: pods of Deployments and StatefulSets have no number of their own, so they are counted,
and `upkeep` writes their numbers on them. No network in here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from clusters.clouds.drivers.base import TaskSeen
from clusters.clouds.drivers.kubernetes.watch import pod_status
from clusters.clouds.drivers.kubernetes.watch.objects import Object


class Attempts:
    def __init__(self) -> None:
        # Pods on which their number is to be written, before the pods that were counted can go.
        self.unwritten: dict[str, TaskSeen] = {}
        self._numbers: defaultdict[int, dict[tuple[str, int], dict[str, int]]] = defaultdict(dict)

    def counted(self, pod: Object, seen: TaskSeen, *, gone: bool) -> TaskSeen:
        """`seen` with the number that stands on the pod, or one more than the last that is known of its (role, index)."""
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
