"""The New Cluster form, what it would make and cost while one types, its two other uses (clone, change), and Import."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q
from django.forms import Field
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from clusters import actions
from clusters.access import cluster_for, clusters_for, run_for
from clusters.manifest import MAX_NAME, ClusterManifest
from clusters.models import Cluster, Template
from clusters.pages import starters
from clusters.pages.choices import Offer
from clusters.pages.cluster_form import ClusterForm
from clusters.pages.conversion import fields_of, manifest_of, short_document
from clusters.pages.importing import ImportForm, read_manifests
from clusters.pages.starters import STARTERS, Card
from clusters.runs import listed
from clusters.runs.preview import NOTHING, Preview, Size, preview, sizes
from clusters.sweeps.access import sweep_for, trial_for
from clusters.sweeps.actions import cluster_of as cluster_of_trial
from clusters.sweeps.manifest import name_again
from clusters.templates import cluster_of, in_short, in_words, template_for, templates_for
from datastores.access import datastores_for
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from datastores.files.downloads import LOOK_SECONDS
from datastores.views import address
from portal.access import MANAGE, OPERATE, appcode_for, appcodes_for
from portal.api.problems import Unavailable
from portal.errors import Conflict, FieldError, Invalid
from portal.limits import LOOKS
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.layout import selected_appcode, words

Made = TypeVar("Made")
# Of what differs.
MOST_SHOWN = 120
# Of templates; all are on a page of their own.
MOST_CARDS = 3
# What stands in for a field that is not filled in yet, so that cost and fit can be told before the name is chosen.
STAND_INS = {"name": "unnamed-unnamed-unnamed-unnamed-unnamed", "command": "true", "env": "", "schedule_after": ""}


@require_http_methods(["GET", "HEAD", "POST"])
def new_cluster(request: HttpRequest) -> HttpResponse:
    """Empty, or filled by `?clone=APPCODE/NAME[&run=N]`, `?trial=APPCODE/SWEEP/N`, `?start=CARD` or `?template=WHOSE/NAME`."""
    user = person(request)
    if request.method != "POST":
        filled = _filled(request, user)
        offer = offer_of(user, filled.get("appcode", ""))
        filled |= _carded(user, request.GET, offer) or {}
        return form_page(
            request,
            ClusterForm(offer, initial=offer.defaults() | filled),
            cards=not {"clone", "trial"} & request.GET.keys(),
        )
    form = ClusterForm(offer_of(user, request.POST.get("appcode", "")), request.POST)
    cluster = (
        _try(form, lambda manifest: actions.create_cluster(manifest, acting_user=user)) if form.is_valid() else None
    )
    if cluster is None:
        return form_page(request, form)
    messages.success(request, f"{cluster.name} has been submitted.")
    return redirect("cluster", cluster.appcode.code, cluster.name)


@require_http_methods(["GET", "HEAD", "POST"])
def start(request: HttpRequest) -> HttpResponse:
    """Runs a card in the appcode that is named, under the next free name; what is refused stands in its form. Who signs in again
    there comes to the cards."""
    if request.method != "POST":
        return redirect("new_cluster")
    user = person(request)
    code = appcode_for(user, request.POST.get("appcode", "").replace("\0", ""), OPERATE).code
    offer = offer_of(user, code)
    filled = _carded(user, request.POST, offer)
    if filled is None:
        raise Http404("There is no such card.")
    # What is offered is that of another appcode where this one is disabled: it is to be refused, not made elsewhere.
    empty = ClusterForm(offer, initial=filled | {"appcode": code})
    form = ClusterForm(offer, {field: str(empty[field].value() or "") for field in empty.fields})
    cluster = (
        _try(form, lambda manifest: actions.create_cluster(manifest, acting_user=user)) if form.is_valid() else None
    )
    if cluster is None:
        return form_page(request, form, cards=True)
    charts = " Its charts are under Metrics, a few seconds after it runs." if "start" in request.POST else ""
    messages.success(request, f"{cluster.name} has been submitted.{charts}")
    return redirect("cluster", cluster.appcode.code, cluster.name)


@require_http_methods(["GET", "HEAD", "POST"])
def change_cluster(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Re-Deploy with changes: the new definition and its run are made together or not at all."""
    user = person(request)
    cluster = cluster_for(user, appcode, name, OPERATE)
    filled = fields_of(_manifest(cluster, cluster.spec))
    offer = offer_of(user, appcode)
    form = (
        ClusterForm(offer, request.POST, initial=filled)
        if request.method == "POST"
        else ClusterForm(offer, initial=filled)
    )
    form.fix("appcode", "name")

    def change(manifest: ClusterManifest) -> Cluster:
        with transaction.atomic():
            changed = actions.change_cluster(cluster, manifest, acting_user=user)
            actions.deploy(changed, acting_user=user)
        return changed

    changed = _try(form, change) if request.method == "POST" and form.is_valid() else None
    if changed is None:
        return form_page(request, form, cluster=cluster)
    messages.success(request, f"{name} has been submitted with its changes.")
    return redirect("cluster", appcode, name)


@require_GET
def changed_input(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """A part of the form: whether what the cluster reads is still what its last run read. It comes after the rest, for a store
    may take seconds to list it."""
    user = person(request)
    cluster = cluster_for(user, appcode, name, OPERATE)
    page: dict[str, Any] = {}
    try:
        with LOOKS.enter(user.pk), within(LOOK_SECONDS):
            change = listed.input_change(cluster)
        if change:
            page = {"change": change, "url": address(change.store, change.folder)}
    except (DriverError, Unavailable) as error:
        page["trouble"] = str(error)
    return render(request, "clusters/_input_change.html", page)


@require_POST
def preview_cluster(request: HttpRequest) -> HttpResponse:
    """The right column of the form: what is typed so far, judged and priced. `?change=APPCODE/NAME` is the cluster that is
    changed. Writes nothing."""
    user = person(request)
    form, cluster = sent_form(request, user)
    return render(request, "clusters/_preview.html", _preview(request, form, user, cluster))


def sent_form(request: HttpRequest, user: User) -> tuple[ClusterForm, Cluster | None]:
    """What stands in the form, and by `?change=APPCODE/NAME` the cluster that is changed. Raises Http404, PermissionDenied."""
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
    """The IMAGE, INPUT and OUTPUT fields for another appcode, which may run elsewhere; what is chosen stays chosen where that has
    a datastore of the name."""
    offer = offer_of(person(request), request.GET.get("appcode", ""))
    known = {field: {name for name, _ in choices} for field, choices in offer.choices().items()}
    fields = ("input", "output", "environment")
    chosen = {field: name if (name := request.GET.get(field, "")) in known[field] else "" for field in fields}
    chosen["image"] = request.GET.get("image") or offer.defaults()["image"]
    return render(request, "clusters/_stores.html", {"form": ClusterForm(offer, initial=chosen), "with_image": True})


@require_http_methods(["GET", "HEAD", "POST"])
def import_clusters(request: HttpRequest) -> HttpResponse:
    """Manifests from a file or pasted: all are created, or none with every error. `check` only says what they would make and
    cost."""
    user = person(request)
    form = ImportForm(request.POST, request.FILES) if request.method == "POST" else ImportForm()
    checked: list[tuple[ClusterManifest, Preview]] | None = None
    if request.method == "POST" and form.is_valid():
        if "check" in request.POST:
            checked = _tried(form, lambda: _each(form.text, lambda one: (one, preview(one, acting_user=user))))
            if checked is not None:
                # What came as a file is kept, too.
                form = ImportForm(initial={"manifest": form.text})
        elif made := _tried(form, lambda: _import(form.text, user)):
            messages.success(request, f"Imported {', '.join(cluster.name for cluster in made)}.")
            return redirect("cluster", made[0].appcode.code, made[0].name) if len(made) == 1 else redirect("clusters")
    together = sum((found.cost for _, found in checked or ()), NOTHING)
    return render(request, "clusters/import.html", {"form": form, "checked": checked, "together": together})


@transaction.atomic
def _import(text: str, user: User) -> list[Cluster]:
    return _each(text, lambda manifest: actions.create_cluster(manifest, acting_user=user))


def _each(text: str, make: Callable[[ClusterManifest], Made]) -> list[Made]:
    """What is made of every manifest. Raises Invalid with the number of the one that is wrong, when there are several."""
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


def _try(form: ClusterForm, action: Callable[[ClusterManifest], Cluster]) -> Cluster | None:
    """Runs the action on what the form says."""
    manifest = form.manifest
    assert manifest is not None
    return _tried(form, lambda: action(manifest))


def _tried(form: ClusterForm | ImportForm, action: Callable[[], Made]) -> Made | None:
    """What the action made; what it refuses stands beside the fields."""
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
    """The form; `cards` says whether with what one can start from instead."""
    context: dict[str, Any] = {"form": form, "cluster": cluster}
    if cards:
        why_not = starters.why_not(form.offer)
        mine = _templates(person(request), form.offer)
        context |= {
            "cards": [*mine, *(each.card for each in STARTERS.values() if not why_not)],
            "why_no_starter": why_not,
        }
    return render(request, "clusters/new.html", context)


def _templates(user: User, offer: Offer) -> list[Card]:
    """Of one's own templates and those of the chosen appcode the ones that were changed last. One query."""
    rows = templates_for(user).filter(Q(owner=user) | Q(appcode__code=offer.appcode))
    found = in_short(rows).order_by("-changed_at")[:MOST_CARDS]
    return [Card(each.name, each.description or in_words(each), "template", str(each), each.whose) for each in found]


def _carded(user: User, said: QueryDict, offer: Offer) -> dict[str, str] | None:
    """What a card fills in, in the chosen appcode and under a free name; None where `said` names none. Raises Http404."""
    if starter := STARTERS.get(said.get("start", "")):
        return starters.fields(starter, offer) | {"name": free_name(user, starter.name)}
    if which := said.get("template", "").replace("\0", ""):
        whose, _, name = which.partition("/")
        template = template_for(user, whose, name)
        # Who may run nothing yet is told so instead of the form.
        said_so = fields_of(cluster_of(template, offer.appcode or "none"))
        return said_so | {"appcode": offer.appcode, "name": free_name(user, template.name)}
    return None


def offer_of(user: User, appcode: str) -> Offer:
    return Offer.make(appcodes_for(user, OPERATE), appcode, datastores_for(user), user)


def _filled(request: HttpRequest, user: User) -> dict[str, str]:
    """What a new form starts with."""
    if source := words(request, "clone"):
        return _cloned(user, source, request.GET.get("run", ""))
    if source := words(request, "trial"):
        return _of_trial(user, source)
    whose = words(request, "template").partition("/")[0]
    appcode = selected_appcode(request) or (whose if whose != Template.ME else "")
    return {"appcode": appcode} if appcode else {}


def _cloned(user: User, source: str, run: str) -> dict[str, str]:
    appcode, slash, name = source.partition("/")
    if not slash:
        raise Http404("Name what to clone as APPCODE/NAME.")
    cluster = cluster_for(user, appcode, name)
    number = run_number(run)
    spec = run_for(user, appcode, name, number).spec if number else cluster.spec
    return fields_of(_manifest(cluster, spec)) | {"name": free_name(user, name)}


def _of_trial(user: User, source: str) -> dict[str, str]:
    """What a trial of a sweep has trained, as a cluster of its own. Raises Http404."""
    appcode, name, number = (*source.split("/"), "", "")[:3]
    trial = trial_for(sweep_for(user, appcode, name), run_number(number))
    return fields_of(cluster_of_trial(trial, free_name(user, name_again(name, trial.number))))


def run_number(said: str) -> int:
    """Of a run; 0 where none is said. Raises Http404."""
    if said and not (said.isascii() and said.isdecimal() and len(said) < 10):
        raise Http404("There is no such run.")
    return int(said or 0)


def free_name(user: User, name: str) -> str:
    """`name`, or the first of name-2, name-3, … that no cluster they see has."""
    taken = clusters_for(user).filter(name__startswith=name[: MAX_NAME - 4]).values_list("name", flat=True)
    return numbered(name, set(taken), MAX_NAME)


def numbered(name: str, taken: Container[str], longest: int) -> str:
    """`name`, or the first of name-2, name-3, … that is not `taken`, cut so that it has at most `longest` characters."""
    endings = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    return next(free for ending in endings if (free := name[: longest - len(ending)] + ending) not in taken)


def _manifest(cluster: Cluster, spec: dict[str, Any]) -> ClusterManifest:
    metadata = {"name": cluster.name, "appcode": cluster.appcode.code}
    return ClusterManifest.model_validate({"kind": "cluster", "metadata": metadata, "spec": spec})


def _preview(request: HttpRequest, form: ClusterForm, user: User, cluster: Cluster | None = None) -> dict[str, Any]:
    form.is_valid()
    manifest = form.manifest
    if manifest is None and set(form.errors) <= set(STAND_INS):
        manifest = form.with_stand_ins({name: STAND_INS[name] for name in form.errors})
    found: Preview | None = None
    if manifest is not None:
        try:
            found = preview(manifest, acting_user=user, instead_of=cluster)
        except Invalid as invalid:
            form.complain(invalid.errors)
        except PermissionDenied as denied:
            form.complain([FieldError(("metadata", "appcode"), str(denied))])
    if form.manifest is not None:
        document = short_document(form.manifest)
    else:
        document, _ = manifest_of({name: str(form[name].value() or "") for name in form.fields})
    appcode = document["metadata"]["appcode"]
    address = request.build_absolute_uri(
        f"/api/v1/appcodes/{quote(appcode)}/clusters{f'/{cluster.name}' if cluster else ''}"
    )
    text = json.dumps(document, indent=2, ensure_ascii=False)
    complaints = [
        (form.fields[name].widget.attrs.get("aria-label", form[name].label), form[name].value(), form.errors[name][0])
        for name in form.fields
        if name in form.errors
    ]
    return {
        "form": form,
        "appcode": appcode,
        "may_ask": may_ask(user, appcode, found),
        "preview": found,
        "cluster": cluster,
        "living": cluster and cluster.current_run and not cluster.current_run.is_terminal,
        "differs": differences(form, cluster) if cluster else [],
        "sizes": _sizes(form.offer),
        "missing": [label for label, value, _ in complaints if not value],
        "wrong": [(label, sentence) for label, value, sentence in complaints if value],
        "manifest": text,
        "curl": curl(address, text, method="PUT" if cluster else "POST"),
    }


def may_ask(user: User, appcode: str, found: Preview | None) -> bool:
    """Whether the person may ask for the larger quota by which it would not wait."""
    return bool(found and found.larger_quota and appcodes_for(user, MANAGE).filter(code=appcode).exists())


def differences(form: ClusterForm, cluster: Cluster) -> list[tuple[str, str, str]]:
    """What stands in the form otherwise than in the last run of the cluster: label, then, now."""
    run = cluster.current_run
    # A run settles what its definition leaves open.
    settled = {name: cluster.spec[name] for name in ("environment", "input", "hooks") if name in cluster.spec}
    before = fields_of(_manifest(cluster, {**run.spec, **settled} if run else cluster.spec))
    found = []
    for name, field in form.fields.items():
        now, then = str(form[name].value() or "").replace("\r\n", "\n"), before.get(name, "")
        if now != then and not (name == "time_limit_unit" and not form["time_limit"].value()):
            label = field.widget.attrs.get("aria-label") or field.label or name
            found.append((str(label), shown(field, then), shown(field, now)))
    return found


def shown(field: Field, value: str) -> str:
    """What people read of a value; of a long text its beginning."""
    text = dict(getattr(field.widget, "choices", ())).get(value, value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _sizes(offer: Offer) -> list[Size]:
    """The flavors as they are to be had where the appcode runs."""
    appcode = next((each for each in offer.appcodes if each.code == offer.appcode), None)
    return sizes(offer.flavors, offer.place.cloud, appcode.pk) if appcode and offer.place else []


def curl(address: str, document: str, *, method: str = "POST") -> str:
    """The command that does the same through REST. The here-document is quoted, so nothing in the manifest is expanded."""
    return (
        f"curl -X {method} {address} \\\n"
        '  -H "Authorization: Bearer $TOKEN" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  --data-binary @- <<'MANIFEST'\n{document}\nMANIFEST"
    )
