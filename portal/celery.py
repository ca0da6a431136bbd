"""Celery: wakes the loops up. Nothing here is a source of truth; a lost message is found again by the sweep."""

import os
import signal
import threading
from typing import Any

from celery import Celery
from celery.beat import Service
from celery.signals import after_task_publish, setup_logging, task_postrun, worker_ready

from portal.health import alive

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

app = Celery("portal")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


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
