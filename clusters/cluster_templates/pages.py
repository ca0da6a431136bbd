"""Templates: the list, one template, and the page that saves one from a cluster or from the New Cluster form."""

from __future__ import annotations

import json
from typing import Any

import orjson
from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from clusters.access import cluster_for, run_for
from clusters.cluster.form.data import short_document
from clusters.cluster.form.new import form_page, run_number, sent_form
from clusters.cluster_templates.actions import (
    MAX_DESCRIPTION,
    TemplateManifest,
    change_template,
    cluster_of,
    create_template,
    delete_template,
    in_short,
    in_words,
    template_for,
    templates_for,
)
from clusters.cluster_templates.models import Template
from clusters.frame.form import choice, line
from clusters.frame.raw_text import Words
from clusters.frameworks import ROLES
from clusters.manifest.cluster import ClusterManifest, ClusterSpec
from portal.access import OPERATE, VIEW, appcode_for, appcodes_for, may
from portal.errors import Invalid
from portal.manifests import parse
from portal.models import User
from portal.pages.appcodes import person, safe_next
from portal.pages.forms import show_errors
from portal.pages.layout import matching, page_of, selected_appcode, words
from portal.web.limits import refuse_nul

FIELDS = {"metadata.name": "name", "metadata.description": "description", "metadata.appcode": "whose"}


class NameForm(forms.Form):
    use_required_attribute = False

    name = line("Name", "Lower-case letters, digits and “-”.", maxlength=40)
    description = Words(
        label="Description",
        required=False,
        help_text="What it is good for, in a line.",
        widget=forms.TextInput(attrs={"maxlength": MAX_DESCRIPTION, "autocomplete": "off"}),
    )


class SaveForm(NameForm):
    """`spec` is the spec to save, as JSON."""

    whose = choice("For")
    replace = forms.BooleanField(label="Replace the template of this name", required=False)
    spec = Words(widget=forms.HiddenInput())

    field_order = ("name", "whose", "description")

    def __init__(self, user: User, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        codes = appcodes_for(user, OPERATE).order_by("code").values_list("code", flat=True)
        choose = self.fields["whose"].widget
        assert isinstance(choose, forms.Select)
        choose.choices = [(Template.ME, "Me alone"), *((code, f"All of {code}") for code in codes)]

    @property
    def manifest(self) -> TemplateManifest:
        """The manifest. Raises Invalid."""
        said = self.cleaned_data
        metadata = {"name": said["name"], "description": said["description"]}
        appcode = said["whose"] if said["whose"] != Template.ME else None
        try:
            spec = orjson.loads(said["spec"])
        except orjson.JSONDecodeError:
            spec = None
        refuse_nul(spec)
        return parse(TemplateManifest, {"metadata": {**metadata, "appcode": appcode}, "spec": spec})


@require_safe
def templates(request: HttpRequest) -> HttpResponse:
    user, code = person(request), selected_appcode(request)
    rows = templates_for(user)
    rows = rows.filter(appcode__code=code) | rows.filter(owner=user) if code else rows
    found, following = page_of(request, in_short(matching(rows, words(request), "name", "description")), "-id")
    context = {"rows": [(each, in_words(each)) for each in found], "next_cursor": following, "searched": words(request)}
    return render(request, "clusters/cluster_templates/templates.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def template(request: HttpRequest, whose: str, name: str) -> HttpResponse:
    user = person(request)
    shown = template_for(user, whose, name, OPERATE if request.method == "POST" else VIEW)
    said = {"name": shown.name, "description": shown.description}
    form = NameForm(request.POST) if request.method == "POST" else NameForm(initial=said)
    if request.method == "POST" and form.is_valid():
        try:
            manifest = parse(TemplateManifest, {"metadata": form.cleaned_data, "spec": ClusterSpec.known(shown.spec)})
            changed = change_template(shown, manifest, acting_user=user)
        except Invalid as invalid:
            show_errors(form, invalid, FIELDS)
        else:
            messages.success(request, f"{changed.name} is saved.")
            return redirect("template", whose, changed.name)
    cluster = cluster_of(shown, shown.appcode.code if shown.appcode else "APPCODE")
    context = {
        "shown": shown,
        "form": form,
        "spec": cluster.spec,
        "roles": [(ROLES[role].title, said) for role, said in cluster.spec.active_roles.items()],
        "may_change": shown.appcode is None or may(user, shown.appcode, OPERATE),
        "manifest": _text(cluster),
    }
    return render(request, "clusters/cluster_templates/template.html", context)


@require_POST
def delete(request: HttpRequest, whose: str, name: str) -> HttpResponse:
    found = template_for(person(request), whose, name, OPERATE)
    delete_template(found, acting_user=person(request))
    messages.success(request, f"The template {name} is deleted.")
    return redirect("templates")


@require_safe
def save_cluster(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The form that saves a cluster, or its run `?run=`, as a template."""
    user = person(request)
    cluster = cluster_for(user, appcode, name)
    number = run_number(request.GET.get("run", ""))
    spec = run_for(user, appcode, name, number).spec if number else cluster.spec
    form = SaveForm(user, initial={"name": name, "whose": Template.ME, "spec": json.dumps(spec, ensure_ascii=False)})
    return _save_page(request, form, reverse("cluster", args=[appcode, name]))


@require_http_methods(["GET", "HEAD", "POST"])
def save(request: HttpRequest) -> HttpResponse:
    """Saves the template. A POST from the New Cluster form shows this page's form first. A GET (after signing in again)
    leads to New Cluster, whose form keeps what was typed."""
    user = person(request)
    if request.method != "POST":
        return redirect("new_cluster")
    if "spec" not in request.POST:
        return _of_cluster_form(request, user)
    form = SaveForm(user, request.POST)
    if form.is_valid():
        try:
            made = _save(form, user)
        except Invalid as invalid:
            show_errors(form, invalid, FIELDS)
        else:
            messages.success(request, f"{made.name} is saved as a template.")
            return redirect("template", made.whose, made.name)
    return _save_page(request, form)


def _save(form: SaveForm, user: User) -> Template:
    manifest = form.manifest
    code, name = manifest.metadata.appcode, manifest.metadata.name
    appcode = appcode_for(user, code, OPERATE) if code else None
    rows = templates_for(user).filter(appcode=appcode, owner=None if appcode else user, name=name)
    if form.cleaned_data["replace"] and (found := rows.first()):
        return change_template(found, manifest, acting_user=user)
    return create_template(manifest, appcode, acting_user=user)


def _of_cluster_form(request: HttpRequest, user: User) -> HttpResponse:
    form, cluster = sent_form(request, user)
    form.is_valid()
    manifest = form.manifest
    # A template needs neither field.
    if manifest is None and set(form.errors) <= {"name", "appcode"}:
        manifest = form.with_stand_ins()
    if manifest is None:
        return form_page(request, form, cluster)
    spec = manifest.spec.model_dump_json(by_alias=True)
    said = {"name": form["name"].value(), "whose": Template.ME, "spec": spec}
    return _save_page(request, SaveForm(user, initial=said))


def _save_page(request: HttpRequest, form: SaveForm, back: str = "") -> HttpResponse:
    """`back` is where Cancel leads; without it, the address that the request sent."""
    context = {"form": form, "back": back or safe_next(request, reverse("templates"))}
    return render(request, "clusters/cluster_templates/save.html", context)


def _text(cluster: ClusterManifest) -> str:
    return json.dumps(short_document(cluster)["spec"], indent=2, ensure_ascii=False)
