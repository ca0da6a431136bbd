"""The Retention tab of a model: its rule, a preview, and deleted versions. A changed rule is previewed before it is saved."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from clusters.frame.raw_text import Words
from clusters.model_registry import actions, rules
from clusters.model_registry.access import model_for
from clusters.model_registry.models import ModelRetention, ModelVersion, RegisteredModel
from clusters.model_registry.retention import RetentionSpec
from portal.access import OPERATE, VIEW, may
from portal.errors import Invalid
from portal.manifests import parse
from portal.models import Event
from portal.pages.appcodes import person
from portal.pages.forms import show_errors
from portal.pages.layout import page_of


class RetentionForm(forms.Form):
    use_required_attribute = False

    keep = Words(
        label="Keep the last",
        help_text="Versions that are Ready; others count for none.",
        widget=forms.NumberInput(attrs={"min": 1, "max": 1000, "class": "num"}),
    )
    days = Words(
        label="And all of the last days",
        required=False,
        help_text="Since a version was registered, or an alias named it.",
        widget=forms.NumberInput(attrs={"min": 1, "max": 3650, "class": "num"}),
    )

    def spec(self) -> RetentionSpec:
        """The rule of a bound form. Raises Invalid."""
        if not self.is_valid():
            raise Invalid([])
        typed = {name: value.strip() for name, value in self.cleaned_data.items()}
        return parse(RetentionSpec, {name: value for name, value in typed.items() if value})


@require_http_methods(["GET", "HEAD", "POST"])
def retention(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    shown = model_for(user, appcode, name, OPERATE if request.method == "POST" else VIEW)
    rule = ModelRetention.objects.filter(model=shown).select_related("created_by").first()
    initial = {"keep": rule.keep, "days": rule.days} if rule else {}
    form = RetentionForm(request.POST if request.method == "POST" else None, initial=initial)
    page: dict[str, Any] = {"form": form, "rule": rule, "rule_words": rules.spec_of(rule).words if rule else ""}
    try:
        if request.method == "POST":
            spec = form.spec()
            if request.POST.get("do") == "save" and request.POST.get("seen") == spec.words:
                actions.save_retention(shown, spec, acting_user=user)
                messages.success(request, f"Saved: {spec.words}. It is applied in a minute, and then every day.")
                return redirect("model_retention", appcode, name)
            page |= _previewed(shown, spec) | {"is_new": True}
        elif rule:
            page |= _previewed(shown, rules.spec_of(rule))
    except Invalid as error:
        show_errors(form, error, {field: field for field in form.fields})
    events = Event.objects.filter(
        appcode=appcode, object=f"model {shown}", verb="model.version-deleted", at__gte=shown.created_at
    )
    deleted, following = page_of(request, events, "-id")
    page |= {"shown": shown, "may_operate": may(user, shown.appcode, OPERATE), "now": timezone.now()}
    return render(
        request, "clusters/model_registry/retention.html", page | {"deleted": deleted, "next_cursor": following}
    )


@require_POST
def forget(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    actions.forget_retention(model_for(user, appcode, name, OPERATE), acting_user=user)
    messages.success(request, "Nothing goes by a rule any more.")
    return redirect("model_retention", appcode, name)


def _previewed(shown: RegisteredModel, spec: RetentionSpec) -> dict[str, Any]:
    found = rules.preview(shown, spec)
    going = [version.number for version in found.going]
    rows = ModelVersion.objects.filter(model=shown, number__in=going).defer("files", "sample", "signature")
    return {"spec": spec, "found": found, "going": rows.order_by("number")}
