"""Thins samples with their age, and forgets them: 10 s for a day, a minute for a month, ten minutes after that, until settings.
MEASURED_MEMORY. Once an hour. Each block of a coarser step is made in one transaction from all that it replaces, so this may be
killed and repeated."""

from __future__ import annotations

import datetime as dt

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from clusters.machine import series
from clusters.machine.models import MachineBlock, MachineSeries

# By the seconds of its records: how old a block becomes before it is thinned.
KEPT = {10: dt.timedelta(days=1), 60: dt.timedelta(days=30)}
# Blocks that are read at a time: a day of 10 s of some tasks. Rows that are deleted at a time.
PORTION, ROWS = 1000, 5000


def thin(now: dt.datetime | None = None) -> int:
    """Returns how many blocks were replaced."""
    at, replaced = now or timezone.now(), 0
    for step, coarser in zip(series.STEPS[:-1], series.STEPS[1:], strict=True):
        span = series.SPANS[coarser]
        # Only whole blocks of the coarser step, so that each is made once.
        until = int((at - KEPT[step]).timestamp() // span) * span
        while count := _thin(step, coarser, dt.datetime.fromtimestamp(until, dt.UTC)):
            replaced += count
    return replaced


@transaction.atomic
def _thin(step: int, coarser: int, until: dt.datetime) -> int:
    """Replaces the blocks of a few series. Others are skipped while another process is at them."""
    old = MachineBlock.objects.filter(step=step, begin__lt=until)
    some = old.order_by("series", "begin").values_list("series", flat=True)[:PORTION]
    last = max(some, default=None)
    if last is None:
        return 0
    # All blocks of a series together, however many there are.
    chosen = {*some}
    locked = list(
        old.filter(series__in=chosen).select_related("series").select_for_update(of=("self",), skip_locked=True)
    )
    span = series.SPANS[coarser]
    found: dict[tuple[int, int], list[series.Rows]] = {}
    for block in locked:
        is_wide = step != series.STEP or not block.series.role
        rows = series.rows_of([(block.begin.timestamp(), bytes(block.data))], is_wide=is_wide)
        found.setdefault((block.series_id, int(block.begin.timestamp() // span) * span), []).append(rows)
    made = []
    for (series_id, begin), parts in found.items():
        data = series.packed(series.bucketed(series.joined(parts), coarser), begin)
        start = dt.datetime.fromtimestamp(begin, dt.UTC)
        made.append(MachineBlock(series_id=series_id, step=coarser, begin=start, data=data))
    MachineBlock.objects.bulk_create(made)
    MachineBlock.objects.filter(pk__in=[block.pk for block in locked]).delete()
    return len(locked)


def forget(now: dt.datetime | None = None) -> int:
    """Deletes what is older than settings.MEASURED_MEMORY; returns how many rows. Series are walked in the order in which they
    came, until a portion has none that is that old."""
    until, removed, last = (now or timezone.now()) - settings.MEASURED_MEMORY, 0, 0
    for step in series.STEPS:
        old = MachineBlock.objects.filter(step=step, begin__lt=until - dt.timedelta(seconds=series.SPANS[step]))
        while ids := list(old.values_list("pk", flat=True)[:ROWS]):
            removed += MachineBlock.objects.filter(pk__in=ids).delete()[0]
    while True:
        some = list(MachineSeries.objects.filter(pk__gt=last).order_by("pk").values_list("pk", "at")[:ROWS])
        ids = [pk for pk, at in some if at < until]
        if not ids:
            return removed
        removed += MachineSeries.objects.filter(pk__in=ids).delete()[0]
        last = some[-1][0]
