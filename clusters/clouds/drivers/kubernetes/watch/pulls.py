"""Finds pods that have waited for an image too long. No network calls.

A registry outage of minutes should not end a run, and a pull may take long before it fails, so time counts from the first
observed failure. The kubelet does not record that time, so a new process starts counting again.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from clusters.clouds.drivers.base import TaskSeen
from clusters.clouds.drivers.kubernetes.watch.reasons import PULLING

NOT_PULLED = "ImageNotPulled"


class Pulls:
    """`patience`: how long an image may fail to be pulled."""

    def __init__(self, patience: dt.timedelta) -> None:
        self._patience = patience
        # The first failure, by the uid of the pod.
        self._since: dict[str, dt.datetime] = {}

    def judged(self, seen: TaskSeen, now: dt.datetime) -> TaskSeen:
        """Changes the reason once the image has failed for `patience`."""
        if seen.phase != "Pending" or seen.reason != PULLING:
            self.forget(seen.uid)
            return seen
        since = self._since.setdefault(seen.uid, now)
        if now - since < self._patience:
            return seen
        message = seen.message if seen.message.endswith((".", "!", "?")) else f"{seen.message}."
        minutes = max(round(self._patience.total_seconds() / 60), 1)
        tried = f"It was tried for {minutes} minute{'s'[: minutes != 1]}."
        return replace(seen, reason=NOT_PULLED, message=f"{message} {tried}")

    def overdue(self, now: dt.datetime) -> list[str]:
        """Returns the pods that have waited too long by now."""
        return [uid for uid, since in self._since.items() if now - since >= self._patience]

    def forget(self, uid: str) -> None:
        self._since.pop(uid, None)

    def remember(self, other: Pulls) -> None:
        """Takes the start times of the currently waiting pods from `other`."""
        self._since |= {uid: other._since[uid] for uid in self._since.keys() & other._since.keys()}
