"""Celery tasks, run by beat or woken after a commit. All of them may run twice or at once."""

from __future__ import annotations

from celery import shared_task

from portal.actions import requests
from portal.webhooks import sending


@shared_task(name="portal.tasks.send_webhooks")
def send_webhooks() -> None:
    sending.send_due()


@shared_task(name="portal.tasks.forget_deliveries")
def forget_deliveries() -> None:
    sending.forget()


@shared_task(name="portal.tasks.tell_expiry")
def tell_expiry() -> None:
    requests.tell_expiry()
