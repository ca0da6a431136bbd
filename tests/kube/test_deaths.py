"""Kills a worker or a controller (SIGKILL) after each write, to the database or to Kubernetes, one after the other.

Each death happens to a process forked from the test; its successor knows only what was written. The tests skip only the
wait for a dead worker's claim to expire.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kube.following import portal_kubeconfig
from tests.kube.loops import Loops
from tests.kube.plane import Plane

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]

WRITES = ("INSERT", "UPDATE", "DELETE")
# More deaths mean that the work does not progress.
MOST = 120


@pytest.fixture
def loops(plane: Plane, people: Any) -> Iterator[Loops]:
    """The loops, with nothing running by itself."""
    import yaml

    loops = Loops(plane, f"dies-{secrets.token_hex(4)}", yaml.safe_load(portal_kubeconfig(plane).read_text()))
    loops.catalogue()
    yield loops
    loops.stop()


def survives(loops: Loops, at: int, work: Callable[[], None]) -> bool:
    """Runs `work` in a process that is killed after write number `at`. Returns False if it was killed, True if there were
    fewer writes.

    A call to Kubernetes counts twice: before it is sent and after it was answered.
    """
    from django.db import connections

    # The processes must not share a connection.
    connections.close_all()
    loops.plane._pool.clear()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _die_after(at)
            work()
            status = 0
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    if os.WIFSIGNALED(ended):
        assert os.WTERMSIG(ended) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(ended) == 0, "what it printed says why"
    return True


def _die_after(at: int) -> None:
    from django.db.backends.utils import CursorWrapper

    from clusters.clouds import registry
    from clusters.clouds.drivers.kubernetes.api.client import Client

    registry._kept.clear()
    counted, lock = [0], threading.Lock()

    def count() -> None:
        with lock:
            counted[0] += 1
            if counted[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)

    def execute(self: Any, sql: Any, params: Any = None, _old: Any = CursorWrapper.execute) -> Any:
        done = _old(self, sql, params)
        if str(sql).lstrip().startswith(WRITES):
            count()
        return done

    def send(self: Any, method: str, *arguments: Any, _old: Any = Client._send, **named: Any) -> Any:
        if method == "GET":
            return _old(self, method, *arguments, **named)
        count()
        answer = _old(self, method, *arguments, **named)
        count()
        return answer

    CursorWrapper.execute = execute  # type: ignore[method-assign]
    Client._send = send  # type: ignore[method-assign]


def kill_after_every_write(loops: Loops, work: Callable[[], None]) -> int:
    """Returns the number of deaths."""
    from clusters.runs.models import Run

    for deaths in range(MOST):
        if survives(loops, deaths + 1, work):
            return deaths
        # Skip the 15 s for which the dead process still claims the run.
        Run.objects.exclude(claim_token=None).update(claimed_until="2020-01-01T00:00Z")
    raise AssertionError(f"{MOST} deaths, and it comes nowhere")


def work_once() -> None:
    """Does what a worker does on a wake-up."""
    from django.utils.timezone import now

    from clusters.runs import reconcile
    from clusters.runs.models import Run
    from clusters.runs.placing import places

    for work in (lambda: None, lambda: places.place("kubernetes")):
        work()
        for run_id in Run.objects.filter(reconcile.unsettled(now())).values_list("pk", flat=True):
            reconcile.reconcile(run_id)


def follow_until(happened: Callable[[], bool]) -> Callable[[], None]:
    """Returns a function that works like a controller until `happened`."""

    def work() -> None:
        from clusters.runs.status.follower import Follower

        controller = Follower("kubernetes", 1)
        controller.start()
        deadline = time.monotonic() + 60
        while not happened():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        controller.stop()
        controller.join()

    return work


def knows_the_nodes() -> bool:
    from clusters.clouds.models import CloudState

    return CloudState.objects.filter(capacity__nodes__0__isnull=False).exists()


def test_a_worker_dies_after_every_write_of_a_launch_and_of_an_end(plane: Plane, loops: Loops, people: Any) -> None:
    assert survives(loops, 0, follow_until(knows_the_nodes))
    cluster = loops.create(people, workers=2, ps=1)
    deaths = kill_after_every_write(loops, work_once)
    assert deaths > 15
    follow = follow_until(lambda: loops.run(cluster).phase == "Running")
    assert survives(loops, 0, follow)
    run = loops.run(cluster)
    assert run.tasks.count() == len(loops.pods(run)) == 4

    loops.disable(people, cluster)
    deaths = kill_after_every_write(loops, work_once)
    assert deaths > 3
    assert survives(loops, 0, follow_until(lambda: loops.run(cluster).phase == "Stopped" and not loops.left_of(run)))
    loops.check_usage(run)
    assert run.tasks.count() == 4


def test_a_controller_dies_after_every_write_of_a_run_s_life(plane: Plane, loops: Loops, people: Any) -> None:
    assert survives(loops, 0, follow_until(knows_the_nodes))
    cluster = loops.create(people, workers=2, ps=1)
    work_once()
    deaths = kill_after_every_write(loops, follow_until(lambda: loops.run(cluster).phase == "Running"))
    assert deaths > 5
    run = loops.run(cluster)
    assert run.tasks.count() == len(loops.pods(run)) == 4

    loops.end(run, "worker", 0)
    loops.end(run, "master", 0)
    kill_after_every_write(loops, follow_until(lambda: loops.run(cluster).verdict == "Succeeded"))
    loops.run(cluster)
    work_once()

    deaths = kill_after_every_write(
        loops, follow_until(lambda: loops.run(cluster).phase == "Succeeded" and not loops.left_of(run))
    )
    assert deaths > 5
    loops.check_usage(run)
    assert list(run.tasks.order_by("role", "index").values_list("role", "phase", "exit_code")) == [
        ("master", "Succeeded", 0),
        ("ps", "Failed", 143),
        ("worker", "Succeeded", 0),
        ("worker", "Succeeded", 0),
    ]
