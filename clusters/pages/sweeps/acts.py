"""What is done with a sweep: its buttons, more trials, and one of them trained again as a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from clusters import actions as clusters
from clusters.pages.create import free_name
from clusters.pages.sweeps.sweep import sweep_page
from clusters.sweeps import actions
from clusters.sweeps.access import sweep_for, trial_for
from clusters.sweeps.manifest import SweepManifest, name_again
from portal.access import OPERATE
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.pages.appcodes import person


@dataclass(frozen=True)
class Act:
    """As `act.Act`, of a sweep."""

    do: Callable[..., Any]
    label: str
    done: str
    lost: str = ""


ACTS = {
    "pause": Act(actions.pause_sweep, "Pause", "{name} is paused."),
    "resume": Act(actions.resume_sweep, "Resume", "{name} goes on, in your name."),
    "cancel": Act(
        actions.cancel_sweep,
        "Cancel",
        "{name} is ending.",
        "Its living trials are ended; what those have stored is kept, and so are all that have ended before.",
    ),
    "delete": Act(
        actions.delete_sweep,
        "Delete",
        "{name} is deleted.",
        "All of its trials are deleted with their logs and charts; living ones are ended. What lies in datastores stays.",
    ),
}


@require_http_methods(["GET", "HEAD", "POST"])
def act(request: HttpRequest, appcode: str, name: str, verb: str) -> HttpResponse:
    found = sweep_for(person(request), appcode, name, OPERATE)
    wanted = ACTS[verb]
    if request.method != "POST" or (wanted.lost and "confirmed" not in request.POST):
        return render(request, "clusters/ask_sweep.html", {"sweep": found, "act": wanted})
    try:
        wanted.do(found, acting_user=person(request))
    except Conflict as conflict:
        messages.error(request, str(conflict))
    except Invalid as invalid:
        messages.error(request, " ".join(error.message for error in invalid.errors))
    else:
        messages.success(request, wanted.done.format(name=name))
    return redirect("sweeps") if verb == "delete" else redirect("sweep", appcode, name)


@require_POST
def change(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """More trials, or more at once."""
    user = person(request)
    found = sweep_for(user, appcode, name, OPERATE)
    said = {key: request.POST.get(key, "").strip()[:20] for key in ("trials", "parallel")}
    body = {"metadata": {"name": name, "appcode": appcode}, "spec": {**found.spec, **said}}
    try:
        actions.change_sweep(found, parse(SweepManifest, body), acting_user=user)
    except Invalid as invalid:
        wrong = {
            error.path[1]: error.message for error in invalid.errors if error.path[1:2] in (("trials",), ("parallel",))
        }
        for error in invalid.errors:
            if error.path[1:2] not in (("trials",), ("parallel",)):
                messages.error(request, error.message)
        return sweep_page(request, found, {**said, "wrong": wrong})
    except Conflict as conflict:
        messages.error(request, str(conflict))
    else:
        messages.success(request, f"{name} is changed.")
    return redirect("sweep", appcode, name)


@require_POST
def train(request: HttpRequest, appcode: str, name: str, trial: int) -> HttpResponse:
    """A trial once more, as a cluster of its own; of folds, with all of the input."""
    user = person(request)
    found = sweep_for(user, appcode, name, OPERATE)
    try:
        manifest = actions.cluster_of(trial_for(found, trial), free_name(user, name_again(name, trial)))
        made = clusters.create_cluster(manifest, acting_user=user)
    except (Invalid, PermissionDenied) as error:
        said = " ".join(each.message for each in error.errors) if isinstance(error, Invalid) else str(error)
        messages.error(request, said)
        return redirect("sweep", appcode, name)
    messages.success(
        request, f"{made.name} has been submitted: trial {trial} of {name} once more, as a cluster of its own."
    )
    return redirect("cluster", appcode, made.name)
