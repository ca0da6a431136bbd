"""Opens a notebook: the user's own in one click, and one with the output of a run, at once if a running one shows it."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from clusters.access import cluster_for
from clusters.applications.notebooks import address_in, choices, last_notebook, open_in_notebook
from clusters.applications.pages.form import REVIEW
from clusters.applications.tensorboard import lives
from clusters.cluster.actions import deploy
from clusters.cluster.form.new import free_cluster_name
from clusters.cluster.pages.cluster import page_of
from clusters.frameworks.jupyter import Jupyter
from clusters.gateway import origins
from clusters.runs.models import Cluster
from portal.access import OPERATE
from portal.errors import Conflict, Invalid, sentence
from portal.pages.appcodes import person


@require_http_methods(["GET", "HEAD", "POST"])
def open_run(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Opens `?run=N`, by default the latest. POST may name several `runs` (train/3), and the notebook: `application`,
    or `restart` for one that may be restarted for it. By default, one that shows the runs."""
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
    return render(
        request, "clusters/applications/open_run.html", {"page": shown, "runs": runs, "choices": choices(runs, owner)}
    )


@require_http_methods(["GET", "HEAD", "POST"])
def my_notebook(request: HttpRequest) -> HttpResponse:
    """Opens the user's notebook; POST starts it first if it does not run. Without any, the form shows what would be made, with
    the usual choices."""
    user = person(request)
    notebook = last_notebook(user)
    if notebook is None:
        usual = {"type": Jupyter.name, "name": free_cluster_name(user, "notebook"), "step": REVIEW}
        return redirect(f"{reverse('new_application')}?{urlencode(usual)}")
    code, name = notebook.appcode.code, notebook.name
    if request.method == "POST":
        if not lives(notebook):
            try:
                deploy(notebook, acting_user=user)
            except (Invalid, Conflict, PermissionDenied) as error:
                messages.error(request, f"{name} does not start: {sentence(error)}")
                return redirect("application", code, name)
        return redirect("my_notebook")
    return _opening(request, notebook, []) if lives(notebook) else redirect("application", code, name)


def _opening(request: HttpRequest, notebook: Cluster, runs: list[str]) -> HttpResponse:
    """Waits until the notebook shows these runs, if any, and the gateway routes to it. A notebook about to restart still serves
    its page, but nothing after that."""
    run = notebook.current_run
    if run is None or (run.is_terminal and not notebook.next_by_id):
        messages.error(request, f"{notebook.name} does not run. {run.message if run else ''}")
        return redirect("application", notebook.appcode.code, notebook.name)
    shows = not notebook.next_by_id and set(runs) <= set(run.spec["runs"])
    ready = shows and any(each.ready for each in origins.openings(notebook, run) if each.name == "notebook")
    address = origins.opened_from(request, address_in(notebook, runs)) if ready else ""
    # No redirect: after a form POST, form-action keeps the browser from following it to another origin.
    return render(request, "clusters/gateway/opening.html", {"cluster": notebook, "address": address, "run": run})
