"""The output of a run in a notebook: one click where a notebook that runs shows it, else the page on which one is chosen."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from clusters.access import cluster_for
from clusters.applications.notebooks import address_in, choices, open_in_notebook
from clusters.gateway import origins
from clusters.models import Cluster
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
    runs = (request.POST or request.GET).getlist("runs") or [f"{name}/{shown.run.number}"]
    if request.method != "POST" and (opened := request.GET.get("opening", "")):
        return _opening(request, cluster_for(user, appcode, opened, OPERATE), runs)
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
            return redirect(f"{request.path}?{urlencode({'opening': made.name, 'runs': runs}, doseq=True)}")
    return render(request, "clusters/open_run.html", {"page": shown, "runs": runs, "choices": choices(runs, owner)})


def _opening(request: HttpRequest, notebook: Cluster, runs: list[str]) -> HttpResponse:
    """Waits here until the notebook shows these runs and the gateway leads to it: one that is about to end would still give its
    page, and nothing after that."""
    run = notebook.current_run
    if run is None or (run.is_terminal and not notebook.next_by_id):
        messages.error(request, f"{notebook.name} does not run. {run.message if run else ''}")
        return redirect("application", notebook.appcode.code, notebook.name)
    shows = not notebook.next_by_id and set(runs) <= set(run.spec["runs"])
    ready = shows and any(each.ready for each in origins.openings(notebook, run) if each.name == "notebook")
    address = address_in(notebook, runs) if ready else ""
    # No redirect: a browser that has just sent a form would not follow it to another origin (form-action).
    return render(request, "clusters/opening.html", {"cluster": notebook, "address": address, "run": run})
