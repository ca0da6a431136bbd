"""Bytes read from the API server to show the end of a long log, a time in it, or what lies before: a real API server with
simulated kubelets (kubelet.py)."""

from __future__ import annotations

import secrets

import pytest

from clusters.clouds.drivers import marks
from tests.kube import kubelet
from tests.kube.following import Following, cloud_of
from tests.kube.plane import Plane
from tests.kube.plans import plan, role, run_ref

pytestmark = pytest.mark.kube
LINES, LENGTH = 100_000, 100
BEGAN = int(kubelet.BEGAN.timestamp()) * 1_000_000


def text(first: int, last: int) -> bytes:
    return b"".join(f"line {n} ".ljust(LENGTH - 1, "x").encode() + b"\n" for n in range(first, last))


def test_the_end_of_a_long_log_is_all_that_is_read_of_it(plane: Plane) -> None:
    run = run_ref(f"line-{secrets.token_hex(4)}")
    cloud = cloud_of(plane, f"test-{secrets.token_hex(4)}")
    with kubelet.played(plane, kubelet.stamped(LINES, LENGTH)) as played, Following(cloud) as following:
        cloud.apply(plan(role("worker", 1), run=run))
        following.until(lambda: following.of(run, "Running"))

        def read(**where: object):
            return cloud.log(run, "worker", 0, attempt=0, **where)  # type: ignore[arg-type]

        end = read(tail=10_000)
        assert end.data == text(LINES - 100, LINES)
        assert (end.placed, end.line, end.complete) == (False, 0, False)
        assert played.sent < 20_000
        assert marks.at(end.marks, end.start) == BEGAN + (LINES - 100) * 1000
        # Reading on costs one second's worth of lines, however long the log is.
        again = read(offset=end.offset, cursor=end.cursor)
        assert (again.data, again.offset, again.placed) == (b"", end.offset, False)
        assert played.sent < 400_000
        late = read(since=BEGAN + 95_000_500, limit=300)
        assert (late.data, late.placed) == (text(95_001, 95_004), False)
        # Only reading backwards has to read everything, and then the position is known.
        before = read(before=end.first, limit=1000)
        assert (before.data, before.line, before.placed) == (text(LINES - 110, LINES - 100), LINES - 110, True)
        assert before.offset == (LINES - 100) * LENGTH
        at = read(line=50_000, limit=200)
        assert (at.data, at.line, at.start) == (text(50_000, 50_002), 50_000, 50_000 * LENGTH)
        assert marks.at(at.marks, at.start) == BEGAN + 50_000_000
        # With much longer lines than usual, fewer are read.
        played.lines = tuple(line[:31] + b"y" * 50_000 + b"\n" for line in played.lines[:20])
        wide = read(tail=10_000)
        rest = read(offset=wide.offset, cursor=wide.cursor)
        assert wide.data + rest.data == b"y" * 50_000 + b"\n"
        # An unfinished last line counts as a line.
        played.lines = (*kubelet.stamped(LINES, LENGTH)[:50], kubelet.stamped(LINES, LENGTH)[50][:-1])
        assert (read(tail=1000).data, read(tail=1000).placed) == (text(41, 51)[:-1], False)
        cloud.delete(run)
        following.until(lambda: following.is_gone(run))
    plane.request("DELETE", f"/api/v1/namespaces/{run.namespace}")


def test_the_log_of_a_program_that_has_just_ended_is_read_once(plane: Plane) -> None:
    """The portal lists the pods of a run once in a second, so the program seems to run still."""
    run = run_ref(f"line-{secrets.token_hex(4)}")
    cloud = cloud_of(plane, f"test-{secrets.token_hex(4)}")
    with kubelet.played(plane, kubelet.stamped(10, LENGTH)) as played, Following(cloud) as following:
        cloud.apply(plan(role("worker", 1), run=run))
        following.until(lambda: following.of(run, "Running"))
        assert cloud.log(run, "worker", 0, attempt=0, tail=100).data
        plane.end_pods(run.namespace, f"gpu-cloud/run-id={run.id}", 0)
        before = len(played.asked)
        chunks = list(cloud.follow(run, "worker", 0, attempt=0))
        assert b"".join(chunk.data for chunk in chunks) == text(0, 10)
        assert (chunks[-1].complete, chunks[-1].absent) == (True, False)
        assert len(played.asked) == before + 1
        cloud.delete(run)
        following.until(lambda: following.is_gone(run))
    plane.request("DELETE", f"/api/v1/namespaces/{run.namespace}")
