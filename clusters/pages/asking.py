"""A model server tried out on its page: the sample request of its version, sent as it stands or changed, what it answers and
after what time, and the same as commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from clusters.applications.access import application_for
from clusters.applications.asked import ask
from clusters.frameworks.serving import ENDPOINT, path_of
from clusters.gateway.origins import url
from clusters.models import Cluster, ModelVersion
from portal.access import OPERATE
from portal.api.problems import Unavailable
from portal.errors import Conflict, Invalid
from portal.limits import LOOKS
from portal.pages.appcodes import person

EXAMPLE = {"instances": [[0.0, 1.0]]}


@require_safe
def ask_page(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The panel of its page."""
    cluster = _server(request, appcode, name)
    version = served_version(cluster)
    sample = version.sample if version and version.sample is not None else EXAMPLE
    path = path_of(_model_name(cluster), sample)
    address = url(cluster.origins[ENDPOINT]).rstrip("/") + path
    body = json.dumps(sample, ensure_ascii=False)
    context = {
        "cluster": cluster,
        "version": version,
        "is_example": version is None or version.sample is None,
        "body": body,
        # Somebody else may have registered it, and this is for people's own shells.
        "shell": shlex.quote(body),
        "python": repr(body),
        "address": address,
        "inputs": [_tensor(each) for each in (version.signature or {}).get("inputs") or ()] if version else [],
    }
    return render(request, "clusters/_ask_model.html", context)


@require_POST
def send(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """One request as it was typed, and what became of it."""
    user = person(request)
    cluster = _server(request, appcode, name)
    context: dict[str, Any] = {"error": "", "answer": None}
    try:
        body = json.loads(request.POST.get("body", ""))
        with LOOKS.enter(user.pk):
            context["answer"] = ask(cluster, ENDPOINT, path_of(_model_name(cluster), body), json.dumps(body).encode())
    except (ValueError, RecursionError) as error:
        context["error"] = f"This is not JSON: {error}."
    except (Conflict, Unavailable) as error:
        context["error"] = str(error)
    except Invalid as invalid:
        context["error"] = invalid.errors[0].message
    return render(request, "clusters/_asked.html", context)


def served_version(cluster: Cluster) -> ModelVersion | None:
    """The version that its current run serves, None for none, or one that was deleted. One query."""
    said = cluster.current_run.spec.get("model") if cluster.current_run else None
    name, _, number = (said or "").partition("/")
    if not number:
        return None
    rows = ModelVersion.objects.filter(model__appcode=cluster.appcode_id, model__name=name, number=int(number))
    return rows.filter(deleted_at=None).select_related("model").first()


def _server(request: HttpRequest, appcode: str, name: str) -> Cluster:
    cluster = application_for(person(request), appcode, name, OPERATE)
    if cluster.spec["framework"] != "serving":
        raise Http404(f"{name} serves no model.")
    return cluster


def _tensor(said: Mapping[str, Any]) -> tuple[str, str, str]:
    """Name, type and shape, as people read them: "any number × 64"."""
    shape = said["shape"]
    sizes = ("any number" if size is None else str(size) for size in shape or ())
    return said["name"], said["dtype"], "of any shape" if shape is None else " × ".join(sizes) or "one number"


def _model_name(cluster: Cluster) -> str:
    """Of what its run serves; its definition may have been changed since."""
    run = cluster.current_run
    said = run.spec.get("model") if run and not run.is_terminal else None
    return str(said or cluster.spec["model"]).partition("@")[0].partition("/")[0]
