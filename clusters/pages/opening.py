"""From the portal to an endpoint: the page that sends a browser there with a ticket (gateway/visits.py)."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_safe

from clusters.gateway import origins, visits
from clusters.gateway.decision import TICKET
from portal.pages.appcodes import person


@require_safe
def open_endpoint(request: HttpRequest, label: str) -> HttpResponse:
    """The origin sends browsers here that it does not know, with a `state` of theirs; without one they go there for it first."""
    origin = visits.origin_of(label)
    cluster = visits.cluster_at(origin) if origin else None
    if origin is None or cluster is None or not visits.may_open(person(request), cluster):
        raise Http404("There is nothing at this address that you may open.")
    address = origins.url(cluster.origins.get(origin.endpoint, label))
    state = request.GET.get("state", "")
    if not state:
        return HttpResponseRedirect(address)
    ticket = visits.issue(request, origin, state)
    query = urlencode({"ticket": ticket, "next": request.GET.get("next", "/")})
    # No redirect: a browser that has just sent the form of the sign-in would not follow it to another origin (form-action).
    response = render(
        request, "clusters/opening.html", {"cluster": cluster, "address": f"{address.rstrip('/')}{TICKET}?{query}"}
    )
    response["Referrer-Policy"] = "no-referrer"
    return response
