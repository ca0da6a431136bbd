"""Stops what budgets have ordered to be stopped. Billing says what stands and why; only here is known what runs.

An order is looked at as long as it stands, so whoever dies in the middle is followed by another, and what slipped through is
found by the next. A stopped run ends as if somebody had disabled it: its output is stored first.
"""

from __future__ import annotations

import logging

from django.db import transaction
from django.db.models import Q, QuerySet

from billing.budgets import access
from billing.budgets.access import Order
from clusters.models import Run
from clusters.runs.ending import end_by_portal

log = logging.getLogger(__name__)

REASON = "BudgetUsedUp"
# So many runs end in one transaction, during which nobody can lift their order.
PORTION = 50


def stop() -> int:
    """Asks every run to end that an order of a budget is about, and says how many. May run twice or at once."""
    stopped = 0
    for order in access.orders():
        while portion := _stop_some(order):
            stopped += portion
    return stopped


@transaction.atomic
def _stop_some(order: Order) -> int:
    if not access.hold(order):
        return 0
    # Nobody is waited for while rows of others are held, as the watch may hold some and want ours. Whom somebody else has
    # hold of is found by the next look.
    rows = _runs(order).select_for_update(of=("self",), no_key=True, skip_locked=True).order_by("pk")
    runs = list(rows.select_related("cluster__appcode")[:PORTION])
    for run in runs:
        end_by_portal(run, REASON, order.message)
    if runs:
        log.info("budget step %s: %s runs were asked to end", order.step, len(runs))
    return len(runs)


def _runs(order: Order) -> QuerySet[Run]:
    """What holds or may be given GPUs. What was not admitted yet costs nothing: it waits, because new runs are blocked."""
    alive = Q(gone=False, desired=Run.Desired.RUNNING, verdict="", admitted_at__isnull=False)
    runs = Run.objects.filter(alive, cluster__appcode__in=order.appcodes)
    return runs.filter(spec__mode="service") if order.kind == "stop_services" else runs
