"""Saved environments of an appcode: the list, one environment with its packages, and the page that saves one."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from clusters.access import application_for
from clusters.catalog.models import Image
from clusters.clouds.drivers.base import CloudError
from clusters.environments.access import environment_for, environments_for
from clusters.environments.actions import delete_environment, save_environment, what_is_new
from clusters.environments.installed import EnvironmentManifest
from clusters.frame.form import area, line
from clusters.runs.models import Cluster
from portal.access import OPERATE, appcode_for, may
from portal.api.problems import Unavailable
from portal.errors import Conflict, Invalid, sentence
from portal.manifests import parse
from portal.pages.appcodes import attempt, person
from portal.pages.forms import show_errors
from portal.pages.layout import page_of


class SaveForm(forms.Form):
    """Name and script of an environment to save; its packages come from the task."""

    use_required_attribute = False

    name = line(
        "Name",
        "Lower-case letters, digits and “-”. An environment of this name gets its next version.",
        maxlength=40,
    )
    script = area(
        "Script",
        "What bash runs once, after the packages were installed, with the environment in $VIRTUAL_ENV: what packages "
        "alone do not bring, for example settings: mkdir $VIRTUAL_ENV/etc",
        required=False,
        rows=3,
    )


@require_safe
def environments(request: HttpRequest, code: str) -> HttpResponse:
    user = person(request)
    appcode = appcode_for(user, code)
    rows, following = page_of(request, environments_for(user, code).defer("lock", "script"), "-id")
    return render(
        request, "clusters/environments/environments.html", {"appcode": appcode, "rows": rows, "next_cursor": following}
    )


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
    return render(request, "clusters/environments/environment.html", context)


@require_POST
def delete(request: HttpRequest, code: str, name: str) -> HttpResponse:
    """Deletes the version in `?version=`, or all versions."""
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
    """Shows what was installed in a running application. POST saves it as an environment."""
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
        request, "clusters/environments/save.html", {"cluster": cluster, "form": form, **_new(request, cluster)}
    )


def _new(request: HttpRequest, cluster: Cluster) -> dict[str, Any]:
    try:
        found = what_is_new(cluster, acting_user=person(request))
    except Invalid as invalid:
        return {"problem": sentence(invalid)}
    except (Conflict, CloudError, Unavailable) as error:
        return {"problem": str(error)}
    rows = found.rows
    return {"rows": rows, "changed": sum(bool(row["was"]) for row in rows), "elsewhere": found.elsewhere}


def _usual_name(cluster: Cluster) -> str:
    """The name of the environment that it was started from, or its own name."""
    return str(cluster.spec.get("environment") or "").partition(":")[0] or cluster.name


def _version(request: HttpRequest) -> int | None:
    given = request.GET.get("version", "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 7 else None
