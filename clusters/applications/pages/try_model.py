"""The panel that tries out a model server: sends its sample request, as is or edited, and shows the answer, time and commands."""

from __future__ import annotations

import json
import shlex
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from clusters.access import application_for
from clusters.applications.requests import ask, example_of, tensor_shown
from clusters.frameworks.serving import ENDPOINT, path_of
from clusters.gateway.origins import url
from clusters.model_registry.models import ModelVersion
from clusters.runs.models import Cluster
from portal.access import OPERATE
from portal.api.problems import Unavailable
from portal.errors import Conflict, Invalid
from portal.pages.appcodes import person
from portal.web.limits import LOOKS


@require_safe
def ask_page(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The panel of the page."""
    cluster = _server(request, appcode, name)
    version = served_version(cluster)
    example, of_signature = example_of(version.signature if version else None)
    sample = version.sample if version and version.sample is not None else example
    path = path_of(_model_name(cluster), sample)
    address = url(cluster.origins[ENDPOINT]).rstrip("/") + path
    body = json.dumps(sample, ensure_ascii=False)
    context = {
        "cluster": cluster,
        "version": version,
        "is_example": version is None or version.sample is None,
        "of_signature": of_signature,
        "body": body,
        # Quoted because another user may have registered the sample, and people paste this into their shells.
        "shell": shlex.quote(body),
        "python": repr(body),
        "address": address,
        "inputs": [tensor_shown(each) for each in (version.signature or {}).get("inputs") or ()] if version else [],
    }
    return render(request, "clusters/applications/_ask_model.html", context)


@require_POST
def send(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Sends the request as typed and shows the result."""
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
    return render(request, "clusters/applications/_asked.html", context)


def served_version(cluster: Cluster) -> ModelVersion | None:
    """The version that its current run serves; None for none or a deleted one. One query."""
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


def _model_name(cluster: Cluster) -> str:
    """The name of the model that the run serves; the definition may have changed since."""
    run = cluster.current_run
    said = run.spec.get("model") if run and not run.is_terminal else None
    return str(said or cluster.spec["model"]).partition("@")[0].partition("/")[0]
