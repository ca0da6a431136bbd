"""TensorBoard of one or several runs. GET renders the fragment with its button and cost, or why it is unavailable. POST
opens it, and creates it if there is none."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import conditional_page, require_http_methods

from clusters.applications.tensorboard import offer, open_tensorboard
from clusters.cluster.pages.cluster import page_of
from clusters.gateway import origins
from portal.access import OPERATE, may
from portal.errors import Conflict, Invalid
from portal.pages.appcodes import person


@require_http_methods(["GET", "HEAD", "POST"])
@conditional_page
def tensorboard(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Opens `?run=N`, by default the latest. POST may instead name several `runs` (train/3) to compare."""
    user, shown = person(request), page_of(request, appcode, name)
    one = [f"{name}/{shown.run.number}"] if shown.run else []
    owner = shown.cluster.appcode
    if request.method != "POST":
        found = offer(one, appcode=owner, may_operate=may(user, owner, OPERATE))
        run = found.cluster.current_run if found.cluster else None
        context = {"page": shown, "offer": found, "spent": run.cost_at(shown.now) if run else 0}
        return render(request, "clusters/applications/_tensorboard.html", context)
    try:
        made, _ = open_tensorboard(request.POST.getlist("runs") or one, appcode=owner, acting_user=user)
    except (Invalid, Conflict) as error:
        refused = error.errors if isinstance(error, Invalid) else []
        messages.error(request, " ".join(each.message for each in refused) or str(error))
        return redirect(reverse("cluster_runs", args=[appcode, name]))
    # No redirect: after a form POST, form-action keeps the browser from following it to another origin.
    address = origins.opened_from(request, origins.url(made.origins["tensorboard"]))
    return render(request, "clusters/gateway/opening.html", {"cluster": made, "address": address})
