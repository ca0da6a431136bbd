"""Creates a sweep. The trial's definition comes from a cluster, the cluster form, or another sweep."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST
from pydantic import ValidationError

from clusters.access import cluster_for, clusters_for, run_for
from clusters.cluster.form.new import curl, form_page, run_number, sent_form
from clusters.frame.names import free_name
from clusters.frameworks import COMPUTING
from clusters.manifest.cluster import ClusterSpec
from clusters.runs.queries.preview import NOTHING, cost_of
from clusters.sweeps import actions
from clusters.sweeps.access import sweep_for, sweeps_for
from clusters.sweeps.manifest import MAX_NAME, SweepManifest, SweepSpec
from clusters.sweeps.pages.form import SweepForm, fields_of, rows_of
from clusters.sweeps.pages.offers import left_alone, metrics_of, offers
from portal.access import OPERATE, appcode_for
from portal.errors import Invalid
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.layout import selected_appcode, words

# How many clusters are offered as a start.
OFFERED = 12


@require_http_methods(["GET", "HEAD", "POST"])
def new_sweep(request: HttpRequest) -> HttpResponse:
    """Filled by `?from=APPCODE/CLUSTER[&run=N]` or `?sweep=APPCODE/NAME`, otherwise asks for a cluster. A POST from the
    New Cluster form shows this page's own form, whose POST creates the sweep."""
    user = person(request)
    if request.method != "POST":
        form = _filled(request, user)
        return _page(request, form) if form else _ask(request, user)
    if "template" not in request.POST:
        return _of_cluster_form(request, user)
    form = SweepForm(request.POST)
    made = form.attempt(lambda manifest: actions.create_sweep(manifest, acting_user=user))
    if made is None:
        return _page(request, form)
    messages.success(request, f"{made.name} has started; its first trials are on their way.")
    return redirect("sweep", made.appcode.code, made.name)


@require_POST
def preview_sweep(request: HttpRequest) -> HttpResponse:
    """The right column: number of runs, hourly cost, errors. Writes nothing."""
    user = person(request)
    form = SweepForm(request.POST)
    form.is_valid()
    manifest = form.manifest
    context: dict[str, Any] = {"form": form, "manifest": None}
    if manifest is not None:
        spec, code = manifest.spec, manifest.metadata.appcode
        try:
            cost = cost_of(spec.template, appcode_for(user, code, OPERATE))
        except Invalid as invalid:
            # An error in the trial's definition; creating the sweep reports the same.
            form.complain(replace(each, path=("spec", "template", *each.path[1:])) for each in invalid.errors)
        else:
            total, at_once = spec.points * (spec.folds or 1), min(spec.parallel, spec.points * (spec.folds or 1))
            text = json.dumps(_short(manifest), indent=2, ensure_ascii=False)
            context |= {
                "points": spec.points, "total": total, "at_once": at_once, "cost": sum((cost for _ in range(at_once)), NOTHING),
                "most": (cost.limit + cost.hooks) * total if cost.limit is not None else None,
                "hooks": cost.hooks * total, "manifest": text, "left_alone": left_alone(spec),
                "curl": curl(request.build_absolute_uri(f"/api/v1/appcodes/{code}/sweeps"), text),
            }  # fmt: skip
    return render(request, "clusters/sweeps/_preview.html", context)


def _filled(request: HttpRequest, user: User) -> SweepForm | None:
    """The form filled from the query string; None if it names no source. Raises Http404."""
    if source := words(request, "sweep"):
        appcode, _, name = source.partition("/")
        found = sweep_for(user, appcode, name)
        spec = SweepSpec.stored(found.spec)
        return SweepForm(initial=fields_of(_free(user, name), appcode, spec), rows=rows_of(spec))
    if source := words(request, "from"):
        appcode, _, name = source.partition("/")
        cluster = cluster_for(user, appcode, name)
        number = run_number(request.GET.get("run", ""))
        body = run_for(user, appcode, name, number).spec if number else cluster.spec
        return _of_spec(user, name, appcode, ClusterSpec.model_validate(body), f"{appcode}/{name}")
    return None


def _of_cluster_form(request: HttpRequest, user: User) -> HttpResponse:
    form, cluster = sent_form(request, user)
    form.is_valid()
    manifest = form.manifest
    if manifest is None and set(form.errors) <= {"name"}:
        manifest = form.with_stand_ins()
    if manifest is None:
        return form_page(request, form, cluster)
    called = str(form["name"].value() or "sweep")
    source = f"{cluster.appcode.code}/{cluster.name}" if cluster else ""
    return _page(request, _of_spec(user, called, manifest.metadata.appcode, manifest.spec, source))


def _of_spec(user: User, called: str, appcode: str, spec: ClusterSpec, source: str) -> SweepForm:
    if spec.framework not in COMPUTING:
        raise Http404("An application has no trials.")
    initial = {
        "name": _free(user, f"{called[: MAX_NAME - 6]}-sweep"),
        "appcode": appcode,
        "template": spec.model_dump_json(by_alias=True),
        "command": spec.command,
        "source": source,
    }
    return SweepForm(initial=initial)


def _free(user: User, name: str) -> str:
    """`name`, or the first of name-2, name-3, … that none of the user's visible sweeps has."""
    taken = sweeps_for(user).filter(name__startswith=name[: MAX_NAME - 4]).values_list("name", flat=True)
    return free_name(name, set(taken), MAX_NAME)


def _page(request: HttpRequest, form: SweepForm) -> HttpResponse:
    try:
        template = ClusterSpec.model_validate_json(str(form["template"].value() or ""))
    except ValidationError:
        template = None
    context = {
        "form": form,
        "template": template,
        "offers": offers(template.model_copy(update={"command": form.said()["command"]})) if template else [],
        "metrics": _metrics(person(request), form.said()["source"]),
    }
    return render(request, "clusters/sweeps/new.html", context)


def _metrics(user: User, source: str) -> list[tuple[str, str]]:
    appcode, _, name = source.replace("\0", "").partition("/")
    try:
        return metrics_of(cluster_for(user, appcode, name)) if name else []
    except Http404:
        return []


def _ask(request: HttpRequest, user: User) -> HttpResponse:
    code = selected_appcode(request)
    found = clusters_for(user).filter(framework__in=list(COMPUTING), part_of="")
    if code:
        found = found.filter(appcode__code=code)
    return render(request, "clusters/sweeps/new.html", {"form": None, "clusters": found.order_by("-id")[:OFFERED]})


def _short(manifest: SweepManifest) -> dict[str, Any]:
    document = manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"kind": "sweep", **document}
