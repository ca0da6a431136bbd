"""Celery tasks of datastores. They may run twice or at once."""

from __future__ import annotations

from celery import shared_task

from datastores.files import rules, trash, uploads
from datastores.storage import leftovers, limits


@shared_task(name="datastores.tasks.give_up_uploads")
def give_up_uploads() -> None:
    uploads.give_up()


@shared_task(name="datastores.tasks.sweep_trash")
def sweep_trash() -> None:
    trash.sweep()


@shared_task(name="datastores.tasks.apply_rules")
def apply_rules() -> None:
    rules.sweep()


@shared_task(name="datastores.tasks.watch_limits")
def watch_limits() -> None:
    limits.watch()


@shared_task(name="datastores.tasks.drop_leftovers")
def drop_leftovers() -> None:
    leftovers.drop_old()
