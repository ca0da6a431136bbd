"""On one machine the worker runs the clock: it executes scheduled tasks and ends when the clock ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from portal.up.services import dies_with_parent

ROOT = Path(__file__).resolve().parent.parent.parent
WORKER = (sys.executable, "-m", "celery", "--app", "portal", "worker", "--pool", "threads", "--concurrency", "2")
SECONDS = 120


@pytest.fixture
def worker(db):
    """worker(schedule) → a worker with its own queue, whose log is read from `stdout`."""
    started = []
    redis = os.environ["REDIS_URL"].partition("?")[0] + "?db=40"

    def start(schedule):
        env = {**os.environ, "PORTAL_BEAT_SCHEDULE": str(schedule), "REDIS_URL": redis}
        env["DJANGO_SETTINGS_MODULE"] = "portal.settings"
        # Every task fails there at once, so Celery logs it.
        env["DATABASE_URL"] = f"postgresql:///portal?host={schedule.parent}"
        argv = (*WORKER, "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO")
        process = subprocess.Popen(
            dies_with_parent(argv), cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.timeout(SECONDS)
def test_what_the_clock_asks_for_is_done_by_the_same_process(worker, tmp_path):
    process = worker(tmp_path / "schedule")
    assert any("Task clusters.tasks.sweep[" in line for line in process.stdout)


@pytest.mark.timeout(SECONDS)
def test_a_worker_whose_clock_fails_ends_so_that_it_is_started_again(worker, tmp_path):
    process = worker(tmp_path / "no such folder" / "schedule")
    text = process.stdout.read()
    assert process.wait(SECONDS) == 0, text
    assert "no such folder" in text
