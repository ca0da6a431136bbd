"""The page *Branding* for administrators, and the logo."""

from __future__ import annotations

import base64
from typing import Any, ClassVar

from csp.constants import NONE, UNSAFE_INLINE
from csp.decorators import csp
from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.files.uploadedfile import UploadedFile
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET

from portal.branding import actions, reading
from portal.branding.manifest import LOGO_TYPES, MOST_LOGO_BYTES, BrandingManifest, BrandingSpec
from portal.errors import Invalid
from portal.manifests import parse
from portal.pages.admin import for_administrators
from portal.pages.appcodes import get_or_post, person
from portal.pages.forms import Words, prose, show_errors

YEAR = 365 * 24 * 3600


class BrandingForm(forms.Form):
    """Without a new file the logo stays."""

    name = Words(label="Name", help_text="In the header, on the sign-in page and in titles.")
    colour = Words(
        label="Colour", required=False,
        help_text="Of buttons and links, like #0a7c8a. It is made lighter or darker until it can be read. Empty: blue.",
    )  # fmt: skip
    logo = forms.FileField(
        label="Logo", required=False, help_text="A square PNG, SVG, WebP or JPEG of at most 64 KiB.",
        widget=forms.FileInput(attrs={"accept": ",".join(LOGO_TYPES)}),
    )  # fmt: skip
    without_logo = forms.BooleanField(label="Remove the logo", required=False)
    support = Words(
        label="Where people ask for help",
        required=False,
        help_text="https://… or mailto:…, shown on Help and beside sign-in.",
    )
    banner = prose(
        "Banner", "A sentence on every page, for planned maintenance, say.", required=False, rows=2, most=300
    )
    level = forms.ChoiceField(
        label="It is", choices=[("info", "information"), ("warning", "a warning")], required=False
    )
    until = forms.DateTimeField(
        label="Until", required=False, help_text="In UTC. It goes away by itself then. Empty: it stays.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"],
    )  # fmt: skip

    PATHS: ClassVar = {
        "spec.name": "name", "spec.colour": "colour", "spec.logo": "logo", "spec.support": "support",
        "spec.banner": "banner", "spec.banner.level": "level", "spec.banner.until": "until",
    }  # fmt: skip

    def manifest(self, before: BrandingSpec) -> dict[str, Any]:
        typed = self.cleaned_data
        banner = {"text": " ".join(typed["banner"].split()), "level": typed["level"] or "info", "until": typed["until"]}
        return {
            "spec": {
                "name": typed["name"], "colour": typed["colour"], "support": typed["support"], "banner": banner,
                "logo": _data(typed["logo"]) if typed["logo"] else "" if typed["without_logo"] else before.logo,
            }
        }  # fmt: skip


def _data(file: UploadedFile[bytes]) -> str:
    if (file.size or 0) > MOST_LOGO_BYTES:
        raise Invalid.at("spec", "logo", message=f"At most {MOST_LOGO_BYTES // 1024} KiB.")
    return f"data:{file.content_type};base64,{base64.b64encode(file.read()).decode()}"


@get_or_post
@for_administrators
def branding(request: HttpRequest) -> HttpResponse:
    before = reading.spec()
    banner = before.banner
    shown = {
        "name": before.name, "colour": before.colour, "support": before.support, "banner": banner.text,
        "level": banner.level, "until": banner.until,
    }  # fmt: skip
    form = BrandingForm(request.POST or None, request.FILES or None, initial=shown)
    if request.method == "POST" and form.is_valid():
        try:
            manifest = parse(BrandingManifest, form.manifest(before))
            actions.set_branding(manifest.spec, acting_user=person(request))
        except Invalid as error:
            show_errors(form, error, BrandingForm.PATHS)
        else:
            messages.success(request, "Saved. Every page shows it now.")
            return redirect("admin_branding")
    return render(request, "portal/admin_branding.html", {"form": form, "has_logo": bool(before.logo)})


@require_GET
@login_not_required
@csp({"default-src": [NONE], "style-src": [UNSAFE_INLINE], "sandbox": True})  # type: ignore[arg-type]  # its types know no arguments
def logo(request: HttpRequest, digest: str) -> HttpResponse:
    """For everybody, since the sign-in page shows it. An SVG may hold scripts, which run nowhere by this policy."""
    found = reading.spec()
    if found.logo_file is None or found.logo_digest != digest:
        raise Http404("There is no such logo.")
    kind, content = found.logo_file
    return HttpResponse(content, content_type=kind, headers={"Cache-Control": f"public, max-age={YEAR}, immutable"})
