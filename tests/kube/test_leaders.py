"""Two real controllers on one database: one works, the other takes over when it is killed, and nothing is counted twice."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from portal.db.advisory_lock import Lock
from tests.kube.following import portal_kubeconfig
from tests.kube.loops import Controller, Loops
from tests.kube.plane import Plane

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]

TAKEN_OVER = 10.0
# What a process needs until it works depends on the machine alone.
STARTED = 120.0


def leaders() -> set[str]:
    """Who holds the lock of the cluster."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE locktype = 'advisory' AND granted AND classid = %s AND application_name LIKE 'controller-%%' "
            "AND datname = current_database()",
            [Lock.FOLLOWER],
        )
        return {name for (name,) in cursor.fetchall()}


@pytest.fixture
def loops(plane: Plane, people: Any) -> Iterator[Loops]:
    """Workers in this process; the controllers are processes of their own."""
    loops = Loops(plane, f"two-{secrets.token_hex(4)}", yaml.safe_load(portal_kubeconfig(plane).read_text()))
    loops.catalogue()
    loops.start_workers()
    yield loops
    loops.stop()


def test_the_other_takes_over_within_seconds(plane: Plane, loops: Loops, people: Any, tmp_path: Path) -> None:
    first = Controller(1, tmp_path)
    second = None
    try:
        loops.until(lambda: leaders() == {"controller-1"}, STARTED)
        cluster = loops.create(people, workers=2, ps=1)
        run = loops.until_running(cluster)
        second = Controller(2, tmp_path)
        loops.until(lambda: b"following kubernetes" in second.log.read_bytes(), STARTED)
        assert leaders() == {"controller-1"}

        # In the middle of the news of an end.
        loops.end(run, "worker", 0)
        loops.until(lambda: run.tasks.filter(phase="Succeeded").exists())
        first.kill()
        loops.end(run, "master", 0)
        assert loops.until(lambda: leaders() == {"controller-2"}, seconds=TAKEN_OVER) < TAKEN_OVER
        third = Controller(3, tmp_path)
        try:
            loops.until_phase(cluster, "Succeeded")
            loops.until_nothing_is_left(run)
            assert leaders() == {"controller-2"}
        finally:
            third.kill()
    finally:
        first.kill()
        if second:
            second.kill()
    loops.check_usage(run)
    assert run.tasks.count() == 4
