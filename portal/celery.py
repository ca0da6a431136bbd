"""Celery: wakes the loops up. Nothing here is a source of truth; a lost message is found again by the sweep."""

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import after_task_publish, setup_logging, task_postrun

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

app = Celery("portal")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@setup_logging.connect
def keep_our_logging(**_: Any) -> None:
    """Django has set it up by portal/logs.py; Celery leaves it alone where somebody listens to this."""


@task_postrun.connect
@after_task_publish.connect
def alive(**_: Any) -> None:
    """Touches a file for a liveness probe: the sweep gives beat and workers something to do every few seconds."""
    if path := os.environ.get("PORTAL_ALIVE_FILE"):
        Path(path).touch()
