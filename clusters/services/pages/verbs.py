"""Actions on a service: its buttons, and the page that deploys a version."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from clusters.frame.acts import Act, act_view
from clusters.frame.form import choice
from clusters.frame.raw_text import Words
from clusters.frameworks.serving import FORMATS
from clusters.model_registry.access import versions_of
from clusters.model_registry.models import ModelVersion, RegisteredModel
from clusters.services import actions, checks, revisions
from clusters.services.access import SERVICES, service_for
from clusters.services.manifest import DeploySpec, ServiceSpec, name_of_model
from clusters.services.models import Service
from clusters.services.pages.capacity import change_of
from clusters.services.pages.form import KINDS, PROMOTE
from portal.access import OPERATE
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.pages.appcodes import person
from portal.pages.forms import show_errors
from portal.pages.layout import words
from portal.web.limits import refuse_nul

FIELDS = {each: each for each in ("version", "kind", "weight", "minutes", "promote", "reason")}
OFFERED = 100


ACTS = {
    "enable": Act(
        actions.enable_service, "Start", "{name} is being started.",
        "The revision that answered last answers again, with the replicas that its definition says.",
    ),
    "disable": Act(
        actions.disable_service, "Stop", "{name} is stopping; its replicas are ending.",
        "Its replicas end, and nobody answers at its address until it is started again. Address, tokens and history stay.",
    ),
    "delete": Act(
        actions.delete_service, "Delete", "{name} is deleted.",
        "Its replicas end at once, and its tokens are lost: callers that have one are refused. The model stays, and so does the "
        "address, which nobody else gets.",
    ),
    "rollback": Act(
        actions.rollback, "Roll back", "{name} goes back to the revision before.",
        "The revision that answered before answers everything again: at once where its replicas are still warm, else as soon as "
        "they are up.",
    ),
    "promote": Act(
        actions.promote, "Promote", "The new revision of {name} takes over.",
        "The comparison ends, and the new revision takes over all requests. The old replicas are kept warm for a while.",
    ),
    "approve": Act(
        actions.promote, "Approve", "{name} begins to roll out.",
        "The rollout that waits begins, as the service says.",
    ),
}  # fmt: skip


act = act_view(SERVICES, ACTS, "clusters/services/ask.html")


class DeployForm(forms.Form):
    """Fields that keep the service's defaults are sent, too: what the user sees is what is deployed."""

    use_required_attribute = False

    version = choice("Version")
    kind = choice("Kind", choices=KINDS)
    weight = Words(
        label="Per cent",
        help_text="Of the requests, for a canary.",
        widget=forms.TextInput(attrs={"inputmode": "numeric"}),
    )
    minutes = Words(
        label="Minutes", help_text="For which it is compared.", widget=forms.TextInput(attrs={"inputmode": "numeric"})
    )
    promote = choice("When it was no worse", choices=PROMOTE)
    reason = Words(
        label="Why",
        required=False,
        help_text="It stands in the history.",
        widget=forms.TextInput(attrs={"maxlength": 300, "autocomplete": "off"}),
    )

    def __init__(self, service: Service, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        spec = ServiceSpec.stored(service.spec)
        self.service, self.spec = service, spec
        versions = _versions(service)
        widget = self.fields["version"].widget
        assert isinstance(widget, forms.Select)
        old = revisions.answering(service)
        now = old.version_id if old else None
        widget.choices = [
            (str(each.number), f"Version {each.number}{' (answers now)' if each.pk == now else ''}{_described(each)}")
            for each in versions
        ]
        rollout = spec.rollout
        newest = str(versions[0].number) if versions else ""
        self.initial = {
            "version": newest, "kind": rollout.kind, "weight": str(rollout.weight), "minutes": str(rollout.minutes),
            "promote": rollout.promote, **self.initial,
        }  # fmt: skip

    def deploy_spec(self) -> DeploySpec | None:
        """The deployment; None if invalid, with the errors beside their fields."""
        if not self.is_valid():
            return None
        said = {name: value.strip() or None for name, value in self.cleaned_data.items()}
        said["reason"] = said["reason"] or ""
        try:
            refuse_nul(said)
            return parse(DeploySpec, said)
        except Invalid as invalid:
            show_errors(self, invalid, FIELDS)
        return None


@require_http_methods(["GET", "HEAD", "POST"])
def deploy(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The page that deploys a version; `?version=` preselects one."""
    user = person(request)
    service = service_for(user, appcode, name, OPERATE)
    if request.method != "POST":
        version = words(request, "version")
        return _deploy_page(request, DeployForm(service, initial={"version": version} if version else {}))
    form = DeployForm(service, request.POST)
    if spec := form.deploy_spec():
        try:
            rollout = actions.deploy(service, spec, acting_user=user)
        except Invalid as invalid:
            show_errors(form, invalid, FIELDS)
        except (Conflict, PermissionDenied) as refused:
            form.add_error(None, str(refused))
        else:
            said = f"{rollout.to_revision.model} is on its way." if rollout else "That version answers already."
            messages.success(request, said)
            return redirect("service", appcode, name)
    return _deploy_page(request, form)


@require_POST
def preview_deploy(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """What a rollout would take. Writes nothing."""
    service = service_for(person(request), appcode, name, OPERATE)
    form = DeployForm(service, request.POST)
    context: dict[str, Any] = {"form": form, "service": service}
    if spec := form.deploy_spec():
        context |= _change(form, spec)
    return render(request, "clusters/services/_deploy_preview.html", context)


def _change(form: DeployForm, deploy: DeploySpec) -> dict[str, Any]:
    service, spec = form.service, form.spec
    try:
        version = checks.version_of(service, spec, deploy.version)
        model = f"{version.model.name}/{version.number}"
        return {"change": change_of(service, spec, deploy, model), "spec": spec, "deploy": deploy}
    except Invalid as invalid:
        for each in invalid.errors:
            form.add_error("version", each.message)
    return {}


def _deploy_page(request: HttpRequest, form: DeployForm) -> HttpResponse:
    return render(request, "clusters/services/deploy.html", {"form": form, "service": form.service, "spec": form.spec})


def _versions(service: Service) -> list[ModelVersion]:
    model = RegisteredModel.objects.filter(
        appcode=service.appcode_id, name=name_of_model(service.spec["model"]), deleted_at=None
    ).first()
    if model is None:
        return []
    rows = versions_of(model).filter(state=ModelVersion.State.READY, format__in=FORMATS)
    return list(rows[:OFFERED])


def _described(version: ModelVersion) -> str:
    return f" – {version.description[:60]}" if version.description else ""
