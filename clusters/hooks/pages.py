"""The pages of an appcode's hooks: the list, with examples to start from, and one hook to view, change and delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from clusters.catalog.models import Flavor, Image
from clusters.cluster.form.choices import WHEN
from clusters.frame.env_text import read_env, write_env
from clusters.frame.form import ManifestForm, area, choice, line, number
from clusters.frame.raw_text import Words
from clusters.hooks.actions import (
    HOOKS,
    MAX_DESCRIPTION,
    HookManifest,
    change_hook,
    create_hook,
    delete_hook,
    hook_for,
)
from clusters.hooks.models import Hook
from clusters.manifest.hook_spec import MAX_HOOK_NAME, MAX_MODEL_NAME, OUTPUT_PATH, TIME_LIMIT, HookWork
from clusters.manifest.hook_starters import STARTERS
from clusters.runs.models import Cluster
from datastores.models import Datastore
from portal.access import OPERATE, VIEW, appcode_for, may
from portal.errors import FieldError, Invalid
from portal.manifests import parse
from portal.models import Appcode
from portal.pages.appcodes import person
from portal.web.limits import refuse_nul

FIELD_OF_PATH = {
    "metadata.name": "name",
    "metadata.description": "description",
    "spec.timeLimit": "time_limit",
    "spec.outputPath": "output_path",
    **{f"spec.{each}": each for each in ("on", "command", "image", "flavor", "env", "retries", "output", "model")},
}
# How many clusters the page of a hook lists as its users.
MOST_USERS = 50


class HookForm(ManifestForm[HookManifest]):
    manifest_class = HookManifest
    paths = FIELD_OF_PATH

    name = line("Name", "Lower-case letters, digits and “-”; clusters use it by that.", maxlength=MAX_HOOK_NAME)
    description = Words(
        label="Description",
        required=False,
        widget=forms.TextInput(attrs={"maxlength": MAX_DESCRIPTION, "autocomplete": "off"}),
    )
    on = choice("When", choices=WHEN, initial="success")
    command = area(
        "Command",
        "Run as bash -o pipefail -c “…”. What the run wrote is at $PORTAL_OUTPUT; PORTAL_PHASE, PORTAL_METRICS, "
        "PORTAL_FACTS and others say how it went. Before the run, what it is to read is at $PORTAL_INPUT.",
        rows=10,
        autocomplete="off",
    )
    env = area(
        "Environment variables",
        "One NAME=value per line, or separated by |. A cluster that uses it can add to them.",
        required=False,
        rows=2,
        autocomplete="off",
    )
    image = choice("Image", required=False)
    flavor = choice("Flavor", required=False)
    output = choice("Output", "mounted at /elearn/output", required=False)
    output_path = line(
        "Output folder",
        f"{OUTPUT_PATH} where it is empty; name and run are those that it follows.",
        required=False,
        code=True,
    )
    model = line(
        "Registers a version of the model",
        "With model-version.json in its output: {} is enough there. {name} is that of the cluster. Empty: none.",
        required=False,
        maxlength=MAX_MODEL_NAME,
    )
    time_limit = number("Time limit in seconds", f"{TIME_LIMIT} where it is empty.", required=False)
    retries = number(
        "Retries", "How often it may fail and be started again; 0 where it is empty.", required=False, min=0, max=10
    )

    def __init__(self, appcode: Appcode, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.appcode = appcode
        stores = Datastore.objects.filter(appcode=appcode).values_list("name", "name")
        for name, first, offered in (
            ("image", "That of the run", Image.objects.filter(enabled=True).values_list("name", "title")),
            ("flavor", "The smallest", Flavor.objects.filter(enabled=True).values_list("name", "title")),
            ("output", "That of the run", stores),
        ):
            self.offer_kept(name, [("", first), *offered])

    def document(self, said: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
        try:
            env = read_env(said["env"])
        except ValueError as error:
            raise Invalid.at("spec", "env", message=str(error)) from None
        spec: dict[str, Any] = {"on": said["on"], "command": said["command"] or None, "env": env}
        for key, name in (
            ("image", "image"),
            ("flavor", "flavor"),
            ("output", "output"),
            ("outputPath", "output_path"),
            ("model", "model"),
        ):
            spec[key] = said[name] or None
        for key, name in (("timeLimit", "time_limit"), ("retries", "retries")):
            spec[key] = said[name].strip() or None
        document = {"metadata": {"name": said["name"], "description": said["description"]}, "spec": spec}
        refuse_nul(document)
        return document, []

    def read(self, document: Any) -> HookManifest:
        return parse(HookManifest, document, appcode=self.appcode.code)


@require_http_methods(["GET", "HEAD", "POST"])
def hooks(request: HttpRequest, code: str) -> HttpResponse:
    """The list. POST adds a hook; `?example=NAME` fills in the form."""
    user = person(request)
    appcode = appcode_for(user, code, OPERATE if request.method == "POST" else VIEW)
    example = STARTERS.get(request.GET.get("example", ""))
    sent = request.POST if request.method == "POST" else None
    form = HookForm(appcode, sent, initial=vars(example) if example and sent is None else {})
    if made := form.attempt(lambda manifest: create_hook(manifest, appcode, acting_user=user), show_denied=False):
        messages.success(request, f"{made.name} is saved: tick it on the form of a cluster, under “Hooks”.")
        return redirect("hooks", code)
    context = {
        "appcode": appcode,
        "rows": [(row, HookWork.stored(row.spec)) for row in HOOKS.within(user, code).order_by("name")],
        "examples": STARTERS.values(),
        "chosen": example,
        "form": form,
        "may_operate": may(user, appcode, OPERATE),
    }
    return render(request, "clusters/hooks/hooks.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def hook(request: HttpRequest, code: str, name: str) -> HttpResponse:
    user = person(request)
    shown = hook_for(user, code, name, OPERATE if request.method == "POST" else VIEW)
    form = HookForm(shown.appcode, request.POST or None, initial=fields_of(shown))
    form.fix("name")
    if form.attempt(lambda manifest: change_hook(shown, manifest, acting_user=user), show_denied=False):
        messages.success(request, f"{name} is changed, for runs that are submitted from now on.")
        return redirect("hook", code, name)
    users = Cluster.objects.filter(
        appcode=shown.appcode, deleted_at=None, part_of="", spec__hooks__contains=[{"use": name}]
    )
    context = {
        "appcode": shown.appcode,
        "shown": shown,
        "form": form,
        "users": users.order_by("name").values_list("name", flat=True)[:MOST_USERS],
        "may_operate": may(user, shown.appcode, OPERATE),
    }
    return render(request, "clusters/hooks/hook.html", context)


@require_POST
def delete(request: HttpRequest, code: str, name: str) -> HttpResponse:
    user = person(request)
    delete_hook(hook_for(user, code, name, OPERATE), acting_user=user)
    messages.success(request, f"The hook {name} is deleted.")
    return redirect("hooks", code)


def fields_of(row: Hook) -> dict[str, str]:
    spec = HookWork.stored(row.spec)
    return {
        "name": row.name,
        "description": row.description,
        "on": spec.when,
        "command": spec.command or "",
        "env": write_env(spec.env),
        "image": spec.image or "",
        "flavor": spec.flavor or "",
        "output": spec.output or "",
        "output_path": spec.output_path or "",
        "model": spec.model or "",
        "time_limit": str(spec.time_limit or ""),
        "retries": "" if spec.retries is None else str(spec.retries),
    }
