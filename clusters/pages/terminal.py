"""A terminal in a task, a page of its own: static/clusters/terminal.js at the WebSocket of clusters/api/terminal.py."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from clusters.api.exec import operable
from portal.assets import has_xterm
from portal.pages.appcodes import person


@require_safe
def terminal(request: HttpRequest, appcode: str, name: str, run: int, role: str, index: int) -> HttpResponse:
    """Whether a shell can be opened there now is for the WebSocket to say, each time anew."""
    row = operable(person(request), appcode, name, run, role, index)
    context = {"run": row, "cluster": row.cluster, "task": f"{role}-{index}", "has_xterm": has_xterm()}
    return render(request, "clusters/terminal.html", context)
