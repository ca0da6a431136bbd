"""Applications: the list, one application's page with its four boxes, and the four-step form.

An application is a cluster underneath: the list is the cluster list with other columns (cluster/pages/list.py), and the page is
its Overview among the tabs of the cluster page (cluster.py), whose own address leads there.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from django.contrib import messages
from django.core.cache import cache
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_http_methods, require_POST, require_safe

from billing import periods
from billing.metering.segments import floor
from billing.sums import breakdown
from clusters.access import application_for, applications_in, clusters_in
from clusters.applications import actions
from clusters.applications.actions import create_application, preview_application
from clusters.applications.manifest import ApplicationManifest, application_spec
from clusters.applications.notebooks import last_notebook
from clusters.applications.pages.form import (
    NEW,
    OF_KIND,
    REVIEW,
    STEPS,
    STORE,
    ApplicationForm,
    document_of,
    fields_of,
    kind_of,
)
from clusters.applications.presets import PRESETS
from clusters.applications.tensorboard import lives
from clusters.catalog.actions import flavor_titles
from clusters.catalog.models import Flavor
from clusters.cluster.actions import deploy
from clusters.cluster.form.choices import Offer, flavor_label
from clusters.cluster.form.new import curl, free_cluster_name, may_ask, offer_of
from clusters.cluster.pages import list as listing
from clusters.cluster.pages.cluster import Page, overview_of, page_of, reading_of
from clusters.environments.actions import can_be_saved
from clusters.environments.models import Plugin
from clusters.frameworks import APPLICATIONS
from clusters.frameworks.jupyter import Jupyter
from clusters.gateway import visits
from clusters.manifest.input import input_of
from clusters.runs.idle import REASON as IDLE_REASON
from clusters.runs.idle import UNASKED, Outlook, outlook, saved, used_at
from clusters.runs.models import Cluster, Run
from clusters.volumes.metering import consumer
from datastores.extension_points import estimate
from datastores.models import Datastore
from portal.access import OPERATE, roles_of
from portal.extension_points import HOURS
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.layout import selected_appcode, words

# Period over which savings by idle stops are summed, and seconds for which the sum is cached.
SAVED_IN, SAVED_SECONDS = dt.timedelta(days=30), 60

# Shown in place of a hidden token.
MASK = "•" * 24


@dataclass(frozen=True)
class Mine:
    """The notebook that *My notebook* opens or starts, and on which machine."""

    cluster: Cluster
    machine: str
    lives: bool


@require_safe
def applications(request: HttpRequest) -> HttpResponse:
    clusters = applications_in(clusters_in(roles_of(person(request))))
    context = _found(request)
    if context["may_create"]:
        context["mine"] = _mine(person(request))
    return render(request, "clusters/applications/applications.html", {**context, "saved": _saved(request, clusters)})


def _mine(user: User) -> Mine | None:
    notebook = last_notebook(user)
    if notebook is None:
        return None
    (role,) = notebook.spec["roles"].values()
    return Mine(notebook, flavor_titles().get(role["flavor"], role["flavor"]), lives(notebook))


@require_safe
def rows(request: HttpRequest) -> HttpResponseBase:
    """The live part of the list. Answers 304 while it is unchanged."""
    return listing.live(request, _found(request), "clusters/applications/_rows.html")


@require_safe
def application(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    application_for(person(request), appcode, name)
    shown = page_of(request, appcode, name)
    context = {"page": shown, **overview_of(request, shown), **_boxes(shown)}
    return render(request, "clusters/applications/application.html", context)


@require_safe
@conditional_page
def boxes(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The live part of the page: endpoints and the state of its files."""
    application_for(person(request), appcode, name)
    shown = page_of(request, appcode, name)
    return render(request, "clusters/applications/_application.html", {"page": shown, **_boxes(shown)})


@require_safe
@conditional_page
def billing(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """This month's cost: what its runs held, and the volume of its files, which is billed even while nothing runs."""
    cluster = application_for(person(request), appcode, name)
    now = floor(timezone.now())
    month = periods.month(now)
    found = breakdown.parts(now, window=month.window, appcodes=[cluster.appcode_id], cluster=name)
    home = _stores(cluster).get(cluster.spec.get("home") or "")
    if home and home.made:
        found += breakdown.parts(now, window=month.window, consumers=[consumer(home.made.pk)])
    sums = {
        family: sum((part.cost for part in found if part.family == family), Decimal(0))
        for family in ("gpu", "cpu", "memory", "storage")
    }
    machine = sums["cpu"] + sums["memory"]
    context = {
        "cluster": cluster,
        "now": now,
        "sums": sums,
        "machine": machine,
        "subtotal": sum(sums.values(), Decimal(0)),
    }
    return render(request, "clusters/applications/_billing.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def token(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Shows the access token of programs. POST with `do` replaces or revokes it."""
    user = person(request)
    cluster = application_for(user, appcode, name, OPERATE)
    if request.method == "POST":
        if request.POST.get("do") == "stop":
            visits.stop_token(cluster, acting_user=user)
            messages.success(request, "The token is stopped; no program comes in by it any more.")
            return redirect("application", appcode, name)
        visits.new_token(cluster, acting_user=user)
    context = {"cluster": cluster, "token": visits.token_of(cluster)}
    response = render(request, "clusters/applications/token.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_http_methods(["GET", "HEAD", "POST"])
def new_application(request: HttpRequest) -> HttpResponse:
    """The four steps, empty or filled in by `?clone=APPCODE/NAME`, or by field: `?type=jupyter&appcode=…&step=3`,
    `?type=web&preset=gradio`."""
    user = person(request)

    def create(manifest: ApplicationManifest) -> Cluster:
        return create_application(manifest, acting_user=user)

    if request.method == "POST":
        offer = offer_of(user, request.POST.get("appcode", ""))
        return _go(request, ApplicationForm(offer, _sent(request, offer)), create)
    filled = _filled(request, user)
    offer = offer_of(user, filled.get("appcode", ""))
    form = ApplicationForm(offer, initial=_defaults(offer, filled.get("type", "")) | filled)
    wanted = request.GET.get("step", "")
    step = int(wanted) if wanted in ("2", "3", "4") else 2 if {"appcode", "clone", "type"} & request.GET.keys() else 1
    judged = ApplicationForm(offer, form.said())
    return _page(request, form, judged.first_wrong(step) or step)


@require_http_methods(["GET", "HEAD", "POST"])
def change_application(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Re-Deploy with changes. The new definition and its run are created together or not at all."""
    user = person(request)
    cluster = application_for(user, appcode, name, OPERATE)
    initial = fields_of(_manifest(cluster))
    offer = offer_of(user, appcode)
    sent = _sent(request, offer) if request.method == "POST" else None
    form = ApplicationForm(offer, sent, initial=initial)
    form.fix("appcode", "name")

    def change(manifest: ApplicationManifest) -> Cluster:
        with transaction.atomic():
            changed = actions.change_application(cluster, manifest, acting_user=user)
            deploy(changed, acting_user=user)
        return changed

    return _page(request, form, 2, cluster) if sent is None else _go(request, form, change, cluster)


@require_POST
def preview_step(request: HttpRequest) -> HttpResponse:
    """The right column: validates and prices the input. Writes nothing. `?change=APPCODE/NAME` is the changed application."""
    user = person(request)
    appcode, _, name = request.GET.get("change", "").partition("/")
    cluster = application_for(user, appcode, name, OPERATE) if name else None
    form = ApplicationForm(offer_of(user, request.POST.get("appcode", appcode)), request.POST)
    form.is_valid()
    return render(request, "clusters/applications/_preview.html", _preview(request, form, cluster))


def _sent(request: HttpRequest, offer: Offer) -> QueryDict:
    """The fields as sent. With another kind come its usual choices, and fields that it does not have are emptied. A preset fills
    its own."""
    said = request.POST.copy()
    before = said.get("before", "")
    kind = said.setdefault("type", before)
    if "before" in said and kind != before:
        for name, value in _defaults(offer, kind).items():
            if name != "appcode":
                said[name] = value
        for name in set(OF_KIND) - {*kind_of(kind).own}:
            said[name] = ""
    if preset := PRESETS.get(said.get("preset", "")):
        for name, value in preset.fields.items():
            said[name] = value
    return said


def _go(
    request: HttpRequest,
    form: ApplicationForm,
    act: Callable[[ApplicationManifest], Cluster],
    cluster: Cluster | None = None,
) -> HttpResponse:
    """Renders the requested step, or the first earlier step with an error. Calls `act` after the last step."""
    here, go = (request.POST.get(name, "") for name in ("step", "go"))
    at = int(here) if here in ("1", "2", "3", "4") else 1
    following = at if "preset" in request.POST else min(at + 1, REVIEW)
    to = int(go) if go in ("1", "2", "3", "4") else REVIEW + 1 if go == "deploy" else following
    if to <= at < REVIEW + 1 and go != "deploy":
        return _page(request, _unjudged(form), to, cluster)
    form.is_valid()
    if to >= REVIEW and form.manifest is not None:
        made = form.attempt(
            lambda manifest: preview_application(manifest, acting_user=person(request), cluster=cluster)
        )
        if made is not None and to > REVIEW:
            done = form.attempt(act)
            if done is not None:
                messages.success(request, f"{done.name} has been submitted{' with its changes' if cluster else ''}.")
                return redirect("application", done.appcode.code, done.name)
    if wrong := form.first_wrong(to):
        return _page(request, form, wrong, cluster)
    if form.non_field_errors():
        return _page(request, form, min(to, REVIEW), cluster)
    return _page(request, _unjudged(form), min(to, REVIEW), cluster)


def _unjudged(form: ApplicationForm) -> ApplicationForm:
    """The same values in an unvalidated form, so that a step shows no errors when the user first reaches it."""
    fixed = [name for name, field in form.fields.items() if field.disabled]
    fresh = ApplicationForm(form.offer, initial=form.said())
    fresh.fix(*fixed)
    return fresh


def _page(request: HttpRequest, form: ApplicationForm, step: int, cluster: Cluster | None = None) -> HttpResponse:
    context: dict[str, Any] = {
        "form": form,
        "cluster": cluster,
        "step": step,
        "title": STEPS[step - 1],
        "kind": dict(form.fields["type"].widget.choices).get(form["type"].value()),
        "steps": list(enumerate(STEPS, 1)),
        "fields": form.fields_at(step),
        "carried": form.carried(step),
    }
    if step >= 3:
        judged = ApplicationForm(form.offer, form.said())
        judged.is_valid()
        context |= _preview(request, judged, cluster) | {"form": form}
    if step == REVIEW:
        context["chosen"] = [(n, STEPS[n - 1], form.summary(n)) for n in range(1, REVIEW)]
    return render(request, "clusters/applications/new.html", context)


def _preview(request: HttpRequest, form: ApplicationForm, cluster: Cluster | None) -> dict[str, Any]:
    """A preview of what the validated `form` would create, with its manifest and curl command."""
    found, volume = None, None
    if form.manifest is not None:
        found = form.attempt(
            lambda manifest: preview_application(manifest, acting_user=person(request), cluster=cluster)
        )
        storage = form.manifest.spec.storage
        appcode = next((each for each in form.offer.appcodes if each.code == form.offer.appcode), None)
        volume = estimate(appcode, storage.size) if appcode and storage and storage.size else None
    document, _ = document_of(form.said())
    code, name = document["metadata"]["appcode"], document["metadata"]["name"]
    address = request.build_absolute_uri(f"/api/v1/appcodes/{quote(code)}/applications{f'/{name}' if cluster else ''}")
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return {
        "preview": found,
        "appcode": code,
        "may_ask": may_ask(person(request), code, found),
        "volume": volume,
        "per_month": found.cost.per_hour * HOURS + (volume.per_month if volume else 0) if found else None,
        "wrong": [(form.fields[name].label, errors[0]) for name, errors in form.errors.items() if name in form.fields],
        "others": form.non_field_errors(),
        "manifest": text,
        "curl": curl(address, text, method="PUT" if cluster else "POST"),
    }


def _defaults(offer: Offer, kind: str = "") -> dict[str, str]:
    """The usual first choices, for this kind of application if it is given."""
    image = offer.image_with(kind if kind in APPLICATIONS else next(iter(APPLICATIONS)))
    # People start notebooks for a GPU; other applications mostly do without.
    wants_gpu = (kind or Jupyter.name) == Jupyter.name
    flavors = [each.name for each in offer.flavors if each.gpus or not wants_gpu] or [
        each.name for each in offer.flavors
    ]
    flavor = flavors[0] if flavors else ""
    return {"appcode": offer.appcode, "image": image or offer.defaults()["image"], "flavor": flavor}


def _filled(request: HttpRequest, user: User) -> dict[str, str]:
    """Initial values from the query string."""
    if source := words(request, "clone"):
        appcode, slash, name = source.partition("/")
        if not slash:
            raise Http404("Name what to clone as APPCODE/NAME.")
        cluster = application_for(user, appcode, name)
        filled = fields_of(_manifest(cluster)) | {"name": free_cluster_name(user, name)}
        # The source's own home is not shared; the clone gets a new one.
        own = STORE + f"{name}-home" == filled["storage"]
        return filled | ({"storage": NEW, "size": _size(cluster)} if own else {})
    said = {name: words(request, name) for name in ApplicationForm.base_fields if name in request.GET}
    appcode = selected_appcode(request)
    preset = PRESETS.get(words(request, "preset"))
    return ({"appcode": appcode} if appcode else {}) | dict(preset.fields if preset else {}) | said


def _size(cluster: Cluster) -> str:
    home = _stores(cluster).get(cluster.spec["home"])
    return (home.size if home else "") or str(ApplicationForm.base_fields["size"].initial)


def _manifest(cluster: Cluster) -> ApplicationManifest:
    metadata = {"name": cluster.name, "appcode": cluster.appcode.code}
    return ApplicationManifest.stored({"metadata": metadata, "spec": application_spec(cluster.spec)})


def _found(request: HttpRequest) -> dict[str, Any]:
    roles = roles_of(person(request))
    return listing.found(request, "application", applications_in(clusters_in(roles)), roles)


def _idle(cluster: Cluster, run: Run | None, now: dt.datetime) -> dict[str, Any]:
    """Its idle state, and the GPU time saved by its last idle stop."""
    tells = APPLICATIONS[cluster.spec["framework"]].idle_signal
    quiet = outlook(run) if run else Outlook()
    alive = run is not None and run.phase == Run.Phase.RUNNING and not run.verdict
    state = (run.activity or ("unknown" if tells == "work" else "")) if run and alive else ""
    return {
        "tells": tells,
        "state": state,
        "since": quiet.since,
        "why": (run.activity_why if run and run.activity else "") or UNASKED,
        "used_at": used_at(cluster) if tells == "use" else None,
        "stops_at": quiet.stops_at,
        "saved": saved([cluster], now - SAVED_IN) if run and run.stop_reason == IDLE_REASON else 0,
    }


def _saved(request: HttpRequest, clusters: QuerySet[Cluster]) -> int:
    """GPU-seconds that idle stops of all applications visible to the user saved recently."""
    appcode = selected_appcode(request)
    key = f"clusters.saved.{person(request).pk}.{hashlib.blake2b(appcode.encode(), digest_size=8).hexdigest()}"
    known = cache.get(key)
    if known is None:
        chosen = clusters.filter(appcode__code=appcode) if appcode else clusters
        known = saved(chosen.order_by().values("pk"), timezone.now() - SAVED_IN)
        cache.set(key, known, SAVED_SECONDS)
    return int(known)


def _stores(cluster: Cluster) -> dict[str, Datastore]:
    """The datastores that its definition uses, by name."""
    said = input_of(cluster.spec)
    names = {cluster.spec.get("home"), cluster.spec.get("output"), said and said.datastore} - {None}
    stores = Datastore.objects.filter(appcode=cluster.appcode_id, name__in=names).select_related("volume")
    return {store.name: store for store in stores}


def _run_url(cluster: Cluster, name: str) -> str:
    """The page of a run that the application shows."""
    shown, _, number = name.partition("/")
    page = "cluster" if cluster.spec.get("home") else "cluster_metrics"
    return f"{reverse(page, args=[cluster.appcode.code, shown])}?run={number}"


def _plugins(spec: dict[str, Any]) -> list[tuple[str, str]]:
    """Its plugins: (name in the manifest, title)."""
    asked = spec.get("plugins", ())
    names = [name.partition(":")[0] for name in asked]
    rows = Plugin.objects.filter(image__name=spec["image"], name__in=names).order_by("version") if names else ()
    titles = {row.name: row.title for row in rows}
    return [(each, titles.get(name, name)) for each, name in zip(asked, names, strict=True)]


def _boxes(shown: Page) -> dict[str, Any]:
    cluster = shown.cluster
    role = next(iter(cluster.spec["roles"].values()))
    flavor = Flavor.objects.filter(name=role["flavor"]).first()
    stores = _stores(cluster)
    run = shown.run if shown.is_latest else None
    return {
        "spec": cluster.spec,
        "read": reading_of(run.spec, run.source, cluster.appcode.code)
        if run
        else reading_of(cluster.spec, None, cluster.appcode.code),
        "idle": _idle(cluster, run, shown.now),
        "serves": run.spec.get("model") if run else None,
        "shown_runs": [(name, _run_url(cluster, name)) for name in cluster.spec.get("runs", ())],
        "flavor": flavor_label(flavor) if flavor else role["flavor"],
        "resources": flavor,
        "home": stores.get(cluster.spec.get("home") or ""),
        "has_layer": can_be_saved(cluster),
        "environment_name": (cluster.spec.get("environment") or "").partition(":")[0],
        "environment_version": (cluster.spec.get("environment") or "").partition(":")[2],
        "plugins": _plugins(run.spec if run else cluster.spec),
        "has_token": shown.row.may_operate and bool(visits.token_of(cluster)),
        "mask": MASK,
    }
