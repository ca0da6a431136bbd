"""Menu actions on a cluster: one POST each, with a confirmation where something would be lost.

With JavaScript that is a dialog that sends `confirmed`. Without it, the first POST renders it as a page.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST
from django_htmx.http import HttpResponseClientRedirect

from clusters.access import cluster_for
from clusters.admission.taking import GRACE_SECONDS
from clusters.cluster import actions
from clusters.frameworks import APPLICATIONS
from clusters.frameworks.jupyter import Jupyter
from portal.access import OPERATE
from portal.errors import Conflict, Invalid, sentence
from portal.pages.appcodes import person, safe_next


@dataclass(frozen=True)
class Act:
    """`label` is the button, with `hint` as its explanation; `yes` is the confirming button. `lost` is the warning (""
    if nothing is lost), `done` the message afterwards, `many` the message for several clusters."""

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
    "Stop",
    "{name} is stopped.",
    "It has not begun to run, so no work is lost. Its place in the queue is.",
    "Stop",
    hint="Called cancel in REST while it waits.",
)
DISABLE = Act(
    "disable",
    actions.disable,
    "Stop",
    "{name} is stopping.",
    f"Its tasks are asked to end and get {GRACE_SECONDS} seconds for it, or as many as its definition says. What is in "
    "/elearn/output is stored then; what a program holds only in memory is lost.",
    "Stop",
    hint="Called disable in REST. It can be deployed again.",
    many="{count} clusters are stopping.",
)


def stop(application: str, *, notebook: bool, output: bool, home: bool) -> Act:
    """Stop for a running cluster, or for an `application` of this title, with what people fear for: files, packages, callers."""
    files = "Its files in /elearn/home stay." if home else ""
    if notebook:
        files = files or "It has no volume, so all of its files are lost."
        lost = f"{files} What its kernels hold in memory is lost, and so are packages that are not saved as an environment."
    elif application:
        lost = f"It can no longer be opened, and its address answers nobody, until it is deployed again. {files}"
    elif output:
        return DISABLE
    else:
        lost = f"Its tasks are asked to end. It has no output datastore, so nothing that they wrote is kept. {files}"
    return replace(DISABLE, lost=lost.strip())


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

# Actions on several clusters at once. Stop also removes queued ones from the queue.
SEVERAL = (DISABLE, DEPLOY, DELETE)
MOST = 200
# For a page that stays open: how many messages it shows, and the maximum length of one. They travel in a header.
TOASTS, SAID = 5, 300


@require_POST
def several(request: HttpRequest, verb: str) -> HttpResponse:
    """Acts on the clusters ticked in a list (repeated `cluster=APPCODE/NAME`), one by one. A failure is reported and
    does not stop the others. Repeating the request does what was left."""
    user, wanted = person(request), ACTS[verb]
    names = list(dict.fromkeys(request.POST.getlist("cluster")))[:MOST]
    back = safe_next(request, reverse("clusters"))
    if wanted.lost and names and "confirmed" not in request.POST:
        return render(request, "clusters/cluster/ask_several.html", {"names": names, "act": wanted, "back": back})
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
    """Reports the results: as messages on the open page if it stays, else on the next page."""
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
    if wanted is DISABLE:
        driver, spec = APPLICATIONS.get(cluster.spec["framework"]), cluster.spec
        title = driver.title if driver else ""
        wanted = stop(
            title, notebook=title == Jupyter.title, output=bool(spec.get("output")), home=bool(spec.get("home"))
        )
    if request.method != "POST" or (wanted.lost and "confirmed" not in request.POST):
        return render(request, "clusters/cluster/ask.html", {"cluster": cluster, "act": wanted})
    kind = "application" if cluster.spec["framework"] in APPLICATIONS else "cluster"
    back = f"{kind}s" if verb == "delete" else reverse(kind, args=[appcode, name])
    try:
        wanted.do(cluster, acting_user=user)
    except Conflict as conflict:
        said = messages.ERROR, str(conflict)
    except Invalid as invalid:
        said = messages.ERROR, sentence(invalid)
        if wanted in (DEPLOY, NEWEST):
            # The definition names something that no longer exists; the user fixes it in the form.
            messages.add_message(request, *said)
            form = reverse(f"change_{kind}", args=[appcode, name])
            return HttpResponseClientRedirect(form) if request.htmx else redirect(form)  # type: ignore[attr-defined]
    else:
        said = messages.SUCCESS, wanted.done.format(name=name)
    return _told(request, [said], back)
