"""Pipelines: the list, one of them with its graph, and the form in which its manifest is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
import yaml
from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import conditional_page, require_http_methods, require_POST, require_safe
from yaml.events import AliasEvent
from yaml.nodes import Node as YamlNode

from clusters.api.pipelines import StageStatus, run_status
from clusters.manifest import ClusterManifest, ClusterSpec
from clusters.models import Pipeline, PipelineRun
from clusters.pages.conversion import short_document
from clusters.pages.create import offer_of
from clusters.pages.raw_text import Words
from clusters.pipelines import actions
from clusters.pipelines.access import pipeline_for, pipelines_for
from clusters.pipelines.drawing import Box, Drawing, draw
from clusters.pipelines.graph import ENDED
from clusters.pipelines.manifest import PipelineManifest, PipelineSpec
from portal.access import OPERATE, appcode_for, appcodes_for, may, require_somewhere
from portal.errors import Conflict, Invalid
from portal.limits import refuse_nul
from portal.manifests import parse
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.forms import show_errors
from portal.pages.layout import matching, page_of, selected_appcode, words

RUNS = 20
# YAML is read by Python alone; what is larger comes as JSON.
MAX_YAML = 128 * 1024
FIELDS = {"metadata.name": "name", "metadata.appcode": "appcode", "spec": "stages"}
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


_TRUTH = "tag:yaml.org,2002:bool"


class PipelineForm(forms.Form):
    """`stages` is the spec of a manifest, as YAML or JSON."""

    use_required_attribute = False

    appcode = Words(label="Appcode", widget=forms.Select())
    name = Words(
        label="Name",
        help_text="At most 30 lower-case letters, digits and “-”. The cluster of its stage “train” is called NAME-train.",
        widget=forms.TextInput(
            attrs={"maxlength": 30, "autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
        ),
    )
    stages = Words(
        label="Stages",
        help_text="The spec of its manifest, as YAML or JSON.",
        widget=forms.Textarea(attrs={"rows": 26, "class": "code", "spellcheck": "false"}),
    )

    def __init__(self, user: User, *args: Any, fixed: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        choose = self.fields["appcode"].widget
        assert isinstance(choose, forms.Select)
        codes = appcodes_for(user, OPERATE).order_by("code").values_list("code", flat=True)
        choose.choices = [(code, code) for code in codes]
        for name in ("appcode", "name"):
            self.fields[name].disabled = fixed

    def manifest(self) -> PipelineManifest:
        """Raises Invalid. To be called on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        said = self.cleaned_data
        metadata = {"name": said["name"], "appcode": said["appcode"]}
        return parse(PipelineManifest, {"metadata": metadata, "spec": read_spec(said["stages"])})


class _Plain(yaml.SafeLoader):
    """What JSON can say: without tags, without aliases, by which a short text may stand for one without end, and `on`, which a
    hook has, is a word, as YAML 1.2 has it."""

    def compose_node(self, parent: YamlNode | None, index: int) -> YamlNode | None:
        if self.check_event(AliasEvent):
            raise yaml.composer.ComposerError(problem="aliases are not read")
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None):  # by which anything may be asked to be a number or a day
            raise yaml.composer.ComposerError(problem="tags are not read")
        return super().compose_node(parent, index)


_Plain.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != _TRUTH]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Plain.add_implicit_resolver(_TRUTH, re.compile("true|True|TRUE|false|False|FALSE"), list("tTfF"))


def read_spec(text: str) -> Any:
    """What was typed as YAML or JSON; a whole manifest stands for its spec. Raises Invalid."""
    try:
        value = orjson.loads(text) if text.lstrip().startswith("{") else _yaml(text)
    except orjson.JSONDecodeError as error:
        sentence = f"This is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        raise Invalid.at("spec", message=sentence) from error
    refuse_nul(value)
    return value["spec"] if isinstance(value, dict) and "spec" in value and "stages" not in value else value


def _yaml(text: str) -> Any:
    if len(text) > MAX_YAML:
        raise Invalid.at("spec", message=f"YAML is read up to {MAX_YAML // 1024} KiB; send a longer one as JSON.")
    try:
        # Keys that are numbers and the like, which a body of REST cannot have either, are refused on the way through JSON.
        return orjson.loads(orjson.dumps(yaml.load(text, Loader=_Plain)))  # noqa: S506 # nosec B506  a SafeLoader that reads even less
    except orjson.JSONEncodeError as error:
        raise Invalid.at("spec", message=f"This YAML says what JSON cannot: {error}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise Invalid.at(
            "spec", message=f"This is not YAML: {getattr(error, 'problem', '') or error}{where}."
        ) from error
    except (RecursionError, ValueError, ArithmeticError) as error:
        raise Invalid.at("spec", message="This is not YAML that can be read here.") from error


def write_spec(spec: PipelineSpec, appcode: str) -> str:
    """A spec as people would write it, without what is the default anyway."""
    stages = []
    for stage in spec.stages:
        said = stage.model_dump(mode="json", by_alias=True, exclude={"spec"}, exclude_defaults=True)
        if stage.spec:
            said["spec"] = _short(stage.spec, appcode)
        if stage.sweep:
            said["sweep"]["template"] = _short(stage.sweep.template, appcode)
        stages.append(said)
    text: str = yaml.safe_dump({"stages": stages}, sort_keys=False, allow_unicode=True, width=110)
    return text


def _short(said: ClusterSpec, appcode: str) -> dict[str, Any]:
    """With roles as they are usually said."""
    cluster = ClusterManifest.model_validate({"metadata": {"name": "x", "appcode": appcode}, "spec": said})
    spec = short_document(cluster)["spec"]
    plain = {"count": 1, "endpoints": []}
    roles = {
        role: {key: value for key, value in said.items() if key not in plain or value != plain[key]}
        for role, said in spec["roles"].items()
    }
    return {**spec, "roles": roles}


@dataclass(frozen=True)
class Stage:
    """A stage on the page: where it stands, how far it is (None before the first run) and what it has cost."""

    box: Box
    waits_for: tuple[str, ...]
    when: str
    status: StageStatus | None
    can_retry: bool

    @property
    def name(self) -> str:
        return self.box.name

    @property
    def state(self) -> str:
        """While it runs, the phase of its run."""
        if self.status is None:
            return ""
        return self.status.run_phase or "Running" if self.status.phase == "Running" else self.status.phase

    @property
    def why(self) -> str:
        """What its state does not say."""
        plain = self.status is None or (self.status.phase == "Succeeded" and not self.status.reused)
        return "" if plain or self.status is None else self.status.message

    @property
    def cost(self) -> Decimal:
        return Decimal(self.status.cost.amount) if self.status else Decimal(0)


@dataclass(frozen=True)
class Page:
    pipeline: Pipeline
    run: PipelineRun | None
    drawing: Drawing
    stages: list[Stage]
    cost: Decimal
    gpu_seconds: int
    may_operate: bool

    @property
    def url(self) -> str:
        return reverse("pipeline", args=[self.pipeline.appcode.code, self.pipeline.name])

    @property
    def is_latest(self) -> bool:
        return self.run is None or self.run.pk == self.pipeline.current_run_id

    @property
    def query(self) -> str:
        return "" if self.is_latest or self.run is None else f"?run={self.run.number}"

    @property
    def lives(self) -> bool:
        return self.run is not None and self.run.finished_at is None


def shown(request: HttpRequest, appcode: str, name: str) -> Page:
    user = person(request)
    pipeline = pipeline_for(user, appcode, name)
    run, number = pipeline.current_run, words(request, "run")
    if number.isdecimal() and len(number) < 9:
        run = pipeline.runs.select_related("created_by").filter(number=int(number)).first() or run
    spec = PipelineSpec.model_validate(run.spec if run else pipeline.spec)
    status = run_status(run) if run else None
    by_name = {stage.name: stage for stage in status.stages} if status else {}
    may_operate, nodes = may(user, pipeline.appcode, OPERATE), spec.nodes
    drawing = draw(nodes)
    latest = run is not None and run.pk == pipeline.current_run_id and not (run.cancelled_at and not run.finished_at)
    stages = [
        Stage(
            box, node.waits_for, node.when, found := by_name.get(box.name),
            can_retry=bool(found and may_operate and latest and found.phase in ENDED),
        )
        for box, node in zip(drawing.boxes, nodes, strict=True)
    ]  # fmt: skip
    cost = Decimal(status.cost.amount) if status else Decimal(0)
    return Page(pipeline, run, drawing, stages, cost, status.gpu_seconds if status else 0, may_operate)


@require_safe
def pipelines(request: HttpRequest) -> HttpResponse:
    user, code = person(request), selected_appcode(request)
    rows = pipelines_for(user)
    rows = matching(rows.filter(appcode__code=code) if code else rows, words(request), "name")
    found, following = page_of(request, rows, "-id")
    context = {"rows": found, "next_cursor": following, "searched": words(request)}
    return render(request, "clusters/pipelines.html", context)


@require_safe
def pipeline(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    page = shown(request, appcode, name)
    runs = page.pipeline.runs.select_related("created_by").defer("spec")[:RUNS]
    spec = PipelineSpec.model_validate(page.pipeline.spec)
    context = {"page": page, "runs": runs, "manifest": write_spec(spec, appcode)}
    return render(request, "clusters/pipeline.html", context)


@require_safe
@conditional_page
def progress(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The live part: state, cost, graph and stages."""
    return render(request, "clusters/_pipeline.html", {"page": shown(request, appcode, name)})


@require_http_methods(["GET", "HEAD", "POST"])
def new_pipeline(request: HttpRequest) -> HttpResponse:
    user = person(request)
    require_somewhere(user, OPERATE)
    if request.method == "POST":
        return _sent(request, PipelineForm(user, request.POST), None)
    offer = offer_of(user, selected_appcode(request))
    flavors = sorted(offer.flavors, key=lambda flavor: (flavor.gpus, flavor.cpu_milli))
    usual = {
        "image": offer.defaults()["image"] or "IMAGE",
        "output": next((store.name for store in offer.datastores if "output" in store.name), "DATASTORE"),
        "flavor": flavors[0].name if flavors else "FLAVOR",
    }
    form = PipelineForm(user, initial={"appcode": offer.appcode, "stages": START.format(**usual)})
    return render(request, "clusters/pipeline_form.html", {"form": form})


@require_http_methods(["GET", "HEAD", "POST"])
def change_pipeline(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    found = pipeline_for(user, appcode, name, OPERATE)
    text = write_spec(PipelineSpec.model_validate(found.spec), appcode)
    initial = {"appcode": appcode, "name": name, "stages": text}
    if request.method == "POST":
        return _sent(request, PipelineForm(user, request.POST, fixed=True, initial=initial), found)
    form = PipelineForm(user, initial=initial, fixed=True)
    return render(request, "clusters/pipeline_form.html", {"form": form, "pipeline": found})


def _sent(request: HttpRequest, form: PipelineForm, found: Pipeline | None) -> HttpResponse:
    """Checked only, saved, or saved and run, as the button says."""
    user, drawing = person(request), None
    try:
        manifest = form.manifest()
        drawing = draw(manifest.spec.nodes)
        appcode = found.appcode if found else appcode_for(user, manifest.metadata.appcode, OPERATE)
        if "check" in request.POST:
            actions.judge(manifest, appcode)
        else:
            if found:
                saved = actions.change_pipeline(found, manifest, acting_user=user)
            else:
                saved = actions.create_pipeline(manifest, appcode, acting_user=user)
            if "run" in request.POST:
                actions.run_pipeline(saved, acting_user=user)
            messages.success(request, f"{saved.name} is saved{' and runs' if 'run' in request.POST else ''}.")
            return redirect("pipeline", appcode.code, saved.name)
    except Invalid as invalid:
        # One field has them all, so each says where in it.
        inside = [error for error in invalid.errors if error.path[:1] == ("spec",)]
        show_errors(form, Invalid([error for error in invalid.errors if error not in inside]), FIELDS)
        for error in inside:
            where = ".".join(error.path[1:])
            form.add_error("stages", f"{where}: {error.message}" if where else error.message)
    except Conflict as conflict:
        form.add_error(None, f"It is saved. {conflict}")
    context = {"form": form, "pipeline": found, "drawing": drawing, "checked": not form.errors}
    return render(request, "clusters/pipeline_form.html", context)


@require_POST
def run(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = pipeline_for(person(request), appcode, name, OPERATE)
    fresh, newest = "fresh" in request.GET, "newest" in request.GET
    return _act(
        request, found, lambda: actions.run_pipeline(found, acting_user=person(request), fresh=fresh, newest=newest)
    )


@require_POST
def cancel(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = pipeline_for(person(request), appcode, name, OPERATE)
    return _act(request, found, lambda: actions.cancel_pipeline(found, acting_user=person(request)))


@require_POST
def retry(request: HttpRequest, appcode: str, name: str, stage: str) -> HttpResponse:
    found = pipeline_for(person(request), appcode, name, OPERATE)
    return _act(request, found, lambda: actions.retry_stage(found, stage, acting_user=person(request)))


@require_POST
def delete(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = pipeline_for(person(request), appcode, name, OPERATE)
    actions.delete_pipeline(found, acting_user=person(request))
    messages.success(request, f"The pipeline {name} is deleted.")
    return redirect("pipelines")


def _act(request: HttpRequest, found: Pipeline, do: Any) -> HttpResponse:
    try:
        do()
    except Conflict as conflict:
        messages.error(request, str(conflict))
    except Invalid as invalid:
        messages.error(request, " ".join(error.message for error in invalid.errors))
    return redirect("pipeline", found.appcode.code, found.name)
