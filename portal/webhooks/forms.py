"""The form of a webhook: groups of events to tick and single kinds to type. The manifest validates all of it."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from django import forms
from django.utils.html import format_html
from pydantic import ValidationError

from portal.errors import FieldError, Invalid
from portal.manifests import mistakes
from portal.models import Webhook
from portal.pages.forms import Words
from portal.webhooks.specs import EVERYTHING, GROUPS, PLATFORM_GROUPS, WebhookManifest


class WebhookForm(forms.Form):
    PATHS: ClassVar = {
        "metadata.name": "name", "spec.url": "url", "spec.events": "groups", "spec.enabled": "enabled", "kinds": "kinds",
    }  # fmt: skip

    name = Words(
        label="Name",
        help_text="Lower-case letters, digits and “-”, like <code>team-chat</code>. Cannot be changed later.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )
    url = Words(
        label="URL",
        help_text="Where each event is sent to by POST, like <code>https://example.com/hooks/gpu</code>.",
        widget=forms.URLInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    groups = forms.MultipleChoiceField(label="Events", required=False, widget=forms.CheckboxSelectMultiple())
    kinds = Words(
        label="Single kinds",
        required=False,
        help_text="Divided by commas, like <code>run.failed, run.succeeded</code>, beside or instead of whole groups.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )
    enabled = forms.BooleanField(
        label="Enabled",
        required=False,
        initial=True,
        help_text="While it is not, nothing is sent and what happens is passed over.",
    )

    def __init__(
        self,
        data: Any = None,
        *,
        everything: bool,
        webhook: Webhook | None = None,
        initial: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(data, initial=initial if webhook is None else fields_of(webhook), label_suffix="")
        groups = {**GROUPS, **PLATFORM_GROUPS} if everything else GROUPS
        choices = [
            (EVERYTHING, "Everything"),
            *((f"{group}.*", format_html("{} <code>{}.*</code>", said, group)) for group, said in groups.items()),
        ]
        self.fields["groups"] = forms.MultipleChoiceField(
            label="Events", required=False, choices=choices, widget=forms.CheckboxSelectMultiple()
        )
        if webhook is not None:
            self.fields["name"].disabled = True
            self.fields["name"].help_text = "A name cannot be changed."

    def manifest(self) -> WebhookManifest:
        """Raises Invalid. Call it on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        typed = self.cleaned_data
        single = [kind for kind in re.split(r"[\s,;|]+", typed["kinds"]) if kind]
        chosen = list(typed["groups"])
        spec = {"url": typed["url"], "events": chosen + single, "enabled": typed["enabled"]}
        try:
            return WebhookManifest.model_validate({"metadata": {"name": typed["name"]}, "spec": spec})
        except ValidationError as error:
            raise Invalid(
                [FieldError(_field(each.path, len(chosen)), each.message) for each in mistakes(error)]
            ) from error


def _field(path: tuple[str, ...], chosen: int) -> tuple[str, ...]:
    """Errors of single kinds belong to their field, not to the groups."""
    if path[:2] == ("spec", "events") and len(path) > 2 and path[2].isdigit() and int(path[2]) >= chosen:
        return ("kinds",)
    return path


def fields_of(webhook: Webhook) -> dict[str, Any]:
    """Initial values of the form."""
    groups = {EVERYTHING, *(f"{group}.*" for group in GROUPS)}
    if webhook.appcode_id is None:
        groups |= {f"{group}.*" for group in PLATFORM_GROUPS}
    return {
        "name": webhook.name, "url": webhook.url, "enabled": webhook.enabled,
        "groups": [kind for kind in webhook.kinds if kind in groups],
        "kinds": ", ".join(kind for kind in webhook.kinds if kind not in groups),
    }  # fmt: skip
