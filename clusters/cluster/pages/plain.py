"""The Metrics tab for browsers without JavaScript: the parts that a script would load later are in the page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from clusters.cluster.pages import machine, media, metrics


@require_safe
def plain(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    parts = [
        # Our own pages: what others wrote is escaped in them.
        SafeString(view(request, appcode, name).content.decode())
        for view in (metrics.charts, media.media, machine.charts)
    ]
    return render(
        request, "clusters/cluster/metrics.html", {**metrics.context_of(request, appcode, name), "parts": parts}
    )
