"""The page of a terminal in a task: static/clusters/terminal.js, connected to the WebSocket of cluster/api/terminal.py."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from clusters.cluster.api.exec import operable
from portal.assets import has_xterm
from portal.pages.appcodes import person


@require_safe
def terminal(request: HttpRequest, appcode: str, name: str, run: int, role: str, index: int) -> HttpResponse:
    """Renders the page. The WebSocket checks on each connection whether a shell can be opened."""
    row = operable(person(request), appcode, name, run, role, index)
    context = {"run": row, "cluster": row.cluster, "task": f"{role}-{index}", "has_xterm": has_xterm()}
    return render(request, "clusters/cluster/terminal.html", context)
