"""The Metrics tab for browsers without JavaScript."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from clusters.cluster.pages import machine, media, metrics
from portal.pages.plain import rendered


@require_safe
def plain(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    parts = rendered(request, appcode, name, charts=metrics.charts, media=media.media, machine=machine.charts)
    context = metrics.context_of(request, appcode, name) | {"parts": parts}
    return render(request, "clusters/cluster/metrics.html", context)
