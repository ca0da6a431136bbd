"""Celery: wakes the loops up. Nothing here is a source of truth; a lost message is found again by the sweep."""

import os
import signal
import sys
import threading
from typing import Any

from celery import Celery
from celery.beat import Service
from celery.signals import after_task_publish, setup_logging, task_postrun, task_prerun, worker_ready
from django.db import close_old_connections

from portal.health import alive

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
# The checks load all pages, which a worker has no use for; `migrate` makes the same ones before.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("portal")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
# Celery would close the database's connection before and after each task, and PostgreSQL spends more on a new one than on most
# tasks. They are kept as Django keeps those of requests: for CONN_MAX_AGE, and not when they are broken.
app.conf["CELERY_DB_REUSE_MAX"] = sys.maxsize


@task_prerun.connect
@task_postrun.connect
def keep_connections(**_: Any) -> None:
    close_old_connections()


@setup_logging.connect
def keep_our_logging(**_: Any) -> None:
    """Django has set it up by portal/logs.py; Celery leaves it alone where somebody listens to this."""


@task_postrun.connect
@after_task_publish.connect
def something_was_done(**_: Any) -> None:
    """The sweep gives beat and workers something to do every few seconds."""
    alive()


@worker_ready.connect
def keep_time(**_: Any) -> None:
    """On one machine the only worker keeps the time, too: a process of its own would hold all of the portal in memory to send a
    message now and then. Where there are several workers, one `celery beat` does it."""
    if schedule := os.environ.get("PORTAL_BEAT_SCHEDULE"):
        threading.Thread(target=_tick, args=(schedule,), name="beat", daemon=True).start()


def _tick(schedule: str) -> None:
    try:
        Service(app, schedule_filename=schedule).start()
    finally:
        # Without a clock nobody finds what was lost. Whoever looks after the worker starts it again, and with it the clock.
        os.kill(os.getpid(), signal.SIGTERM)
