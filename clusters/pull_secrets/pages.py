"""The administrators' page of registries: lists pull secrets by business line, saves and removes them."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from clusters.frame.form import line as text_line
from clusters.frame.raw_text import Words
from clusters.pull_secrets.actions import PullSecretSpec, line_at, pull_secrets, remove_secret, save_secret
from portal.access import require_administrator
from portal.errors import Invalid
from portal.manifests import parse
from portal.models import OrgNode
from portal.pages.appcodes import person
from portal.pages.forms import show_errors


class SecretForm(forms.Form):
    use_required_attribute = False

    line = forms.ChoiceField(label="Business line")
    host = text_line(
        "Registry", "As image names begin, for example registry.example.com; docker.io for names without one."
    )
    username = text_line("User name")
    password = Words(
        label="Password",
        help_text="Or a token; one that may only pull is enough. It is encrypted and never shown again.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        paths = OrgNode.objects.filter(namespace__isnull=False).order_by("path").values_list("path", flat=True)
        self.fields["line"].choices = [(path, path) for path in paths]  # type: ignore[attr-defined]


@require_http_methods(["GET", "HEAD", "POST"])
def registries(request: HttpRequest) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    form = SecretForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        said = form.cleaned_data
        try:
            spec = parse(PullSecretSpec, {key: said[key].strip() for key in ("username", "password")})
            made = save_secret(line_at(said["line"]), said["host"].strip().lower(), spec, acting_user=user)
        except Invalid as error:
            show_errors(form, error, {each: each for each in ("host", "username", "password")})
        else:
            messages.success(request, f"Images of {made.line.path} are fetched from {made.host} with it from now on.")
            return redirect("admin_registries")
    return render(request, "clusters/pull_secrets/registries.html", {"rows": pull_secrets(user), "form": form})


@require_POST
def remove(request: HttpRequest) -> HttpResponse:
    path, host = request.POST.get("line", "")[:200], request.POST.get("host", "")[:255]
    remove_secret(path, host, acting_user=person(request))
    messages.success(request, f"The pull secret of {path} for {host} is forgotten.")
    return redirect("admin_registries")
