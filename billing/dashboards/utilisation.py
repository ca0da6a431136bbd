from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from billing.dashboards.filters import ask, busy_notes, column_urls, common, labelled, page_with
from billing.efficiency import capacity, measured
from billing.efficiency.capacity import Share
from billing.efficiency.measured import Busy
from billing.money import SECONDS_PER_HOUR, display
from billing.sums import over_time
from portal.pages.charts import draw_columns
from portal.web.downloads import csv_file

BUSY_HEAD = ("measured_gpu_seconds", "busy_gpu_seconds", "idle_while_held_percent", "measured_percent_of_held")
SHARE_HEAD = ("held_gpu_seconds", "available_gpu_seconds", "utilisation_percent")


@dataclass(frozen=True)
class ModelRow:
    name: str
    share: Share
    simulated: bool
    url: str
    busy: Busy


@require_safe
def utilisation(request: HttpRequest) -> HttpResponse:
    """GPU-hours held of those available, and how busy they were while held, as far as that was measured."""
    asked = ask(request)
    model = asked.where.pop("model", None)
    found = over_time.read(asked.range, "model", asked.now, appcodes=asked.appcodes, where=asked.where)
    there = capacity.available(asked.range, asked.now)
    all_shares = capacity.shares(found.by_group, there)
    columns = [
        (label, capacity.total(share for name, share in all_shares[since].items() if model in (None, name)))
        for label, since in labelled(asked.range)
    ]
    looked = measured.by_model(asked.range, appcodes=asked.appcodes, where=asked.where)
    busy_columns = [measured.busy(found.by_group, looked, [since], model) for since, _ in asked.range.columns]
    names = sorted({name for column in all_shares.values() for name in column})
    models = [
        ModelRow(
            name or "any model", capacity.total(column[name] for column in all_shares.values() if name in column),
            any(column.get(name, (0, 0))[1] for column in there.values()), page_with(request, {"model": name}),
            measured.busy(found.by_group, looked, looked, name),
        )
        for name in names
    ]  # fmt: skip
    name = f"utilisation-{asked.range.since:%F}-{asked.range.last_day:%F}"
    if request.GET.get("format") == "csv":
        if request.GET.get("table") == "models":
            return csv_file(
                f"{name}-by-model",
                ("gpu_model", *SHARE_HEAD, *BUSY_HEAD),
                ((row.name, *_share_cells(row.share), *_busy_cells(row.busy)) for row in models),
            )
        return csv_file(
            f"{name}-by-{asked.range.step}",
            (asked.range.step, *SHARE_HEAD, *BUSY_HEAD),
            (
                (label, *_share_cells(share), *_busy_cells(busy))
                for (label, share), busy in zip(columns, busy_columns, strict=True)
            ),
        )
    held, free = (
        ("held", "free")
        if asked.appcodes is None and not asked.where
        else ("held by these appcodes", "held by others, or free")
    )
    drawn = [
        (label, {held: _hours(share.held), free: _hours(share.free or 0)} if share.part is not None else {})
        for label, share in columns
    ]  # fmt: skip
    context = {
        **common(asked), "columns": [(*each, busy) for each, busy in zip(columns, busy_columns, strict=True)], "models": models,
        "busy": measured.busy(found.by_group, looked, looked, model), "busy_notes": busy_notes(request), "model": model,
        "total": capacity.total(share for _, share in columns),
        "chart": draw_columns(
            "GPU-hours held of those available", drawn, unit="GPU-hours", urls=column_urls(request, asked), order=(held, free),
            quiet=free,
        ),
        "known": any(share.part is not None for _, share in columns),
    }  # fmt: skip
    return render(request, "billing/dashboard_utilisation.html", context)


def _busy_cells(busy: Busy) -> tuple[object, ...]:
    if busy.idle is None:
        return 0, 0, "not known", display(busy.covered)
    return (
        _seconds(busy.measured.measured_ms),
        _seconds(busy.measured.busy_ms),
        display(busy.idle),
        display(busy.covered),
    )


def _seconds(milliseconds: int) -> Decimal:
    return display(Decimal(milliseconds) / 1000, 3)


def _share_cells(share: Share) -> tuple[object, ...]:
    known = share.percent is not None
    return (share.held, share.available, display(cast("Decimal", share.percent))) if known else ("", "", "not known")


def _hours(seconds: int) -> Decimal:
    return Decimal(seconds) / SECONDS_PER_HOUR
