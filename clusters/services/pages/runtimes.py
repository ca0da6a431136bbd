"""Administrators' pages of serving runtimes. The portal's own runtime has a fixed start command; only its texts, its
drain time and whether it is offered can be changed."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods, require_safe

from clusters.catalog.models import ServingRuntime
from clusters.catalog.pages.offers import edit_offer, offer_named
from clusters.frame.env_text import read_env, write_env
from clusters.frameworks.runtimes import FOLDER, PROTOCOLS
from clusters.model_registry.manifest import FORMATS
from portal.access import require_administrator
from portal.pages.appcodes import person
from portal.pages.forms import prose

OF_PORTAL = ("title", "description", "drain_seconds", "enabled")
CODE = {"class": "code", "autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
PLACES = "{model}, {version} and {port} become those of the replica."


class RuntimeForm(forms.Form):
    use_required_attribute = False
    title = forms.CharField(max_length=60)
    name = forms.CharField(max_length=40, help_text="What manifests say, e.g. triton. It cannot be changed later.")
    description = prose("Description", required=False, rows=2, most=500)
    formats = forms.MultipleChoiceField(
        choices=[*FORMATS.items()],
        widget=forms.CheckboxSelectMultiple,
        help_text="Of models that it serves; others are refused.",
    )
    protocols = forms.MultipleChoiceField(
        choices=[*PROTOCOLS.items()],
        widget=forms.CheckboxSelectMultiple,
        help_text="By which it is asked; the page of a service shows how.",
    )
    image = forms.CharField(
        label="Container",
        max_length=300,
        required=False,
        widget=forms.TextInput(attrs=CODE),
        help_text="Its reference, for Kubernetes alone. Empty: it is started in the image of the service, also on this machine.",
    )
    command = forms.CharField(
        max_length=10_000,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, **CODE}),
        help_text=f"Divided into words as a shell does, and run without one. {PLACES}",
    )
    env = forms.CharField(
        max_length=10_000,
        required=False,
        widget=forms.TextInput(attrs=CODE),
        help_text="A=1 | B=2; those of a service go before them.",
    )
    port = forms.IntegerField(min_value=1024, max_value=65535, initial=8501)
    health = forms.CharField(
        label="Health path",
        max_length=200,
        initial="/v2/health/ready",
        widget=forms.TextInput(attrs=CODE),
        help_text=f"Answered without an error as soon as the model is loaded. {PLACES}",
    )
    folder = forms.CharField(
        label="Folder of the model",
        max_length=200,
        initial=FOLDER,
        widget=forms.TextInput(attrs=CODE),
        help_text="Where it reads it, e.g. /models/{model}/{version}. Without a container always /elearn/model.",
    )
    warm_up_seconds = forms.IntegerField(
        label="Warm up",
        min_value=0,
        max_value=3600,
        initial=0,
        help_text="Seconds of health before it is asked anything.",
    )
    drain_seconds = forms.IntegerField(
        label="Drain",
        min_value=0,
        max_value=3600,
        initial=30,
        help_text="Seconds for which a replica that is to end may answer what it was asked before.",
    )
    enabled = forms.BooleanField(label="Offered in forms", required=False, initial=True)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.initial.get("name") == ServingRuntime.PORTAL:
            for name, field in self.fields.items():
                field.disabled = name not in OF_PORTAL

    def clean_env(self) -> dict[str, str]:
        try:
            return read_env(self.cleaned_data["env"])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error

    def write(self, runtime: ServingRuntime) -> ServingRuntime:
        runtime.name = runtime.name or self.cleaned_data["name"]
        for name in self.fields:
            if name != "name":
                setattr(runtime, name, self.cleaned_data[name])
        return runtime

    @staticmethod
    def filled(runtime: ServingRuntime) -> dict[str, Any]:
        facts = {name: getattr(runtime, name) for name in RuntimeForm.base_fields}
        return {**facts, "env": write_env(runtime.env)}


@require_safe
def runtimes(request: HttpRequest) -> HttpResponse:
    require_administrator(person(request))
    return render(request, "clusters/services/runtimes.html", {"runtimes": ServingRuntime.objects.all()})


@require_http_methods(["GET", "HEAD", "POST"])
def runtime(request: HttpRequest, name: str | None = None) -> HttpResponse:
    require_administrator(person(request))
    return edit_offer(request, RuntimeForm, offer_named(ServingRuntime, name), "admin_runtimes", "Serving runtime")
