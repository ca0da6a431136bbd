"""Stops the runs that budgets ordered to stop. Billing has the orders and their reasons; only this app knows what runs.

An order is checked for as long as it is in force, so another worker continues after a crash, and missed runs are found on the
next pass. A stopped run ends like a disabled one: its output is stored first.
"""

from __future__ import annotations

import logging

from django.db import transaction
from django.db.models import Q, QuerySet

from billing.budgets import access
from billing.budgets.access import Order
from clusters.runs.ending import end_by_portal
from clusters.runs.models import Run

log = logging.getLogger(__name__)

REASON = "BudgetUsedUp"
# Runs ended in one transaction. Their order cannot be lifted during it.
PORTION = 50


def stop() -> int:
    """Asks every run that an order of a budget covers to end. Returns their number. May run twice or concurrently."""
    stopped = 0
    for order in access.orders():
        while portion := _stop_some(order):
            stopped += portion
    return stopped


@transaction.atomic
def _stop_some(order: Order) -> int:
    if not access.hold(order):
        return 0
    # Never wait for locked rows while holding others: the watch may hold some and want ours. The next pass finds skipped rows.
    rows = _runs(order).select_for_update(of=("self",), no_key=True, skip_locked=True).order_by("pk")
    runs = list(rows.select_related("cluster__appcode")[:PORTION])
    for run in runs:
        end_by_portal(run, REASON, order.message)
    if runs:
        log.info("budget step %s: %s runs were asked to end", order.step, len(runs))
    return len(runs)


def _runs(order: Order) -> QuerySet[Run]:
    """Runs that hold or may get GPUs. Runs that are not admitted cost nothing: they wait, because new runs are blocked."""
    alive = Q(gone=False, desired=Run.Desired.RUNNING, verdict="", admitted_at__isnull=False)
    runs = Run.objects.filter(alive, cluster__appcode__in=order.appcodes)
    return runs.filter(spec__mode="service") if order.kind == "stop_services" else runs
