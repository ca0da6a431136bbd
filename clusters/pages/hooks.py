"""The pages of an appcode's hooks: the list, with examples to start from, and one hook to be read, changed and deleted."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from clusters.after import MAX_HOOK_NAME, MAX_MODEL_NAME, OUTPUT_PATH, TIME_LIMIT, HookWork
from clusters.models import Cluster, Flavor, Hook, Image
from clusters.pages.choices import WHEN
from clusters.pages.conversion import read_env, write_env
from clusters.pages.raw_text import Words
from clusters.run_hooks.examples import EXAMPLES
from clusters.run_hooks.saved import (
    MAX_DESCRIPTION,
    HookManifest,
    change_hook,
    create_hook,
    delete_hook,
    hook_for,
    hooks_in,
)
from datastores.models import Datastore
from portal.access import OPERATE, VIEW, appcode_for, may
from portal.errors import Invalid
from portal.limits import refuse_nul
from portal.manifests import parse
from portal.models import Appcode
from portal.pages.appcodes import person
from portal.pages.forms import show_errors

PLAIN = {"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
CODE = {"class": "code", **PLAIN}
FIELD_OF_PATH = {
    "metadata.name": "name",
    "metadata.description": "description",
    "spec.timeLimit": "time_limit",
    "spec.outputPath": "output_path",
    **{f"spec.{each}": each for each in ("on", "command", "image", "flavor", "env", "retries", "output", "model")},
}
# Clusters of the appcode that are named on the page of a hook which they use.
MOST_USERS = 50


class HookForm(forms.Form):
    use_required_attribute = False

    name = Words(
        label="Name",
        help_text="Lower-case letters, digits and “-”; clusters use it by that.",
        widget=forms.TextInput(attrs={"maxlength": MAX_HOOK_NAME, **PLAIN}),
    )
    description = Words(
        label="Description",
        required=False,
        widget=forms.TextInput(attrs={"maxlength": MAX_DESCRIPTION, "autocomplete": "off"}),
    )
    on = Words(
        label="When",
        initial="success",
        widget=forms.Select(choices=list(WHEN)),
    )
    command = Words(
        label="Command",
        help_text="Run as bash -o pipefail -c “…”. What the run wrote is at $PORTAL_OUTPUT; PORTAL_PHASE, PORTAL_METRICS, "
        "PORTAL_FACTS and others say how it went. Before the run, what it is to read is at $PORTAL_INPUT.",
        widget=forms.Textarea(attrs={"rows": 10, **CODE}),
    )
    env = Words(
        label="Environment variables",
        required=False,
        help_text="One NAME=value per line, or separated by |. A cluster that uses it can add to them.",
        widget=forms.Textarea(attrs={"rows": 2, **CODE}),
    )
    image = Words(label="Image", required=False, widget=forms.Select())
    flavor = Words(label="Flavor", required=False, widget=forms.Select())
    output = Words(label="Output", required=False, help_text="mounted at /elearn/output", widget=forms.Select())
    output_path = Words(
        label="Output folder",
        required=False,
        help_text=f"{OUTPUT_PATH} where it is empty; name and run are those that it follows.",
        widget=forms.TextInput(attrs=CODE),
    )
    model = Words(
        label="Registers a version of the model",
        required=False,
        help_text="With model-version.json in its output: {} is enough there. {name} is that of the cluster. Empty: none.",
        widget=forms.TextInput(attrs={"maxlength": MAX_MODEL_NAME, **PLAIN}),
    )
    time_limit = Words(
        label="Time limit in seconds",
        required=False,
        help_text=f"{TIME_LIMIT} where it is empty.",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"}),
    )
    retries = Words(
        label="Retries",
        required=False,
        help_text="How often it may fail and be started again; 0 where it is empty.",
        widget=forms.NumberInput(attrs={"min": 0, "max": 10, "step": 1, "inputmode": "numeric"}),
    )

    def __init__(self, appcode: Appcode, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        stores = Datastore.objects.filter(appcode=appcode).values_list("name", "name")
        for name, first, offered in (
            ("image", "That of the run", Image.objects.filter(enabled=True).values_list("name", "title")),
            ("flavor", "The smallest", Flavor.objects.filter(enabled=True).values_list("name", "title")),
            ("output", "That of the run", stores),
        ):
            choices = [("", first), *offered]
            value = str(self[name].value() or "")
            if value not in dict(choices):
                choices.append((value, f"{value} (not available)"))
            choose = self.fields[name].widget
            assert isinstance(choose, forms.Select)
            choose.choices = choices

    def manifest(self, appcode: Appcode) -> HookManifest:
        """Raises Invalid."""
        said = self.cleaned_data
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
        return parse(HookManifest, document, appcode=appcode.code)


@require_http_methods(["GET", "HEAD", "POST"])
def hooks(request: HttpRequest, code: str) -> HttpResponse:
    """The list; by POST a new one. `?example=NAME` fills the form."""
    user = person(request)
    appcode = appcode_for(user, code, OPERATE if request.method == "POST" else VIEW)
    example = EXAMPLES.get(request.GET.get("example", ""))
    if request.method == "POST":
        form = HookForm(appcode, request.POST)
        if form.is_valid():
            try:
                made = create_hook(form.manifest(appcode), appcode, acting_user=user)
            except Invalid as invalid:
                show_errors(form, invalid, FIELD_OF_PATH)
            else:
                messages.success(
                    request,
                    f"{made.name} is saved: tick it on the form of a cluster, below “Before and after the run”.",
                )
                return redirect("hooks", code)
    else:
        form = HookForm(appcode, initial=vars(example) if example else {})
    context = {
        "appcode": appcode,
        "rows": [(row, HookWork.model_validate(row.spec)) for row in hooks_in(user, code).order_by("name")],
        "examples": EXAMPLES.values(),
        "chosen": example,
        "form": form,
        "may_operate": may(user, appcode, OPERATE),
    }
    return render(request, "clusters/hooks.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def hook(request: HttpRequest, code: str, name: str) -> HttpResponse:
    user = person(request)
    shown = hook_for(user, code, name, OPERATE if request.method == "POST" else VIEW)
    form = HookForm(shown.appcode, request.POST or None, initial=_fields(shown))
    form.fields["name"].disabled = True
    if request.method == "POST" and form.is_valid():
        try:
            change_hook(shown, form.manifest(shown.appcode), acting_user=user)
        except Invalid as invalid:
            show_errors(form, invalid, FIELD_OF_PATH)
        else:
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
    return render(request, "clusters/hook.html", context)


@require_POST
def delete(request: HttpRequest, code: str, name: str) -> HttpResponse:
    user = person(request)
    delete_hook(hook_for(user, code, name, OPERATE), acting_user=user)
    messages.success(request, f"The hook {name} is deleted.")
    return redirect("hooks", code)


def _fields(row: Hook) -> dict[str, str]:
    spec = HookWork.model_validate(row.spec)
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
