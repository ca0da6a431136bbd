"""The queue of each cloud: runs that wait for GPUs and why, and runs that hold them."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from clusters.runs.queue import queues
from portal.access import roles_of
from portal.pages.appcodes import person


@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    roles = roles_of(person(request))
    found = queues(None if roles is None else list(roles))
    return render(request, "clusters/cluster/queue.html", {"queues": found})
