"""The form of a pipeline, as cards or as YAML, with buttons to check, save, or save and run. Every button works without
a script: it posts the form, and the page returns with the result."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from clusters.access import cluster_for, clusters_for
from clusters.cluster.form.choices import Offer
from clusters.cluster.form.new import offer_of
from clusters.cluster_templates.actions import cluster_of, in_short, template_for, templates_for
from clusters.cluster_templates.models import Template
from clusters.frame.form import area, choice, line
from clusters.frame.names import free_name
from clusters.frameworks import COMPUTING
from clusters.manifest.cluster import ClusterSpec
from clusters.pipelines import actions
from clusters.pipelines.access import pipeline_for
from clusters.pipelines.layout import Drawing, draw
from clusters.pipelines.manifest import MAX_NAME, MAX_STAGES, PipelineManifest, PipelineSpec
from clusters.pipelines.models import Pipeline
from clusters.pipelines.pages.cards import STAGE, Card, blank, card_of, numbered, read_cards, stages_of
from clusters.pipelines.pages.text import in_short as short_spec
from clusters.pipelines.pages.text import read_spec, stages_in_short, written
from clusters.runs.models import Cluster
from portal.access import OPERATE, appcode_for, appcodes_for, require_somewhere
from portal.errors import Conflict, FieldError, Invalid
from portal.manifests import parse
from portal.models import Appcode, User
from portal.pages.appcodes import person
from portal.pages.forms import show_errors
from portal.pages.layout import selected_appcode

FIELDS = {"metadata.name": "name", "metadata.appcode": "appcode", "spec": "stages"}
CLUSTER, TEMPLATE = "cluster:", "template:"
# How many of the newest clusters are offered as stages.
MOST_OFFERED = 100
START = """\
# Each stage is a cluster; docs and the form of New cluster say what its spec may have.
stages:
  - name: prepare
    spec:
      image: {image}
      command: echo "data" > /elearn/output/data.txt
      output: {output}
      roles: {{master: {{flavor: {flavor}}}}}
  - name: train
    spec:
      image: {image}
      command: cat /elearn/input/data.txt
      input: {{from: prepare}}   # what that stage has written; it is waited for
      roles: {{master: {{flavor: {flavor}}}}}
  - name: tell
    after: [train]
    when: failed               # or succeeded, or always
    spec:
      image: {image}
      command: echo "It has failed."
      roles: {{master: {{flavor: {flavor}}}}}
"""


class PipelineForm(forms.Form):
    """`view` is how the stages were written: as `cards`, or in `stages`, the spec as YAML or JSON. `focus` is the id of
    the element that a button moved or created."""

    use_required_attribute = False

    appcode = choice("Appcode")
    name = line(
        "Name",
        "At most 30 lower-case letters, digits and “-”. The cluster of its stage “train” is called NAME-train.",
        maxlength=30,
    )
    stages = area(
        "Stages",
        "The spec of its manifest, as YAML or JSON. Remarks are lost when it is shown as a form.",
        required=False,
        rows=26,
    )

    def __init__(
        self,
        user: User,
        data: QueryDict | None = None,
        *,
        cards: list[Card] | None = None,
        fixed: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(data, **options)
        self.user, self.focus = user, ""
        self.view = "yaml" if data is not None and data.get("view") != "form" else "form"
        sent = read_cards(data) if data is not None and self.view == "form" else cards or []
        self.cards = numbered(sent) if data is None else sent
        choose = self.fields["appcode"].widget
        assert isinstance(choose, forms.Select)
        codes = appcodes_for(user, OPERATE).order_by("code").values_list("code", flat=True)
        choose.choices = [(code, code) for code in codes]
        for name in ("appcode", "name"):
            self.fields[name].disabled = fixed

    @property
    def code(self) -> str:
        return str(self["appcode"].value() or "").replace("\0", "")

    def document(self) -> Any:
        """The spec as typed in either view. Raises Invalid."""
        return (
            {"stages": stages_of(self.cards)} if self.view == "form" else read_spec(str(self["stages"].value() or ""))
        )

    def manifest(self) -> PipelineManifest:
        """The manifest of a bound form. Raises Invalid."""
        if not self.is_valid():
            raise Invalid([])
        said = self.cleaned_data
        metadata = {"name": said["name"], "appcode": said["appcode"]}
        return parse(PipelineManifest, {"metadata": metadata, "spec": self.document()})

    def complain(self, errors: Iterable[FieldError]) -> None:
        """Puts each error beside the field that its path names. The text view has one field, so errors there include the path."""
        for error in errors:
            place = error.path[2] if error.path[:2] == ("spec", "stages") and len(error.path) > 2 else ""
            if self.view == "form" and place.isdecimal() and int(place) < len(self.cards):
                self.cards[int(place)].complain(error.path[3:], error.message)
                self.errors.setdefault(f"stage-{place}", self.error_class([error.message]))
            elif error.path[:1] == ("spec",) and self.view == "yaml":
                where = ".".join(error.path[1:])
                self.add_error("stages", f"{where}: {error.message}" if where else error.message)
            elif error.path[:1] == ("spec",):
                self.add_error(None, error.message)
            else:
                show_errors(self, Invalid([error]), FIELDS)

    def show(self, view: str) -> None:
        """Switches to the other view of the same stages. Raises Invalid where they cannot be read."""
        if view == self.view:
            return
        if view == "yaml":
            text = written(stages_of(self.cards))
        else:
            spec = spec_of(self.document())
            names = [stage.name for stage in spec.stages]
            self.cards = [card_of(each, names) for each in stages_in_short(spec, self.code)]
        # Displayed instead of the submitted data.
        said = {name: self.data.get(name) for name in self.data}
        self.data = {**said, "stages": text if view == "yaml" else ""}
        self.view = view

    def change(self, data: QueryDict) -> None:
        """Handles the buttons of cards: add, discard, up, down."""
        if "add" in data:
            if len(self.cards) >= MAX_STAGES:
                self.add_error(None, f"A pipeline has at most {MAX_STAGES} stages.")
                return
            self.cards.append(self._new(data.get("source", "").replace("\0", "")))
            self.focus = f"stage-{len(self.cards) - 1}-name"
        for act, step in (("up", -1), ("down", 1), ("discard", 0)):
            said = data.get(act, "")
            place = int(said) if said.isdecimal() and len(said) < 4 else len(self.cards)
            if place >= len(self.cards):
                continue
            card = self.cards.pop(place)
            if act == "discard":
                for other in self.cards:
                    other.after = [name for name in other.after if name != card.said["was"]]
                self.focus = f"stage-{min(place, len(self.cards) - 1)}-name"
            else:
                place = min(max(place + step, 0), len(self.cards))
                self.cards.insert(place, card)
                self.focus = f"stage-{place}-{act}"

    def _new(self, source: str) -> Card:
        """A stage copied from a cluster or template; an empty one for "". Raises Invalid if the source does not exist."""
        taken = {card.name for card in self.cards}
        try:
            if source.startswith(CLUSTER):
                name = source.removeprefix(CLUSTER)
                spec = ClusterSpec.stored(cluster_for(self.user, self.code, name).spec)
            elif source.startswith(TEMPLATE):
                whose, _, name = source.removeprefix(TEMPLATE).partition("/")
                spec = cluster_of(template_for(self.user, whose, name), self.code).spec
            else:
                return blank(free_name("stage", taken, MAX_NAME), **self._usual())
        except Http404 as absent:
            raise Invalid.at("spec", message=str(absent)) from None
        return stage_card(name, spec, self.code, taken)

    def _usual(self) -> dict[str, str]:
        usual = self.offer.defaults()
        smallest = min(self.offer.flavors, key=lambda flavor: (flavor.gpus, flavor.cpu_milli), default=None)
        return {"image": usual["image"], "flavor": smallest.name if smallest else "", "role": "master"}

    @cached_property
    def offer(self) -> Offer:
        return offer_of(self.user, self.code)

    @property
    def choices(self) -> dict[str, list[tuple[str, str]]]:
        found = self.offer.choices()
        stages = [(f"{STAGE}{card.name}", f"Output of stage {card.name}") for card in self.cards if card.name]
        inputs = [found["input"][0], *stages, *found["input"][1:]]
        flavors = [("", "as written below"), *((each.name, each.title) for each in self.offer.flavors)]
        best = [(card.name, card.name) for card in self.cards if card.said["kind"] == "sweep"]
        return {"image": found["image"], "input": inputs, "output": found["output"], "flavor": flavors, "best": best}

    @property
    def rows(self) -> list[tuple[Card, dict[str, list[tuple[str, str]]], list[str]]]:
        """Each card with its fields' choices, unavailable current values included, and the names of the other stages."""
        offered, found = self.choices if self.cards else {}, []
        for card in self.cards:
            own = {}
            for part, choices in offered.items():
                value = card.said[part]
                choices = [each for each in choices if part != "input" or each[0] != f"{STAGE}{card.name}"]
                known = value in dict(choices) or (part == "best" and not value)
                own[part] = (
                    choices if known else [*choices, (value, f"{value} (not available)" if value else "choose …")]
                )
            found.append((card, own, [other.name for other in self.cards if other is not card and other.name]))
        return found

    @property
    def sources(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The sources of a new stage, for the select beside Add."""
        clusters = clusters_for(self.user).filter(
            appcode__code=self.code, part_of="", spec__mode="batch", spec__framework__in=list(COMPUTING)
        )
        names = clusters.order_by("-pk").values_list("name", flat=True)[:MOST_OFFERED]
        rows = in_short(templates_for(self.user)).order_by("name")[:MOST_OFFERED]
        saved = [(f"{TEMPLATE}{row.appcode.code if row.appcode else Template.ME}/{row.name}", row.name) for row in rows]
        groups = [("As a cluster", [(f"{CLUSTER}{name}", name) for name in names]), ("As a template", saved)]
        return [group for group in groups if group[1]]


def spec_of(document: Any) -> PipelineSpec:
    """Raises Invalid, with the paths of a manifest."""
    try:
        return parse(PipelineSpec, document)
    except Invalid as invalid:
        raise Invalid([FieldError(("spec", *each.path), each.message) for each in invalid.errors]) from None


def stage_card(name: str, spec: ClusterSpec, appcode: str, taken: Container[str]) -> Card:
    said = short_spec(spec.model_copy(update={"schedule_after": None}), appcode)
    return card_of({"name": free_name(name, taken, MAX_NAME), "spec": said}, ())


def cards_of(clusters: Sequence[Cluster], appcode: str) -> list[Card]:
    """Stages copied from these clusters. Inputs from each other's output become inputs from stages. If there are none,
    each stage follows the cluster that was created before it."""
    names: dict[str, str] = {}
    for cluster in clusters:
        names[cluster.name] = free_name(cluster.name, set(names.values()), MAX_NAME)
    stages: list[dict[str, Any]] = []
    reads = False
    for cluster in clusters:
        spec = ClusterSpec.stored(cluster.spec).model_copy(update={"schedule_after": None})
        said = short_spec(spec, appcode)
        source = (spec.input.from_ or "").partition("/")[0] if spec.input else ""
        if source in names and source != cluster.name and isinstance(said["input"], dict):
            said["input"], reads = {**said["input"], "from": names[source]}, True
        stages.append({"name": names[cluster.name], "spec": said})
    if not reads:
        for before, stage in pairwise(stages):
            stage["after"] = [before["name"]]
    return [card_of(each, list(names.values())) for each in stages]


@require_http_methods(["GET", "HEAD", "POST"])
def new_pipeline(request: HttpRequest) -> HttpResponse:
    user = person(request)
    require_somewhere(user, OPERATE)
    if request.method == "POST" and "cluster" in request.POST:
        chosen = [each.replace("\0", "") for each in request.POST.getlist("cluster")]
        return _of_clusters(request, user, chosen)
    if request.method == "POST":
        return _sent(request, PipelineForm(user, request.POST), None)
    offer = offer_of(user, selected_appcode(request))
    flavors = sorted(offer.flavors, key=lambda flavor: (flavor.gpus, flavor.cpu_milli))
    usual = {
        "image": offer.defaults()["image"] or "IMAGE",
        "output": next((store.name for store in offer.datastores if "output" in store.name), "DATASTORE"),
        "flavor": flavors[0].name if flavors else "FLAVOR",
    }
    start = spec_of(read_spec(START.format(**usual)))
    return _page(request, _filled(user, start, offer.appcode, {"appcode": offer.appcode}), None)


@require_http_methods(["GET", "HEAD", "POST"])
def change_pipeline(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    found = pipeline_for(user, appcode, name, OPERATE)
    initial = {"appcode": appcode, "name": name}
    if request.method == "POST":
        return _sent(request, PipelineForm(user, request.POST, fixed=True, initial=initial), found)
    return _page(request, _filled(user, PipelineSpec.stored(found.spec), appcode, initial, fixed=True), found)


def _filled(
    user: User, spec: PipelineSpec, appcode: str, initial: dict[str, str], *, fixed: bool = False
) -> PipelineForm:
    names = [stage.name for stage in spec.stages]
    cards = [card_of(each, names) for each in stages_in_short(spec, appcode)]
    return PipelineForm(user, cards=cards, initial=initial, fixed=fixed)


def _of_clusters(request: HttpRequest, user: User, chosen: Sequence[str]) -> HttpResponse:
    """The clusters ticked in a list (repeated `cluster=APPCODE/NAME`) as stages."""
    codes = {each.partition("/")[0] for each in chosen}
    if len(codes) > 1 or len(chosen) > MAX_STAGES:
        why = (
            f"it has at most {MAX_STAGES} stages"
            if len(chosen) > MAX_STAGES
            else "all of its stages are of one appcode"
        )
        messages.error(request, f"No pipeline can be made of these: {why}.")
        return redirect("clusters")
    [code] = codes
    rows = clusters_for(user).filter(appcode__code=code, name__in=[each.partition("/")[2] for each in chosen])
    found = list(rows.order_by("pk"))
    unfit = [each.name for each in found if each.spec["mode"] == "service"]
    if unfit or not found:
        why = (
            f"{', '.join(unfit)} goes on until it is stopped, and a stage has to come to an end"
            if unfit
            else "they are gone"
        )
        messages.error(request, f"No pipeline can be made of these: {why}.")
        return redirect("clusters")
    appcode_for(user, code, OPERATE)
    return _page(request, PipelineForm(user, cards=cards_of(found, code), initial={"appcode": code}), None)


def _sent(request: HttpRequest, form: PipelineForm, found: Pipeline | None) -> HttpResponse:
    """Applies the button: changes cards, switches the view, checks, saves, or saves and runs."""
    user, drawing = person(request), None
    form.is_valid()
    try:
        if view := request.POST.get("to"):
            form.show("yaml" if view == "yaml" else "form")
        elif request.POST.keys() & {"add", "up", "down", "discard"}:
            form.change(request.POST)
        else:
            manifest = form.manifest()
            drawing = draw(manifest.spec.nodes)
            appcode = found.appcode if found else appcode_for(user, manifest.metadata.appcode, OPERATE)
            if "check" not in request.POST:
                saved = _saved(manifest, appcode, found, user, run="run" in request.POST)
                messages.success(request, f"{saved.name} is saved{' and runs' if 'run' in request.POST else ''}.")
                return redirect("pipeline", appcode.code, saved.name)
            actions.judge(manifest, appcode)
    except Invalid as invalid:
        form.complain(invalid.errors)
    except Conflict as conflict:
        form.add_error(None, f"{conflict} Nothing was saved: “Save” saves it without running it.")
    return _page(request, form, found, drawing)


def _page(
    request: HttpRequest, form: PipelineForm, found: Pipeline | None, drawing: Drawing | None = None
) -> HttpResponse:
    form.cards = numbered(form.cards)
    is_right = request.method == "POST" and drawing is not None and not form.errors
    context = {"form": form, "pipeline": found, "drawing": drawing, "checked": is_right}
    return render(request, "clusters/pipelines/form.html", context)


@transaction.atomic
def _saved(manifest: PipelineManifest, appcode: Appcode, found: Pipeline | None, user: User, *, run: bool) -> Pipeline:
    """Saves, and optionally runs; both or neither. Raises Invalid and Conflict."""
    if found:
        saved = actions.change_pipeline(found, manifest, acting_user=user)
    else:
        saved = actions.create_pipeline(manifest, appcode, acting_user=user)
    if run:
        actions.run_pipeline(saved, acting_user=user)
    return saved
