"""The output of a run in a notebook: one click where a notebook that runs shows it, else the page on which one is chosen."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from clusters.access import cluster_for
from clusters.applications.notebooks import address_in, choices, open_in_notebook
from clusters.pages.cluster import page_of
from portal.access import OPERATE
from portal.errors import Conflict, Invalid
from portal.pages.appcodes import person


@require_http_methods(["GET", "HEAD", "POST"])
def open_run(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Of `?run=N`, the latest without it; POST may name `runs` (train/3) instead, as often as there are runs to see. It opens
    them in the notebook `application`, or `restart` where that may be ended for it; without either in one that shows them."""
    user = person(request)
    owner = cluster_for(user, appcode, name, OPERATE).appcode
    shown = page_of(request, appcode, name)
    if shown.run is None:
        raise Http404(f"{name} has never been deployed.")
    runs = request.POST.getlist("runs") or [f"{name}/{shown.run.number}"]
    if request.method == "POST":
        restarted, chosen = request.POST.get("restart", ""), request.POST.get("application", "")
        try:
            made = open_in_notebook(runs, restarted or chosen, restart=bool(restarted), appcode=owner, acting_user=user)
        except (Invalid, Conflict) as error:
            refused = error.errors if isinstance(error, Invalid) else []
            none_yet = not (chosen or restarted) and all(each.path == ("application",) for each in refused)
            if not none_yet:
                messages.error(request, " ".join(each.message for each in refused) or str(error))
            if any(each.path == ("runs",) for each in refused):
                return redirect("cluster_runs", appcode, name)
        else:
            # No redirect: a browser that has just sent a form would not follow it to another origin (form-action).
            context = {"cluster": made, "address": address_in(made, runs)}
            return render(request, "clusters/opening.html", context)
    return render(request, "clusters/open_run.html", {"page": shown, "runs": runs, "choices": choices(runs, owner)})
