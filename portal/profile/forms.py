"""The form of notification settings; the manifest validates it."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms

from portal.errors import Invalid
from portal.manifests import parse
from portal.pages.forms import Words
from portal.profile.notifications import PHASES, Notifications

BOXES: dict[str, Any] = {"required": False, "choices": list(PHASES.items()), "widget": forms.CheckboxSelectMultiple}


class NotificationsForm(forms.Form):
    PATHS: ClassVar = {
        "mail": "mail",
        "browser": "browser",
        "webhook": "url",
        "webhook.url": "url",
        "webhook.phases": "webhook",
    }

    mail = forms.MultipleChoiceField(label="By mail", **BOXES)
    browser = forms.MultipleChoiceField(label="In this browser", **BOXES)
    webhook = forms.MultipleChoiceField(label="By webhook", **BOXES)
    url = Words(
        label="URL",
        required=False,
        help_text="A program of yours, to which each is sent by POST, like <code>https://example.com/hooks/gpu</code>.",
        widget=forms.URLInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )

    @property
    def ways(self) -> list[forms.BoundField]:
        return [self[name] for name in ("mail", "browser", "webhook")]

    @classmethod
    def of(cls, value: Notifications) -> NotificationsForm:
        """A filled form."""
        initial: dict[str, Any] = {"mail": value.mail, "browser": value.browser}
        if value.webhook:
            initial |= {"webhook": value.webhook.phases, "url": value.webhook.url}
        return cls(initial=initial)

    def wanted(self) -> Notifications:
        """Raises Invalid. Saving a webhook enables it; without URL and phases there is none."""
        if not self.is_valid():
            raise Invalid([])
        typed = self.cleaned_data
        webhook = {"url": typed["url"], "phases": typed["webhook"]} if typed["url"] or typed["webhook"] else None
        return parse(Notifications, {"mail": typed["mail"], "browser": typed["browser"], "webhook": webhook})
