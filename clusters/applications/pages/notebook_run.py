"""The form that runs a notebook of a running application as a cluster."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from clusters.access import application_for
from clusters.applications.manifest import role_of
from clusters.applications.notebook_runs import NotebookRunManifest, may_share, notebooks_in, run_notebook
from clusters.clouds.drivers.base import CloudError
from clusters.cluster.form.choices import Offer, flavor_label
from clusters.cluster.form.new import free_cluster_name, offer_of
from clusters.frame.form import area, choice, line
from clusters.manifest.cluster import MAX_NAME
from clusters.manifest.input import input_of, read_where, write_text
from clusters.runs.models import Cluster
from portal.access import OPERATE
from portal.api.problems import Unavailable
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.pages.appcodes import person
from portal.pages.forms import show_errors

NAMES = ("notebook", "parameters", "flavor", "environment", "input", "output")
FIELDS = {"metadata.name": "name", **{f"spec.{name}": name for name in NAMES}}


class RunForm(forms.Form):
    """The notebook to run, and what differs from the application."""

    use_required_attribute = False

    notebook = choice("Notebook")
    name = line("Name", "Of the cluster.", maxlength=MAX_NAME)
    parameters = area(
        "Parameters",
        "NAME=VALUE, one a line: numbers, true, lists as JSON, everything else as text. They are set behind the cell "
        "with the tag “parameters”, or before all others.",
        required=False,
        rows=3,
    )
    flavor = choice("Flavor")
    environment = choice("Environment", required=False)
    input = choice("Input", "mounted at /elearn/input", required=False)
    output = choice("Output", "Where the notebook is kept with its outputs.")

    def __init__(self, offer: Offer, paths: list[str], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        choices = offer.choices()
        flavors = [(flavor.name, flavor_label(flavor)) for flavor in offer.flavors]
        outputs = [choice for choice in choices["output"] if choice[0]]
        offered = {"notebook": [(path, path) for path in paths], "flavor": flavors, "output": outputs}
        for name in ("notebook", "flavor", "environment", "input", "output"):
            widget = self.fields[name].widget
            assert isinstance(widget, forms.Select)
            widget.choices = offered.get(name) or choices.get(name, [])


@require_http_methods(["GET", "HEAD", "POST"])
def run(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    cluster = application_for(user, appcode, name, OPERATE)
    context: dict[str, Any] = {"cluster": cluster}
    try:
        paths = notebooks_in(cluster, acting_user=user)
        sent = request.POST if request.method == "POST" else None
        offer = offer_of(user, appcode)
        form = RunForm(offer, paths, sent, initial=_initial(cluster, offer, paths))
        context |= {"form": form, "paths": paths, "shares": may_share(cluster)}
        if sent is not None and form.is_valid() and (made := _tried(form, cluster, request)):
            messages.success(request, f"{made.name} has been submitted.")
            return redirect("cluster", appcode, made.name)
    except (Conflict, CloudError, Unavailable) as error:
        context["problem"] = str(error)
    return render(request, "clusters/applications/run_notebook.html", context)


def read_parameters(text: str) -> dict[str, Any]:
    """Parses `epochs=3` lines: JSON values as such, everything else as text. Raises Invalid at the parameters."""
    found: dict[str, Any] = {}
    for each in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = each.partition("=")
        if not equals:
            raise Invalid.at("spec", "parameters", message=f"“{each[:60]}” has no '='; write NAME=VALUE.")
        try:
            found[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            found[name.strip()] = value.strip()
    return found


def _tried(form: RunForm, cluster: Cluster, request: HttpRequest) -> Cluster | None:
    """The created cluster; None if refused, with the errors beside the fields."""
    said, user = form.cleaned_data, person(request)
    name = said["name"] or free_cluster_name(user, _name_of(said["notebook"]))
    try:
        spec = {name: said[name] or None for name in NAMES if name != "parameters"}
        document = {
            "metadata": {"name": name, "appcode": cluster.appcode.code},
            "spec": {
                **spec,
                "input": read_where(said["input"]),
                "notebook": said["notebook"],
                "parameters": read_parameters(said["parameters"]),
            },
        }
        return run_notebook(cluster, parse(NotebookRunManifest, document), acting_user=user)
    except Invalid as invalid:
        show_errors(form, invalid, FIELDS)
    return None


def _initial(cluster: Cluster, form_offer: Offer, paths: list[str]) -> dict[str, str]:
    spec = cluster.spec
    output = spec.get("output") or next((store.name for store in form_offer.datastores), "")
    flavor = spec["roles"][role_of(spec["framework"])]["flavor"]
    said = {"environment": spec.get("environment") or "", "input": write_text(input_of(spec))}
    return {"notebook": next(iter(paths), ""), "flavor": flavor, "output": output, **said}


def _name_of(path: str) -> str:
    """A name for the cluster that runs it."""
    stem = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(path).stem.lower()).strip("-")
    return stem[: MAX_NAME - 4].rstrip("-") or "notebook"
