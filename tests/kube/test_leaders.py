"""Two real controllers on one database: one works, the other takes over when it is killed, and nothing is counted twice. The
other may be of the next release."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.utils import timezone

from portal.db.advisory_lock import Lock
from portal.up.services import dies_with_parent
from tests.kube.following import portal_kubeconfig
from tests.kube.loops import ROOT, Controller, Loops
from tests.kube.plane import Plane
from tests.kube.test_faults import names_of
from tests.terminal import database_environment

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]

TAKEN_OVER = 10.0
# Seconds until a new process works; this depends on the machine alone.
STARTED = 120.0

# What runs the workers' part of `Loops` in a process of its own.
WORKER = """
import django; django.setup()
from tests.kube.loops import Loops
print("working", flush=True)
Loops(None, "", {})._work()
"""


def leaders() -> set[str]:
    """Returns the holders of the cluster's lock."""
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
    """Workers in this process; the controllers are separate processes."""
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

        # Kill the first one while it processes the news of an end.
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


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """A source tree with other program texts and other pods."""
    tree = tmp_path / "next"
    tree.mkdir()
    for part in ("manage.py", "pyproject.toml", "portal", "clusters", "datastores", "billing", "templates", "tests"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tree / part)
    for file, before, after in (
        ("clusters/frameworks/starting.py", '_COPY = f"""\\\n', '_COPY = f"""\\\n# Of the next release.\n'),
        ("clusters/clouds/drivers/kubernetes/render/pods.py", "user = {", 'user = {"RELEASE": "next", '),
    ):
        text = (tree / file).read_text()
        assert before in text
        (tree / file).write_text(text.replace(before, after))
    return tree


@contextmanager
def worker(loops: Loops, tree: Path, folder: Path) -> Iterator[None]:
    environment = database_environment() | {"LOCAL_CLOUD_SOCKET": "", "PYTHONPATH": str(tree)}
    log_file = folder / "worker.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            dies_with_parent([sys.executable, "-c", WORKER]), env=environment, cwd=tree, stdout=log, stderr=log
        )
    try:
        loops.until(lambda: b"working" in log_file.read_bytes(), STARTED)
        yield
    finally:
        process.kill()
        process.wait()


def test_a_run_goes_on_under_the_next_release(
    plane: Plane, loops: Loops, people: Any, next_release: Path, tmp_path: Path
) -> None:
    from clusters.clouds.models import CloudState
    from clusters.runs.models import Run
    from portal.models import Event

    def told(verb: str) -> int:
        return Event.objects.filter(verb=verb).count()

    first, second = Controller(1, tmp_path), None
    try:
        loops.until(lambda: leaders() == {"controller-1"}, STARTED)
        cluster = loops.create(people, workers=2, ps=1)
        run = loops.until_running(cluster)
        pods = {pod["metadata"]["uid"] for pod in loops.pods(run)}
        second = Controller(2, tmp_path, next_release)
        loops.until(lambda: b"following kubernetes" in second.log.read_bytes(), STARTED)
        first.kill()
        loops.stop()  # the worker of the first release
        with worker(loops, next_release, tmp_path):
            loops.until(lambda: leaders() == {"controller-2"}, seconds=STARTED)
            at = timezone.now()
            loops.until(lambda: CloudState.objects.get().heard_at > at, seconds=60)
            plane.request("DELETE", loops.path("Service", run, names_of(loops, run)))
            loops.until(lambda: told("run.changed_by_hand") == 1, seconds=60)
            loops.later(run)
            loops.until(lambda: loops.objects("Service", run), seconds=60)
            loops.until(lambda: Run.objects.get(pk=run.pk).applied_at)
            # Applied again although nothing was changed, as for a new pull password.
            Run.objects.filter(pk=run.pk).update(applied_at=None, not_before=None)
            loops.until(lambda: Run.objects.get(pk=run.pk).applied_at, seconds=60)
            loops.until_running(cluster)
            assert {pod["metadata"]["uid"] for pod in loops.pods(run)} == pods
            (owner,) = loops.objects("ConfigMap", run)
            assert not any("Of the next release" in text for text in owner["data"].values())
            assert (told("run.changed_by_hand"), told("run.not_put_right")) == (1, 0)

            other = loops.create(people, "other")
            later = loops.until_running(other, seconds=60)
            (owner,) = loops.objects("ConfigMap", later)
            assert any("Of the next release" in text for text in owner["data"].values())
            (pod,) = loops.pods(later)
            assert {"name": "RELEASE", "value": "next"} in pod["spec"]["containers"][0]["env"]
            for each in (run, later):
                for role in ("worker", "master"):
                    loops.end(each, role, 0)
            for each, of in ((run, cluster), (later, other)):
                loops.until_phase(of, "Succeeded", seconds=60)
                loops.until_nothing_is_left(each)
    finally:
        first.kill()
        if second:
            second.kill()
    for each in (run, later):
        loops.check_usage(each)
    assert run.tasks.count() == 4
