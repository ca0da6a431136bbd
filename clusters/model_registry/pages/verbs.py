"""Actions on the pages of models: register a version, move aliases, read files again, delete."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from clusters.frame.form import choice, line
from clusters.frame.raw_text import Words
from clusters.manifest.hook_spec import MAX_MODEL_NAME
from clusters.model_registry import actions
from clusters.model_registry.access import model_for, models_for, version_for
from clusters.model_registry.manifest import FORMATS, MAX_DESCRIPTION, AliasMove, ModelVersionManifest
from datastores.drivers.base import DriverError
from datastores.models import Datastore
from portal.access import OPERATE, appcode_for, appcodes_for, require_somewhere
from portal.api.problems import Unavailable
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.models import User
from portal.pages.appcodes import attempt, person
from portal.pages.forms import show_errors
from portal.pages.layout import selected_appcode
from portal.web.limits import LOOKS, refuse_nul

FIELDS = {
    "metadata.model": "model",
    "metadata.appcode": "appcode",
    "metadata.name": "model",
    **{f"spec.{each}": each for each in ("run", "datastore", "path", "format", "description")},
}


class RegisterForm(forms.Form):
    """Exactly one of `run` and `datastore` is given."""

    use_required_attribute = False

    appcode = choice("Appcode")
    model = line(
        "Model",
        f"At most {MAX_MODEL_NAME} lower-case letters, digits and “-”. A new name makes a new model.",
        maxlength=MAX_MODEL_NAME,
        list="models",
    )
    run = line(
        "Run",
        "Whose output it is, for example train/3. It becomes the origin of the version.",
        required=False,
        code=True,
    )
    datastore = choice("Or a datastore", required=False)
    path = line(
        "Folder",
        "In the output of the run, or from the top of the datastore. Empty: the only model found there.",
        required=False,
        code=True,
    )
    format = choice("Format", choices=[("", "Detected"), *FORMATS.items()], required=False)
    description = Words(
        label="Description",
        required=False,
        widget=forms.TextInput(attrs={"maxlength": MAX_DESCRIPTION, "autocomplete": "off"}),
    )

    def __init__(self, user: User, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        codes = list(appcodes_for(user, OPERATE).order_by("code").values_list("code", flat=True))
        stores = Datastore.objects.filter(appcode__code=self.code, appcode__code__in=codes)
        named = stores.filter(kind__in=(Datastore.Kind.S3, Datastore.Kind.LOCAL)).values_list("name", "name")
        for name, choices in (("appcode", [(code, code) for code in codes]), ("datastore", [("", "–"), *named])):
            choose = self.fields[name].widget
            assert isinstance(choose, forms.Select)
            choose.choices = choices

    @property
    def code(self) -> str:
        """The appcode as submitted, without NUL characters, which PostgreSQL rejects."""
        return str(self["appcode"].value() or "").replace("\0", "")

    def manifest(self) -> ModelVersionManifest:
        """The manifest. Raises Invalid."""
        said = self.cleaned_data
        keys = ("run", "datastore", "format")
        spec = {key: said[key].strip() or None for key in keys} | {
            "path": said["path"],
            "description": said["description"],
        }
        document = {"metadata": {"model": said["model"], "appcode": said["appcode"]}, "spec": spec}
        refuse_nul(document)
        return parse(ModelVersionManifest, document)


@require_http_methods(["GET", "HEAD", "POST"])
def register(request: HttpRequest) -> HttpResponse:
    """The form that registers a version; `?appcode=&model=&run=` prefill it. A model has the name of the run's cluster until
    somebody says another one."""
    user = person(request)
    require_somewhere(user, OPERATE)
    first = appcodes_for(user, OPERATE).order_by("code").values_list("code", flat=True).first()
    initial = {key: request.GET.get(key, "").replace("\0", "") for key in ("model", "run", "datastore", "path")}
    initial["model"] = initial["model"] or initial["run"].partition("/")[0][:MAX_MODEL_NAME].rstrip("-")
    form = RegisterForm(user, request.POST or None, initial=initial | {"appcode": selected_appcode(request) or first})
    if request.method == "POST" and form.is_valid():
        try:
            manifest = form.manifest()
            appcode = appcode_for(user, manifest.metadata.appcode, OPERATE)
            with LOOKS.enter(user.pk):
                made = actions.register(appcode, manifest.metadata.model, manifest.spec, acting_user=user, create=True)
        except Invalid as invalid:
            show_errors(form, invalid, FIELDS)
        except (Conflict, DriverError, Unavailable) as error:
            form.add_error(None, str(error))
        else:
            messages.success(
                request, f"Version {made.number} of {made.model.name} is registered; its files are being read."
            )
            return redirect("model_version", appcode.code, made.model.name, made.number)
    names = models_for(user).filter(appcode__code=form.code).order_by("name")
    known = list(names.values_list("name", flat=True)[: actions.MAX_MODELS])
    return render(request, "clusters/model_registry/register.html", {"form": form, "known": known})


@require_POST
def move(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    model = model_for(user, appcode, name, OPERATE)
    alias = request.POST.get("alias", "").strip()
    try:
        said = {"version": request.POST.get("version", ""), "reason": request.POST.get("reason", "").strip()}
        refuse_nul(said | {"alias": alias})
        wanted = parse(AliasMove, said)
        actions.move_alias(model, alias, wanted.version, wanted.reason, acting_user=user)
    except Invalid as invalid:
        messages.error(request, " ".join(f"{each.path[-1].capitalize()}: {each.message}" for each in invalid.errors))
    except Conflict as conflict:
        messages.error(request, str(conflict))
    else:
        messages.success(request, f"{alias} names version {wanted.version} from now on.")
    return redirect("model", appcode, name)


@require_POST
def remove(request: HttpRequest, appcode: str, name: str, alias: str) -> HttpResponse:
    user = person(request)
    actions.remove_alias(model_for(user, appcode, name, OPERATE), alias, acting_user=user)
    messages.success(request, f"{alias} names nothing any more; its history stays.")
    return redirect("model", appcode, name)


@require_POST
def verify(request: HttpRequest, appcode: str, name: str, number: int) -> HttpResponse:
    user = person(request)
    actions.ask_check(version_for(user, appcode, name, number, OPERATE), acting_user=user)
    messages.success(request, "All its files are being read again.")
    return redirect("model_version", appcode, name, number)


@require_POST
def delete_version(request: HttpRequest, appcode: str, name: str, number: int) -> HttpResponse:
    user = person(request)
    found = version_for(user, appcode, name, number, OPERATE)
    done = f"Version {number} is deleted; its files stay where they are."
    if attempt(request, lambda: actions.delete_version(found, acting_user=user), done):
        return redirect("model", appcode, name)
    return redirect("model_version", appcode, name, number)


@require_POST
def delete(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    found = model_for(user, appcode, name, OPERATE)
    done = f"The model {name} is deleted; its files stay where they are."
    gone = attempt(request, lambda: actions.delete_model(found, acting_user=user), done)
    return redirect("models") if gone else redirect("model", appcode, name)
