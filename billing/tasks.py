"""Celery tasks: woken by the clock; all of them may run twice or at once."""

from __future__ import annotations

from celery import shared_task

from billing import posting


@shared_task(name="billing.tasks.post")
def post() -> None:
    posting.post()
