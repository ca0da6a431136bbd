"""Celery: wake-ups for the loops. Nothing here is a source of truth; the sweep finds the work of lost messages."""

import os
import signal
import sys
import threading
from typing import Any

from celery import Celery
from celery.beat import Service
from celery.signals import after_task_publish, setup_logging, task_postrun, task_prerun, worker_init, worker_ready
from django.db import close_old_connections

from portal.garbage import settle
from portal.installation import upgrades
from portal.monitoring.health import alive

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
# The checks look for mistakes in our code and load all pages, which a worker does not need; `make lint` runs them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("portal")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
# By default Celery closes the database connection around each task, and a new connection costs PostgreSQL more than
# most tasks. Keep connections as Django does between requests: for CONN_MAX_AGE, unless they are broken.
app.conf["CELERY_DB_REUSE_MAX"] = sys.maxsize


@task_prerun.connect
@task_postrun.connect
def keep_connections(**_: Any) -> None:
    close_old_connections()


@setup_logging.connect
def keep_our_logging(**_: Any) -> None:
    """Django has configured logging by portal/monitoring/logs.py; connecting this signal stops Celery from doing it again."""


@task_postrun.connect
@after_task_publish.connect
def something_was_done(**_: Any) -> None:
    """Marks the process as alive. The sweep keeps beat and workers busy every few seconds."""
    alive()


@worker_init.connect
def wait_for_migrations(**_: Any) -> None:
    upgrades.admit()


@worker_ready.connect
def has_loaded(**_: Any) -> None:
    settle()


@worker_ready.connect
def keep_time(**_: Any) -> None:
    """Runs beat inside the only worker of one machine: its own process would hold the whole portal in memory to send a
    message now and then. With several workers, one `celery beat` does it."""
    if schedule := os.environ.get("PORTAL_BEAT_SCHEDULE"):
        threading.Thread(target=_tick, args=(schedule,), name="beat", daemon=True).start()


def _tick(schedule: str) -> None:
    try:
        Service(app, schedule_filename=schedule).start()
    finally:
        # Without beat lost work is never found. The supervisor restarts the worker, and beat with it.
        os.kill(os.getpid(), signal.SIGTERM)
