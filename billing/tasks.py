"""Celery tasks, run by beat. All of them may run twice or at once."""

from __future__ import annotations

from celery import shared_task

from billing import mails
from billing.budgets import loop
from billing.efficiency import measured, waste
from billing.invoices import closing
from billing.ledger import posting
from billing.sums import decayed_use


@shared_task(name="billing.tasks.post")
def post() -> None:
    posting.post()


@shared_task(name="billing.tasks.close_months")
def close_months() -> None:
    closing.close_due()


@shared_task(name="billing.tasks.send_mail")
def send_mail() -> None:
    mails.send_due()


@shared_task(name="billing.tasks.find_waste")
def find_waste() -> None:
    waste.look()


@shared_task(name="billing.tasks.forget_measured")
def forget_measured() -> None:
    measured.forget_hours()


@shared_task(name="billing.tasks.fold_use")
def fold_use() -> None:
    decayed_use.fold()


@shared_task(name="billing.tasks.watch_budgets")
def watch_budgets() -> None:
    loop.turn()
