"""Actions on a sweep: its buttons, more trials, and training a trial again as a cluster."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from clusters.cluster import actions as clusters
from clusters.cluster.form.new import free_cluster_name
from clusters.frame.acts import Act, act_view
from clusters.sweeps import actions
from clusters.sweeps.access import SWEEPS, sweep_for, trial_for
from clusters.sweeps.manifest import SweepManifest, SweepSpec, name_again
from clusters.sweeps.pages.sweep import sweep_page
from portal.access import OPERATE
from portal.errors import Conflict, Invalid, sentence
from portal.manifests import parse
from portal.manifests.kept import changeable
from portal.pages.appcodes import person

ACTS = {
    "pause": Act(actions.pause_sweep, "Pause", "{name} is paused."),
    "resume": Act(actions.resume_sweep, "Resume", "{name} goes on, in your name."),
    "cancel": Act(
        actions.cancel_sweep,
        "Stop",
        "{name} is stopping.",
        "Its living trials are ended; what those have stored is kept, and so are all that have ended before.",
    ),
    "delete": Act(
        actions.delete_sweep,
        "Delete",
        "{name} is deleted.",
        "All of its trials are deleted with their logs and charts; living ones are ended. What lies in datastores stays.",
    ),
}


act = act_view(SWEEPS, ACTS)


@require_POST
def change(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    found = sweep_for(user, appcode, name, OPERATE)
    said = {key: request.POST[key].strip()[:20] for key in changeable(SweepSpec) if key in request.POST}
    body = {"metadata": {"name": name, "appcode": appcode}, "spec": {**SweepSpec.known(found.spec), **said}}
    try:
        actions.change_sweep(found, parse(SweepManifest, body), acting_user=user)
    except Invalid as invalid:
        wrong = {error.path[1]: error.message for error in invalid.errors if set(error.path[1:2]) & said.keys()}
        for error in invalid.errors:
            if not set(error.path[1:2]) & said.keys():
                messages.error(request, error.message)
        return sweep_page(request, found, said, wrong)
    except Conflict as conflict:
        messages.error(request, str(conflict))
    else:
        messages.success(request, f"{name} is changed.")
    return redirect("sweep", appcode, name)


@require_POST
def train(request: HttpRequest, appcode: str, name: str, trial: int) -> HttpResponse:
    """Trains a trial again as a separate cluster. With folds, it gets the whole input."""
    user = person(request)
    found = sweep_for(user, appcode, name, OPERATE)
    try:
        manifest = actions.cluster_of(trial_for(found, trial), free_cluster_name(user, name_again(name, trial)))
        made = clusters.create_cluster(manifest, acting_user=user)
    except (Invalid, PermissionDenied) as error:
        messages.error(request, sentence(error))
        return redirect("sweep", appcode, name)
    messages.success(
        request, f"{made.name} has been submitted: trial {trial} of {name} once more, as a cluster of its own."
    )
    return redirect("cluster", appcode, made.name)
