"""Saved environments: those of an appcode, one of them with what it has, and the page on which one is saved."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from clusters.applications.access import application_for
from clusters.clouds.drivers.base import CloudError
from clusters.environments.access import environment_for, environments_for
from clusters.environments.actions import delete_environment, save_environment, what_is_new
from clusters.environments.found import EnvironmentManifest
from clusters.frameworks import FRAMEWORKS
from clusters.models import Cluster, Image
from clusters.pages.raw_text import Words
from portal.access import OPERATE, appcode_for, may
from portal.api.problems import Unavailable
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.pages.appcodes import attempt, person
from portal.pages.forms import show_errors
from portal.pages.layout import page_of


class SaveForm(forms.Form):
    """What is said of an environment that is saved; what is in it the task says."""

    use_required_attribute = False

    name = Words(
        label="Name",
        help_text="Lower-case letters, digits and “-”. An environment of this name gets its next version.",
        widget=forms.TextInput(
            attrs={"maxlength": 40, "autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
        ),
    )
    script = Words(
        label="Script",
        required=False,
        help_text="What bash runs once, after the packages were installed, with the environment in $VIRTUAL_ENV: what packages "
        "alone do not bring, for example settings: mkdir $VIRTUAL_ENV/etc",
        widget=forms.Textarea(attrs={"rows": 3, "class": "code", "spellcheck": "false", "autocapitalize": "none"}),
    )


@require_safe
def environments(request: HttpRequest, code: str) -> HttpResponse:
    user = person(request)
    appcode = appcode_for(user, code)
    rows, following = page_of(request, environments_for(user, code).defer("lock", "script"), "-id")
    return render(request, "clusters/environments.html", {"appcode": appcode, "rows": rows, "next_cursor": following})


@require_safe
def environment(request: HttpRequest, code: str, name: str) -> HttpResponse:
    """The newest version, or that of `?version=`."""
    user = person(request)
    shown = environment_for(user, code, name, _version(request))
    versions = environments_for(user, code).filter(name=name).defer("lock", "script", "packages").order_by("-version")
    context = {
        "shown": shown,
        "versions": list(versions),
        "may_operate": may(user, shown.appcode, OPERATE),
        "changed": sum(bool(row["was"]) for row in shown.packages),
        "container": Image.objects.filter(name=shown.image).values_list("container", flat=True).first(),
        "context_url": request.build_absolute_uri(
            f"/api/v1/appcodes/{code}/environments/{name}/context?version={shown.version}"
        ),
    }
    return render(request, "clusters/environment.html", context)


@require_POST
def delete(request: HttpRequest, code: str, name: str) -> HttpResponse:
    """One version by `?version=`, or all."""
    version = _version(request)
    row = environment_for(person(request), code, name, version, OPERATE)
    done = attempt(
        request,
        lambda: delete_environment(row, acting_user=person(request), every_version=version is None),
        f"{name if version is None else row} is deleted.",
    )
    return redirect("environments", code) if done else redirect("environment", code, name)


@require_http_methods(["GET", "HEAD", "POST"])
def save(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """What was installed in a running application, and by POST its environment."""
    user = person(request)
    cluster = application_for(user, appcode, name, OPERATE)
    form = SaveForm(request.POST) if request.method == "POST" else SaveForm(initial={"name": _usual_name(cluster)})
    if request.method == "POST" and form.is_valid():
        document = {
            "metadata": {"name": form.cleaned_data["name"], "appcode": appcode},
            "spec": {"script": form.cleaned_data["script"]},
        }
        try:
            saved, is_new = save_environment(cluster, parse(EnvironmentManifest, document), acting_user=user)
        except Invalid as invalid:
            show_errors(form, invalid, {"metadata.name": "name", "spec.script": "script"})
        except (Conflict, CloudError, Unavailable) as error:
            form.add_error(None, str(error))
        else:
            said = f"{saved} is saved." if is_new else f"{saved} has exactly this already."
            messages.success(request, said)
            return redirect("environment", appcode, saved.name)
    return render(
        request, "clusters/save_environment.html", {"cluster": cluster, "form": form, **_new(request, cluster)}
    )


def can_be_saved(cluster: Cluster) -> bool:
    """Whether what people install in it is kept, so that there is something to save while it runs."""
    framework = FRAMEWORKS.get(cluster.spec.get("framework", ""))
    return framework is not None and framework.has_layer


def _new(request: HttpRequest, cluster: Cluster) -> dict[str, Any]:
    try:
        found = what_is_new(cluster, acting_user=person(request))
    except Invalid as invalid:
        return {"problem": " ".join(each.message for each in invalid.errors)}
    except (Conflict, CloudError, Unavailable) as error:
        return {"problem": str(error)}
    rows = found.rows
    return {"rows": rows, "changed": sum(bool(row["was"]) for row in rows), "elsewhere": found.elsewhere}


def _usual_name(cluster: Cluster) -> str:
    """That of the environment from which it was started, or its own."""
    return str(cluster.spec.get("environment") or "").partition(":")[0] or cluster.name


def _version(request: HttpRequest) -> int | None:
    given = request.GET.get("version", "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 7 else None
