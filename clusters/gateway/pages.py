"""Opens an endpoint: the page that sends the browser there with a ticket (gateway/visits.py)."""

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
    """The origin redirects unknown browsers here with a `state`. Without one, the browser is sent to the origin first."""
    origin = visits.origin_of(label)
    cluster = visits.cluster_at(origin) if origin else None
    if origin is None or cluster is None or not visits.may_open(person(request), cluster):
        raise Http404("There is nothing at this address that you may open.")
    address = origins.url(cluster.origins.get(origin.endpoint, label))
    state = request.GET.get("state", "")
    if not state:
        return HttpResponseRedirect(origins.opened_from(request, address))
    ticket = visits.issue(request, origin, state)
    query = urlencode({"ticket": ticket, "next": request.GET.get("next", "/")})
    # No redirect: after the sign-in form, form-action keeps the browser from following it to another origin.
    response = render(
        request,
        "clusters/gateway/opening.html",
        {"cluster": cluster, "address": f"{address.rstrip('/')}{TICKET}?{query}"},
    )
    response["Referrer-Policy"] = "no-referrer"
    return response
