"""The tokens of a service: created (and shown once), listed and removed."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from clusters.frame.form import number
from clusters.frame.raw_text import Words
from clusters.services.access import service_for
from clusters.services.manifest import TokenSpec
from clusters.services.pages.service import head_of
from clusters.services.tokens import create_token, delete_token
from portal.access import OPERATE
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.pages.appcodes import person
from portal.pages.forms import show_errors
from portal.pages.layout import page_of
from portal.web.limits import refuse_nul

FIELDS = {"name": "name", "perSecond": "per_second", "atOnce": "at_once", "days": "days"}


class TokenForm(forms.Form):
    use_required_attribute = False

    name = Words(
        label="Who asks with it",
        widget=forms.TextInput(attrs={"maxlength": 40, "autocomplete": "off", "placeholder": "checkout"}),
    )
    per_second = number("Requests a second", required=False, placeholder="no limit")
    at_once = number("At once", required=False, placeholder="no limit")
    days = number("Ends after days", required=False, placeholder="never")

    def spec(self) -> TokenSpec | None:
        if not self.is_valid():
            return None
        said: dict[str, Any] = {path: self.cleaned_data[name].strip() or None for path, name in FIELDS.items()}
        said["name"] = said["name"] or ""
        try:
            refuse_nul(said)
            return parse(TokenSpec, said)
        except Invalid as invalid:
            show_errors(self, invalid, FIELDS)
        return None


@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The list. A POST creates a token; only its answer shows the token."""
    user = person(request)
    service = service_for(user, appcode, name, OPERATE)
    form = TokenForm(request.POST if request.method == "POST" else None)
    context: dict[str, Any] = {}
    if request.method == "POST" and (spec := form.spec()):
        try:
            row, token = create_token(service, spec, acting_user=user)
        except Invalid as invalid:
            show_errors(form, invalid, FIELDS)
        except Conflict as conflict:
            form.add_error(None, str(conflict))
        else:
            form, context = TokenForm(), {"made": row, "token": token}
    page, following = page_of(request, service.tokens.select_related("created_by"), "-id")
    context |= {"form": form, "tokens": page, "next_cursor": following, "tab": "tokens"}
    answer = render(request, "clusters/services/tokens.html", head_of(request, service, whole=False) | context)
    if "token" in context:
        answer["Cache-Control"] = "no-store"
    return answer


@require_POST
def remove(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    token = request.POST.get("token", "").replace("\0", "")[:40]
    delete_token(service_for(user, appcode, name, OPERATE), token, acting_user=user)
    messages.success(request, f"“{token}” may ask it no more.")
    return redirect("service_tokens", appcode, name)
