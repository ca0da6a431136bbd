"""What people do to a cluster from a menu: one POST each, and a page that asks first where something is lost.

With JavaScript the question is a dialog, which then sends `confirmed`; without it the first POST shows the question as a page.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST
from django_htmx.http import HttpResponseClientRedirect

from clusters import actions
from clusters.access import cluster_for
from clusters.clouds.drivers.base import Plan
from clusters.frameworks import APPLICATIONS
from portal.access import OPERATE
from portal.errors import Conflict, Invalid
from portal.pages.appcodes import person, safe_next


@dataclass(frozen=True)
class Act:
    """`label` names it on a button, which `hint` explains, `yes` on the one that confirms it; `lost` is said before it is done
    ("" when nothing is lost), `done` afterwards, `many` when it was done with several."""

    verb: str
    do: Callable[..., Any]
    label: str
    done: str
    lost: str = ""
    yes: str = ""
    hint: str = ""
    many: str = ""


DEPLOY = Act(
    "deploy",
    actions.deploy,
    "Re-Deploy",
    "{name} has been submitted again.",
    yes="Re-Deploy",
    many="{count} clusters have been submitted again.",
)
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
    "Stop",
    "{name} is stopping.",
    f"Its tasks are asked to end and get {Plan.grace_seconds} seconds for it. What is in /elearn/output is stored first; what "
    "a program holds only in memory is lost.",
    "Stop",
    hint="Called disable in REST. It can be deployed again.",
    many="{count} clusters are stopping.",
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
    many="{count} clusters have been deleted.",
)
ACTS = {act.verb: act for act in (DEPLOY, NEWEST, CANCEL, DISABLE, KEEP, DELETE)}

# What is done with several at once; Stop also takes those that still wait out of the queue.
SEVERAL = (DISABLE, DEPLOY, DELETE)
MOST = 200
# How many of the messages a page that stays shows, and how long one may be: they go in a header.
TOASTS, SAID = 5, 300


@require_POST
def several(request: HttpRequest, verb: str) -> HttpResponse:
    """The same for the clusters that are ticked in a list (`cluster=APPCODE/NAME`, several times): each by itself, so that what
    cannot be done with one says so and keeps no other from it. Repeating it does what was left."""
    user, wanted = person(request), ACTS[verb]
    names = list(dict.fromkeys(request.POST.getlist("cluster")))[:MOST]
    back = safe_next(request, reverse("clusters"))
    if wanted.lost and names and "confirmed" not in request.POST:
        return render(request, "clusters/ask_several.html", {"names": names, "act": wanted, "back": back})
    done, said, refused = list[str](), list[tuple[int, str]](), None
    for name in names:
        try:
            cluster = cluster_for(user, *name.partition("/")[::2], OPERATE)
            if wanted is DISABLE and (cluster.current_run is None or cluster.current_run.is_terminal):
                raise Conflict(f"{cluster.name} does not run.")
            wanted.do(cluster, acting_user=user)
        except Http404:
            said.append((messages.WARNING, f"{name} is not there any more."))
        except PermissionDenied as denied:
            refused = denied
            said.append((messages.ERROR, f"{name}: {denied}"))
        except Conflict as conflict:
            said.append((messages.WARNING, str(conflict)))
        except Invalid as invalid:
            said.append((messages.ERROR, f"{name}: {' '.join(error.message for error in invalid.errors)}"))
        else:
            done.append(cluster.name)
    if refused and not done:
        raise refused
    if done:
        words = wanted.done if len(done) == 1 else wanted.many
        said.insert(0, (messages.SUCCESS, words.format(name=done[0], count=len(done))))
    return _told(request, said, back)


def _told(request: HttpRequest, said: list[tuple[int, str]], back: str) -> HttpResponse:
    """How it went, as messages: on the page that is open when it stays, else on the one that follows."""
    if not request.htmx:  # type: ignore[attr-defined]
        for level, text in said:
            messages.add_message(request, level, text)
        return redirect(back)
    shown = [(messages.DEFAULT_TAGS[level], text[:SAID]) for level, text in said[:TOASTS]]
    return HttpResponse(status=204, headers={"HX-Trigger": json.dumps({"said": shown, "acted": True})})


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
        said = messages.ERROR, str(conflict)
    except Invalid as invalid:
        said = messages.ERROR, " ".join(error.message for error in invalid.errors)
        if wanted in (DEPLOY, NEWEST):
            # The definition names what is gone by now: to be mended in the form.
            messages.add_message(request, *said)
            form = reverse(f"change_{kind}", args=[appcode, name])
            return HttpResponseClientRedirect(form) if request.htmx else redirect(form)  # type: ignore[attr-defined]
    else:
        said = messages.SUCCESS, wanted.done.format(name=name)
    return _told(request, [said], back)
