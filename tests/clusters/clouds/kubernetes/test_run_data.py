"""Reports about the data of a run whose pods each fetch it themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusters.clouds.drivers.base import StorageSeen
from clusters.clouds.drivers.base.observations import READ_OTHERS
from clusters.clouds.drivers.kubernetes.watch.runs import Runs

METADATA: dict[str, Any] = {"labels": {}}
ONE, OTHER = "1" * 64, "2" * 64


def test_what_was_read_is_told_once_it_is_known_and_that_tasks_read_different_files() -> None:
    pods: dict[str, Any] = {}
    runs = Runs(pods)

    def told(uid: str, seen: StorageSeen) -> StorageSeen | None:
        pods[uid] = SimpleNamespace(storage=seen, over=False)
        runs.note_pod(uid, 7, METADATA, seen)
        found = runs.storage_news(7)
        return found[0] if found else None  # type: ignore[return-value]

    assert told("a", StorageSeen(7, "fetching")) == StorageSeen(7, "fetching")
    assert told("b", StorageSeen(7, "ready", "", "", OTHER, 3, 9)) == StorageSeen(7, "fetching", "", "", OTHER, 3, 9)
    assert told("a", StorageSeen(7, "ready", "", "", OTHER, 3, 9)) == StorageSeen(7, "ready", "", "", OTHER, 3, 9)
    changed = told("c", StorageSeen(7, "ready", "", "", ONE, 4, 10))
    assert changed == StorageSeen(7, "ready", "", READ_OTHERS, ONE, 4, 10)
    assert told("c", StorageSeen(7, "ready", "", "", ONE, 4, 10)) is None
    assert told("d", StorageSeen(7, "refused", "It is other.")) == StorageSeen(
        7, "refused", "It is other.", READ_OTHERS, ONE, 4, 10
    )
