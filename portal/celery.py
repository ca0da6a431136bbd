"""Celery: wakes the loops up. Nothing here is a source of truth; a lost message is found again by the sweep."""

import os
from typing import Any

from celery import Celery
from celery.signals import after_task_publish, setup_logging, task_postrun

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
