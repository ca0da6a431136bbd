"""The New Cluster form with its live preview and cost, its other uses (clone, change), and Import."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.forms import Field
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from billing.metering.segments import gpu_class
from clusters.access import cluster_for, clusters_for, run_for
from clusters.catalog.package_index import last_refusal
from clusters.cluster import actions
from clusters.cluster.form import starters
from clusters.cluster.form.choices import Offer
from clusters.cluster.form.data import JSON_FIELDS, fields_of, manifest_of, read_json, short_document
from clusters.cluster.form.fields import ClusterForm
from clusters.cluster.form.imports import ImportForm, read_manifests
from clusters.cluster.form.offers import fields_changed
from clusters.cluster.form.offers import filled as filled_by_link
from clusters.cluster.form.sources import no_cards, sources
from clusters.cluster.form.starters import STARTERS
from clusters.cluster.form.values import set_values
from clusters.frame.changed_lines import changed_files
from clusters.frame.names import free_name
from clusters.manifest.cluster import MAX_NAME, ClusterManifest
from clusters.runs import input_listing
from clusters.runs.models import Cluster
from clusters.runs.queries.preview import NOTHING, Preview, Size, preview, sizes
from datastores.access import datastores_for
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from datastores.files.downloads import LOOK_SECONDS
from datastores.pages.views import address
from portal.access import MANAGE, OPERATE, appcode_for, appcodes_for
from portal.api.problems import Unavailable
from portal.errors import Conflict, FieldError, Invalid
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.layout import selected_appcode, words
from portal.web.limits import LOOKS

Made = TypeVar("Made")
# Characters shown of a changed value, and pairs of changed lines compared while somebody types.
MOST_SHOWN, MOST_PAIRS = 120, 200_000


@require_http_methods(["GET", "HEAD", "POST"])
def new_cluster(request: HttpRequest) -> HttpResponse:
    """Empty, or filled by `?clone=APPCODE/NAME[&run=N][&set=NAME=VALUE]`, `?trial=APPCODE/SWEEP/N`, `?start=CARD` or
    `?template=WHOSE/NAME`."""
    user = person(request)
    cards = not {"clone", *(each.parameter for each in sources if each.cards is no_cards)} & request.GET.keys()
    if request.method != "POST":
        filled = _filled(request, user)
        offer = offer_of(user, filled.get("appcode", ""))
        filled |= _carded(user, request.GET, offer) or {}
        return form_page(request, ClusterForm(offer, initial=offer.defaults() | filled), cards=cards)
    form = ClusterForm(offer_of(user, request.POST.get("appcode", "")), request.POST)
    cluster = form.attempt(lambda manifest: actions.create_cluster(manifest, acting_user=user))
    if cluster is None:
        judge(form, user)
        return form_page(request, form, cards=cards)
    messages.success(request, f"{cluster.name} has been submitted.")
    return redirect("cluster", cluster.appcode.code, cluster.name)


@require_http_methods(["GET", "HEAD", "POST"])
def start(request: HttpRequest) -> HttpResponse:
    """Runs a card in the given appcode under the next free name. If it is refused, shows the form with the errors. A
    GET (after signing in again) leads to the cards."""
    if request.method != "POST":
        return redirect("new_cluster")
    user = person(request)
    code = appcode_for(user, request.POST.get("appcode", "").replace("\0", ""), OPERATE).code
    offer = offer_of(user, code)
    filled = _carded(user, request.POST, offer)
    if filled is None:
        raise Http404("There is no such card.")
    # If this appcode is disabled, `offer` is another one's: the request must be refused, not run elsewhere.
    empty = ClusterForm(offer, initial=filled | {"appcode": code})
    form = ClusterForm(offer, empty.said())
    cluster = form.attempt(lambda manifest: actions.create_cluster(manifest, acting_user=user))
    if cluster is None:
        judge(form, user)
        return form_page(request, form, cards=True)
    charts = " Its charts are under Metrics, a few seconds after it runs." if "start" in request.POST else ""
    messages.success(request, f"{cluster.name} has been submitted.{charts}")
    return redirect("cluster", cluster.appcode.code, cluster.name)


@require_http_methods(["GET", "HEAD", "POST"])
def change_cluster(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Re-Deploy with changes. The new definition and its run are made together or not at all. A run that waits is ended first. A
    link may fill in what it asks for."""
    user = person(request)
    cluster = cluster_for(user, appcode, name, OPERATE)
    filled = _set(request, fields_of(_manifest(cluster, cluster.spec))) | filled_by_link(request.GET)
    offer = offer_of(user, appcode)
    form = ClusterForm(offer, request.POST if request.method == "POST" else None, initial=filled)
    form.fix("appcode", "name")

    def change(manifest: ClusterManifest) -> Cluster:
        with transaction.atomic():
            changed = actions.change_cluster(cluster, manifest, acting_user=user)
            actions.deploy_changed(changed, acting_user=user)
        return changed

    changed = form.attempt(change)
    if changed is None:
        judge(form, user, cluster)
        return form_page(request, form, cluster=cluster)
    messages.success(request, f"{name} has been submitted with its changes.")
    return redirect("cluster", appcode, name)


@require_GET
def changed_input(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Whether the input has changed since the last run. Loaded after the form, because listing a datastore may take seconds."""
    user = person(request)
    cluster = cluster_for(user, appcode, name, OPERATE)
    page: dict[str, Any] = {}
    try:
        with LOOKS.enter(user.pk), within(LOOK_SECONDS):
            change = input_listing.input_change(cluster)
        if change:
            page = {"change": change, "url": address(change.store, change.folder)}
    except (DriverError, Unavailable) as error:
        page["trouble"] = str(error)
    return render(request, "clusters/cluster/_input_change.html", page)


@require_POST
def preview_cluster(request: HttpRequest) -> HttpResponse:
    """The right column: validates and prices the input. Writes nothing. `?change=APPCODE/NAME` is the changed cluster."""
    user = person(request)
    form, cluster = sent_form(request, user)
    return render(request, "clusters/cluster/_preview.html", _preview(request, form, user, cluster))


def sent_form(request: HttpRequest, user: User) -> tuple[ClusterForm, Cluster | None]:
    """The submitted form, and the cluster being changed (`?change=APPCODE/NAME`). Raises Http404, PermissionDenied."""
    appcode, _, name = request.GET.get("change", "").replace("\0", "").partition("/")
    cluster = cluster_for(user, appcode, name, OPERATE) if name else None
    form = ClusterForm(
        offer_of(user, appcode or request.POST.get("appcode", "")),
        request.POST,
        initial=fields_of(_manifest(cluster, cluster.spec)) if cluster else {},
    )
    if cluster:
        form.fix("appcode", "name")
    return form, cluster


@require_GET
def datastore_choices(request: HttpRequest) -> HttpResponse:
    """The IMAGE, INPUT, OUTPUT and hook fields for another appcode, which may run elsewhere. Keeps choices by name."""
    offer = offer_of(person(request), request.GET.get("appcode", ""))
    known = {field: {name for name, _ in choices} for field, choices in offer.choices().items()}
    fields = ("input", "output", "environment")
    chosen = {field: name if (name := request.GET.get(field, "")) in known[field] else "" for field in fields}
    chosen |= {field: request.GET.get(field, "") for field in ("hook_starters", "hook_address")}
    chosen["image"] = request.GET.get("image") or offer.defaults()["image"]
    return render(
        request, "clusters/cluster/_stores.html", {"form": ClusterForm(offer, initial=chosen), "with_image": True}
    )


@require_http_methods(["GET", "HEAD", "POST"])
def import_clusters(request: HttpRequest) -> HttpResponse:
    """Imports manifests from a file or pasted text: all or none, with every error. `check` only previews them and their cost."""
    user = person(request)
    form = ImportForm(request.POST, request.FILES) if request.method == "POST" else ImportForm()
    checked: list[tuple[ClusterManifest, Preview]] | None = None
    if request.method == "POST" and form.is_valid():
        if "check" in request.POST:
            checked = _tried(form, lambda: _each(form.text, lambda one: (one, preview(one, acting_user=user))))
            if checked is not None:
                # The text of an uploaded file, too, is kept in the form.
                form = ImportForm(initial={"manifest": form.text})
        elif made := _tried(form, lambda: _import(form.text, user)):
            messages.success(request, f"Imported {', '.join(cluster.name for cluster in made)}.")
            return redirect("cluster", made[0].appcode.code, made[0].name) if len(made) == 1 else redirect("clusters")
    together = sum((found.cost for _, found in checked or ()), NOTHING)
    return render(request, "clusters/cluster/import.html", {"form": form, "checked": checked, "together": together})


@transaction.atomic
def _import(text: str, user: User) -> list[Cluster]:
    return _each(text, lambda manifest: actions.create_cluster(manifest, acting_user=user))


def _each(text: str, make: Callable[[ClusterManifest], Made]) -> list[Made]:
    """`make` applied to every manifest. Raises Invalid; the path starts with the manifest's number if there are several."""
    manifests = read_manifests(text)
    made = []
    for number, manifest in enumerate(manifests, 1):
        try:
            made.append(make(manifest))
        except Invalid as invalid:
            if len(manifests) == 1:
                raise
            where = f"manifest {number}"
            raise Invalid([replace(error, path=(where, *error.path)) for error in invalid.errors]) from invalid
    return made


def _tried(form: ImportForm, action: Callable[[], Made]) -> Made | None:
    """The result of the action. If it is refused, shows the errors and returns None."""
    try:
        return action()
    except Invalid as invalid:
        form.complain(invalid.errors)
    except PermissionDenied as denied:
        form.complain([FieldError(("metadata", "appcode"), str(denied))])
    except Conflict as conflict:
        form.add_error(None, str(conflict))
    return None


def form_page(
    request: HttpRequest, form: ClusterForm, cluster: Cluster | None = None, *, cards: bool = False
) -> HttpResponse:
    """Renders the form; `cards` adds the starting cards."""
    run = cluster.current_run if cluster else None
    context: dict[str, Any] = {
        "form": form,
        "cluster": cluster,
        "gives_way": run if run and actions.gives_way(run) else None,
    }
    if cards:
        why_not = starters.why_not(form.offer)
        user = person(request)
        context |= {
            "cards": [
                *(card for each in sources for card in each.cards(user, form.offer)),
                *(each.card for each in STARTERS.values() if not why_not),
            ],
            "why_no_starter": why_not,
            "is_newcomer": not Cluster.objects.filter(created_by=user).exists(),
        }
    return render(request, "clusters/cluster/new.html", context)


def _carded(user: User, said: QueryDict, offer: Offer) -> dict[str, str] | None:
    """What a card or another source fills in, in the chosen appcode and under a free name; None where `said` names none. Raises
    Http404."""
    if starter := STARTERS.get(said.get("start", "")):
        return starters.fields(starter, offer) | {"name": free_cluster_name(user, starter.name)}
    for source in sources:
        if which := said.get(source.parameter, "").replace("\0", ""):
            return source.fields(user, which, offer)
    return None


def offer_of(user: User, appcode: str) -> Offer:
    return Offer.make(appcodes_for(user, OPERATE), appcode, datastores_for(user))


def _filled(request: HttpRequest, user: User) -> dict[str, str]:
    """Initial values of a new form."""
    if source := words(request, "clone"):
        return _set(request, _cloned(user, source, request.GET.get("run", "")))
    appcode = selected_appcode(request)
    for each in sources:
        if source := words(request, each.parameter):
            appcode = each.appcode(source, appcode)
    return {"appcode": appcode} if appcode else {}


def _cloned(user: User, source: str, run: str) -> dict[str, str]:
    appcode, slash, name = source.partition("/")
    if not slash:
        raise Http404("Name what to clone as APPCODE/NAME.")
    cluster = cluster_for(user, appcode, name)
    number = run_number(run)
    spec = run_for(user, appcode, name, number).spec if number else cluster.spec
    return fields_of(_manifest(cluster, spec)) | {"name": free_cluster_name(user, name)}


def _set(request: HttpRequest, fields: dict[str, str]) -> dict[str, str]:
    """With the values of `?set=NAME=VALUE`, and a warning about those that it has not."""
    if not (said := request.GET.getlist("set")) or request.method == "POST":
        return fields
    filled, unknown = set_values(fields, said)
    for name in unknown:
        messages.warning(request, f"It has no variable or option “{name}”; add it below or to the command.")
    return filled


def run_number(said: str) -> int:
    """A run number; 0 for an empty string. Raises Http404."""
    if said and not (said.isascii() and said.isdecimal() and len(said) < 10):
        raise Http404("There is no such run.")
    return int(said or 0)


def free_cluster_name(user: User, name: str) -> str:
    """`name`, or the first of name-2, name-3, … that none of the user's visible clusters has."""
    taken = clusters_for(user).filter(name__startswith=name[: MAX_NAME - 4]).values_list("name", flat=True)
    return free_name(name, set(taken), MAX_NAME)


def _manifest(cluster: Cluster, spec: dict[str, Any]) -> ClusterManifest:
    metadata = {"name": cluster.name, "appcode": cluster.appcode.code}
    return ClusterManifest.stored({"kind": "cluster", "metadata": metadata, "spec": spec})


def _preview(request: HttpRequest, form: ClusterForm, user: User, cluster: Cluster | None = None) -> dict[str, Any]:
    form.is_valid()
    manifest, found = judge(form, user, cluster, within_quota=False)
    if form.manifest is not None:
        document = short_document(form.manifest)
    else:
        document, _ = manifest_of(form.said())
    run = cluster.current_run if cluster else None
    appcode = document["metadata"]["appcode"]
    address = request.build_absolute_uri(
        f"/api/v1/appcodes/{quote(appcode)}/clusters{f'/{cluster.name}' if cluster else ''}"
    )
    text = json.dumps(document, indent=2, ensure_ascii=False)
    complaints = form.complaints()
    return {
        "form": form,
        "appcode": appcode,
        "may_ask": may_ask(user, appcode, found),
        "preview": found,
        "installs": len(manifest.spec.required) if manifest else 0,
        "offers": [(each, json.dumps(fields)) for each, fields in fields_changed(manifest, found.offers)]
        if manifest and found
        else (),
        "cluster": cluster,
        "living": run is not None and not (run.is_terminal or actions.gives_way(run)),
        "differs": differences(form, cluster) if cluster else [],
        "sizes": _sizes(form.offer, str(form["priority_class"].value())),
        **complaints,
        # No verdict on a form that would be refused, nor a promise before it is whole.
        "verdict": "" if found is None or complaints["wrong"] else "whole" if not form.errors else "open",
        "manifest": text,
        "curl": curl(address, text, method="PUT" if cluster else "POST"),
    }


def judge(
    form: ClusterForm, user: User, cluster: Cluster | None = None, *, within_quota: bool = True
) -> tuple[ClusterManifest | None, Preview | None]:
    """Shows what else is wrong with a validated form, beside what its manifest said: stand-ins take the place of wrong values.
    Returns what was judged, and what it would cost and need; None while that cannot be said."""
    for _ in range(2):
        if form.non_field_errors():
            break
        manifest = form.with_stand_ins() if form.errors else form.manifest
        if manifest is None:
            break
        try:
            if why := last_refusal(manifest.spec.required):
                raise Invalid.at("spec", "requirements", message=why)
            found = preview(manifest, acting_user=user, instead_of=cluster, with_offers=True, within_quota=within_quota)
        except Invalid as invalid:
            form.complain(invalid.errors)
        except PermissionDenied as denied:
            form.complain([FieldError(("metadata", "appcode"), str(denied))])
        else:
            return manifest, found if form.is_priced else None
    return None, None


def may_ask(user: User, appcode: str, found: Preview | None) -> bool:
    """Whether the user may request the larger quota with which the run would not wait."""
    return bool(found and found.larger_quota and appcodes_for(user, MANAGE).filter(code=appcode).exists())


@dataclass(frozen=True)
class Changed:
    """A field that differs from the last run: both values, or for texts of several lines the `files` with their changed lines."""

    label: str
    then: str = ""
    now: str = ""
    files: Sequence[tuple[str, list[tuple[str, str]] | None]] = ()


def differences(form: ClusterForm, cluster: Cluster) -> list[Changed]:
    """Fields that differ from the cluster's last run."""
    run = cluster.current_run
    # A run pins what its definition leaves open: compare those with the definition.
    settled = {name: cluster.spec[name] for name in ("environment", "input", "hooks") if name in cluster.spec}
    before = fields_of(_manifest(cluster, {**run.spec, **settled} if run else cluster.spec))
    found = []
    for name, field in form.fields.items():
        now, then = str(form[name].value() or "").replace("\r\n", "\n"), before.get(name, "")
        if now != then and not (name == "time_limit_unit" and not form["time_limit"].value()):
            label = field.widget.attrs.get("aria-label") or field.label or name
            found += _changed(name, field, str(label), then, now)
    return found


def _changed(name: str, field: Field, label: str, then: str, now: str) -> list[Changed]:
    """How two texts of a field differ. JSON is compared by its values: browsers write it with other spaces."""
    if name in JSON_FIELDS:
        values = [read_json(each) for each in (then, now)]
        if values[0] == values[1]:
            return []
        if name == "code_files" and all(value is None or _are_files(value) for value in values):
            return [Changed(label, files=list(changed_files(values[0] or {}, values[1] or {}, pairs=MOST_PAIRS)))]
        then, now = (
            each if isinstance(each, str) else "" if each is None else json.dumps(each, indent=2, ensure_ascii=False)
            for each in values
        )
    if "\n" in then or "\n" in now:
        return [Changed(label, files=list(changed_files({"": then}, {"": now}, pairs=MOST_PAIRS)))]
    names = dict(getattr(field.widget, "choices", ()))
    return [Changed(label, *cut_around(names.get(then, then), names.get(now, now)))]


def _are_files(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def cut_around(then: str, now: str) -> tuple[str, str]:
    """Two lines for display, each cut to about MOST_SHOWN characters, which include the first one that differs."""
    if max(len(then), len(now)) <= MOST_SHOWN:
        return then, now
    same = next((n for n, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), min(len(then), len(now)))
    start = max(0, same - MOST_SHOWN // 3)
    first, second = (
        f"{'…' if start else ''}{each[start : start + MOST_SHOWN]}{'…' if len(each) > start + MOST_SHOWN else ''}"
        for each in (then, now)
    )
    return first, second


def _sizes(offer: Offer, priority_class: str) -> list[Size]:
    """The flavors with their availability and price where the appcode runs."""
    appcode = next((each for each in offer.appcodes if each.code == offer.appcode), None)
    return (
        sizes(offer.flavors, offer.place.cloud, appcode.pk, gpu_class=gpu_class({"class": priority_class}))
        if appcode and offer.place
        else []
    )


def curl(address: str, document: str, *, method: str = "POST") -> str:
    """The equivalent curl command. Quoting the here-document keeps the shell from expanding the manifest."""
    return (
        f"curl -X {method} {address} \\\n"
        '  -H "Authorization: Bearer $TOKEN" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  --data-binary @- <<'MANIFEST'\n{document}\nMANIFEST"
    )
