"""What people do to a cluster from a menu: one POST each, and a page that asks first where something is lost.

With JavaScript the question is a dialog, which then sends `confirmed`; without it the first POST shows the question as a page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from clusters import actions
from clusters.access import cluster_for
from clusters.clouds.drivers.base import Plan
from clusters.frameworks import APPLICATIONS
from portal.access import OPERATE
from portal.errors import Conflict, Invalid
from portal.pages.appcodes import person


@dataclass(frozen=True)
class Act:
    """`label` names it on a button, `yes` on the one that confirms it; `lost` is said before it is done ("" when nothing is
    lost), `done` afterwards."""

    verb: str
    do: Callable[..., Any]
    label: str
    done: str
    lost: str = ""
    yes: str = ""


DEPLOY = Act("deploy", actions.deploy, "Re-Deploy", "{name} has been submitted again.", yes="Re-Deploy")
NEWEST = Act(
    "deploy-newest",
    partial(actions.deploy, newest=True),
    "Re-Deploy from the newest commit",
    "{name} has been submitted again, from the newest commit.",
    yes="Re-Deploy",
)
CANCEL = Act(
    "cancel",
    actions.cancel,
    "Cancel",
    "{name} is cancelled.",
    "It has not begun to run, so no work is lost. Its place in the queue is.",
    "Cancel the run",
)
DISABLE = Act(
    "disable",
    actions.disable,
    "Disable",
    "{name} is being ended.",
    f"Its tasks are asked to end and get {Plan.grace_seconds} seconds for it. What is in /elearn/output is stored first; what "
    "a program holds only in memory is lost.",
    "Disable",
)
KEEP = Act("keep", actions.keep, "Keep", "{name} is kept; its idle time begins anew.", yes="Keep")
DELETE = Act(
    "delete",
    actions.delete_cluster,
    "Delete",
    "{name} has been deleted.",
    "The definition, its runs and their logs are lost; a living run is ended. What lies in its datastores stays, and so "
    "do its bills.",
    "Delete",
)
ACTS = {act.verb: act for act in (DEPLOY, NEWEST, CANCEL, DISABLE, KEEP, DELETE)}


@require_http_methods(["GET", "HEAD", "POST"])
def act(request: HttpRequest, appcode: str, name: str, verb: str) -> HttpResponse:
    user = person(request)
    cluster = cluster_for(user, appcode, name, OPERATE)
    wanted = ACTS[verb]
    if request.method != "POST" or (wanted.lost and "confirmed" not in request.POST):
        return render(request, "clusters/ask.html", {"cluster": cluster, "act": wanted})
    kind = "application" if cluster.spec["framework"] in APPLICATIONS else "cluster"
    back = f"{kind}s" if verb == "delete" else reverse(kind, args=[appcode, name])
    try:
        wanted.do(cluster, acting_user=user)
    except Conflict as conflict:
        messages.error(request, str(conflict))
    except Invalid as invalid:
        # The definition names what is gone by now: to be mended in the form.
        messages.error(request, " ".join(error.message for error in invalid.errors))
        back = reverse(f"change_{kind}", args=[appcode, name]) if wanted in (DEPLOY, NEWEST) else back
    else:
        messages.success(request, wanted.done.format(name=name))
    return redirect(back)
