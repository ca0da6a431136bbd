"""Administrators' pages of plugins, which users may add to the JupyterLab of an image."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from clusters.catalog.models import Image
from clusters.clouds.drivers.base import CloudError
from clusters.environments.models import Plugin
from clusters.environments.plugin import PluginManifest
from clusters.environments.plugins import delete_plugin, plugin_for, plugins, save_plugin
from clusters.frame.form import area
from clusters.frame.raw_text import Words
from portal.access import require_administrator
from portal.api.problems import Unavailable
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.pages.appcodes import attempt, person
from portal.pages.forms import prose, show_errors


class PluginForm(forms.Form):
    PATHS: ClassVar = {
        "metadata.name": "name",
        "metadata.image": "image",
        **{f"spec.{name}": name for name in ("title", "description", "requirements")},
    }
    use_required_attribute = False

    image = Words(label="Image", widget=forms.Select(), help_text="What it has is kept; a plugin brings what it lacks.")
    title = Words(label="Title", help_text="What people choose.", widget=forms.TextInput(attrs={"maxlength": 60}))
    name = Words(
        label="Name",
        help_text="What manifests say, e.g. archive. It cannot be changed later.",
        widget=forms.TextInput(attrs={"maxlength": 40, "autocomplete": "off", "spellcheck": "false"}),
    )
    description = prose("Description", "What it does, in a sentence.", required=False, rows=2, most=500)
    requirements = area(
        "Requirements",
        "As for pip, one a line, e.g. jupyter-archive>=3.4. They are resolved when you save; there have to be wheels.",
        rows=3,
    )

    def __init__(self, *args: Any, plugin: Plugin | None, **options: Any) -> None:
        super().__init__(*args, **options)
        images = [(image.name, image.title) for image in Image.objects.filter(enabled=True)]
        self.fields["image"].widget.choices = images if plugin else [("", "Choose…"), *images]
        if plugin:
            self.fields["image"].disabled = self.fields["name"].disabled = True

    def manifest(self) -> PluginManifest:
        """The manifest of a valid form. Raises Invalid."""
        typed = self.cleaned_data
        lines = [line.strip() for line in typed["requirements"].splitlines() if line.strip()]
        return parse(
            PluginManifest,
            {
                "metadata": {"name": typed["name"], "image": typed["image"]},
                "spec": {"title": typed["title"], "description": typed["description"], "requirements": lines},
            },
        )


@require_safe
def all_plugins(request: HttpRequest) -> HttpResponse:
    require_administrator(person(request))
    return render(request, "clusters/environments/plugins.html", {"plugins": plugins()})


@require_http_methods(["GET", "HEAD", "POST"])
def plugin(request: HttpRequest, image: str | None = None, name: str | None = None) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    row = plugin_for(image, name) if image and name else None
    form = PluginForm(request.POST or None, plugin=row, initial=_filled(row) if row else {})
    if request.method == "POST" and form.is_valid():
        try:
            saved = save_plugin(form.manifest(), acting_user=user, new=row is None)
        except Invalid as invalid:
            show_errors(form, invalid, form.PATHS)
        except (Conflict, CloudError, Unavailable) as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, f"{saved.title} is offered, in version {saved.version}.")
            return redirect("admin_plugins")
    return render(request, "clusters/environments/plugin.html", {"form": form, "plugin": row})


@require_POST
def delete(request: HttpRequest, image: str, name: str) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    row = plugin_for(image, name)
    done = attempt(request, lambda: delete_plugin(row, acting_user=user), f"{row.title} is not offered any more.")
    return redirect("admin_plugins") if done else redirect("admin_plugin", image, name)


def _filled(row: Plugin) -> dict[str, Any]:
    return {
        **{name: getattr(row, name) for name in ("title", "name", "description")},
        "image": row.image.name,
        "requirements": "\n".join(row.requirements),
    }
