"""The portal's forms. A form only reads what was typed into a manifest; the manifest and the action judge it.

So the form and REST accept and refuse the same things in the same words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms
from django.conf import settings
from django.utils.html import format_html

from portal.errors import FieldError, Invalid
from portal.manifests import parse
from portal.models import Appcode, Membership, OrgNode
from portal.specs import (
    MAX_EMAILS,
    MAX_OWNERS,
    MAX_REASON,
    MAX_REMARK,
    MAX_TOKEN_DAYS,
    Answered,
    AppcodeManifest,
    Granted,
    Wanted,
)
from portal.terms import Terms
from portal.zones import zones


def show_errors(form: forms.BaseForm, error: Invalid, fields: Mapping[str, str]) -> None:
    """Puts each sentence beside its field. `fields` maps dotted manifest paths to field names; the longest prefix wins.

    What has no field goes to the top of the form together with its path.
    """
    for item in error.errors:
        parts = [str(part) for part in item.path]
        prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        name = next((fields[prefix] for prefix in prefixes if prefix in fields), None)
        if name in form.fields:
            form.add_error(name, with_link(item))
        else:
            form.add_error(None, f"{'.'.join(parts)}: {item.message}" if parts else item.message)


def with_link(error: FieldError) -> str:
    """The sentence of an error, with the page on which one asks for what is missing, where there is one. It opens beside the
    form, so that nothing typed is lost."""
    link = '{} <a href="{}" target="_blank">Request quota</a>'
    return format_html(link, error.message, error.see) if error.see else error.message


class Words(forms.CharField):
    """Text as typed. `required` is for the label and the browser; whether it may be empty is the manifest's to say."""

    def validate(self, value: Any) -> None:
        return


class TermsForm(forms.Form):
    """What an appcode may use and until when. What is left empty stays as it is, but for the last day: empty is no end."""

    gpus = Words(
        label="GPU quota",
        help_text="GPUs that its runs may hold at one time.",
        widget=forms.NumberInput(attrs={"min": 0, "class": "num"}),
    )
    storage = Words(
        label="Storage quota",
        help_text="GiB that its volumes may have together.",
        widget=forms.NumberInput(attrs={"min": 0, "class": "num"}),
    )
    budget = Words(
        label="Monthly budget",
        required=False,
        help_text=f"In {settings.CURRENCY}. When it is used up, new runs are blocked. Empty: as it is.",
        widget=forms.NumberInput(attrs={"min": "0.01", "step": "0.01", "class": "num"}),
    )
    expires = Words(
        label="Last day",
        required=False,
        help_text="Nothing new starts afterwards; what runs goes on. Empty: no end.",
        widget=forms.DateInput(attrs={"type": "date"}),
    )

    def terms(self) -> dict[str, Any]:
        """What was typed, of a valid form, as a manifest says it."""
        typed = self.cleaned_data
        quota = {name: typed[name] for name in ("gpus", "storage", "budget") if typed.get(name)}
        return {"quota": quota, "expires": typed["expires"] or None} if "expires" in typed else {"quota": quota}

    @staticmethod
    def shown(terms: Terms) -> dict[str, Any]:
        """What a filled form shows."""
        budget = "" if terms.budget is None else f"{terms.budget:.2f}"
        expires = terms.expires.isoformat() if terms.expires else ""
        return {"gpus": terms.gpus, "storage": terms.storage, "budget": budget, "expires": expires}


TERMS_PATHS = {
    "quota": "gpus", "quota.gpus": "gpus", "quota.storage": "storage", "quota.budget": "budget", "expires": "expires",
}  # fmt: skip


class RequestForm(TermsForm):
    """What an owner asks for beside what the appcode has."""

    PATHS: ClassVar = TERMS_PATHS | {"reason": "reason"}

    reason = Words(
        label="Reason",
        required=False,
        help_text=f"The administrators read it; at most {MAX_REASON} characters.",
        widget=forms.Textarea(attrs={"rows": 3, "data-count": MAX_REASON}),
    )

    def wanted(self) -> Wanted:
        """Raises Invalid. To be called on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        return parse(Wanted, {**self.terms(), "reason": " ".join(self.cleaned_data["reason"].split())})


class DecisionForm(TermsForm):
    """What an administrator answers: other terms than were asked for, or a note."""

    PATHS: ClassVar = TERMS_PATHS | {"note": "note"}

    revision = forms.IntegerField(widget=forms.HiddenInput())
    note = Words(
        label="Note",
        required=False,
        help_text="Why you refuse it, or what is to be changed. The owners read it.",
        widget=forms.Textarea(attrs={"rows": 2, "data-count": MAX_REASON}),
    )

    def granted(self) -> Granted:
        """Raises Invalid. To be called on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        return parse(Granted, {**self.terms(), "revision": self.cleaned_data["revision"]})

    def answered(self) -> Answered:
        """Raises Invalid. To be called on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        note = " ".join(self.cleaned_data["note"].split())
        return parse(Answered, {"revision": self.cleaned_data["revision"], "note": note})


class AppcodeForm(TermsForm):
    """Ask for an appcode, or change one: every field of its manifest."""

    PATHS: ClassVar = {
        "metadata.name": "code",
        "spec.orgNode": "org_node",
        "spec.name": "name",
        "spec.owners": "owners",
        "spec.emails": "emails",
        "spec.remark": "remark",
        "spec.resourceType": "resource_type",
        **{f"spec.{path}": name for path, name in TERMS_PATHS.items()},
    }

    org_node = Words(label="Business line", help_text="The part of the organisation that pays.", widget=forms.Select())
    code = Words(
        label="Code",
        help_text="3 to 63 lower-case letters, digits, “_” and “-”, like <code>npe_ix_test_gpu</code>. Cannot be changed later.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )
    name = Words(label="Name", required=False, help_text="Default: the same as the code.")
    owners = Words(
        label="Owners",
        help_text=f"1 to {MAX_OWNERS} user names, divided by commas. Owners manage members, addresses and money.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )
    emails = Words(
        label="Notification e-mails",
        help_text=f"1 to {MAX_EMAILS} addresses, one a line.",
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "inputmode": "email"}),
    )
    remark = Words(
        label="Remark",
        required=False,
        help_text=f"What it is for, in at most {MAX_REMARK} characters.",
        widget=forms.TextInput(attrs={"data-count": MAX_REMARK}),
    )
    resource_type = Words(label="Resource type", widget=forms.Select(choices=Appcode.ResourceType.choices))

    def __init__(
        self,
        data: Any = None,
        *,
        administrator: bool,
        appcode: Appcode | None = None,
        initial: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(data, initial=initial)
        nodes = [
            (node.path, f"{node.path} · {node.title}" if node.title else node.path) for node in OrgNode.objects.all()
        ]
        self.fields["org_node"].widget.choices = [("", "Choose…"), *nodes]
        if appcode is not None:
            self.fields["code"].disabled = True
            self.fields["code"].help_text = "A code cannot be changed."
        new = appcode is None or appcode.state == Appcode.State.REQUESTED
        if new:
            self.fields[
                "budget"
            ].help_text = f"In {settings.CURRENCY}. When it is used up, new runs are blocked. Empty: none."
        elif not administrator:
            for name in ("gpus", "storage", "budget", "expires"):
                del self.fields[name]

    def manifest(self) -> AppcodeManifest:
        """Raises Invalid. To be called on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        typed = self.cleaned_data
        spec: dict[str, Any] = {"name": typed["name"], "remark": typed["remark"], "orgNode": typed["org_node"]}
        spec["resourceType"] = typed["resource_type"]
        spec["owners"] = [name for name in re.split(r"[\s,;]+", typed["owners"]) if name]
        spec["emails"] = [email for email in re.split(r"[\s,;]+", typed["emails"]) if email]
        return parse(AppcodeManifest, {"metadata": {"name": typed["code"]}, "spec": spec | self.terms()})

    @staticmethod
    def fields_of(appcode: Appcode, terms: Terms) -> dict[str, Any]:
        """What a filled form shows."""
        owners = appcode.memberships.filter(role=Membership.Role.OWNER).values_list("user__username", flat=True)
        return {
            "org_node": appcode.org_node.path, "code": appcode.code, "name": appcode.name, "owners": ", ".join(sorted(owners)),
            "emails": "\n".join(appcode.emails), "remark": appcode.remark, "resource_type": appcode.resource_type,
            **TermsForm.shown(terms),
        }  # fmt: skip


class MemberForm(forms.Form):
    PATHS: ClassVar = {"spec.members": "username"}

    username = Words(label="User name", widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none"}))
    role = forms.ChoiceField(label="Role", choices=Membership.Role.choices, initial=Membership.Role.DEVELOPER)


class TokenForm(forms.Form):
    name = Words(label="Name", help_text="Where it will be used, for example “laptop”.")
    days = forms.IntegerField(
        label="Expires after (days)",
        initial=90,
        help_text=f"1 to {MAX_TOKEN_DAYS}.",
        widget=forms.NumberInput(attrs={"class": "num"}),
    )


class DaysForm(forms.Form):
    """`?from=` and `?to=`, both included; what is no day narrows nothing and is told at its field."""

    use_required_attribute = False


for _name, _label in (("from", "From"), ("to", "To")):
    DaysForm.base_fields[_name] = forms.DateField(
        label=_label, required=False, widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    )


class ZoneForm(forms.Form):
    time_zone = forms.ChoiceField(
        label="Time zone",
        required=False,
        choices=lambda: [("", "The browser's"), *((name, name.replace("_", " ")) for name in zones())],
    )


class OrgNodeForm(forms.Form):
    path = Words(
        label="Path", help_text="Lower-case words divided by dots, for example <code>qunarcorp.ops.dev</code>."
    )
    title = Words(label="Title", required=False, help_text="As people say it, for example “OPS”.")
    namespace = Words(
        label="Namespace",
        required=False,
        help_text="Makes it a business line: everything below runs in this Kubernetes namespace. Leave it empty otherwise.",
    )


class PersonForm(forms.Form):
    username = Words(label="User name", widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none"}))
    name = Words(label="Full name", required=False)
    email = Words(label="E-mail", widget=forms.EmailInput())
    administrator = forms.BooleanField(
        label="Platform administrator", required=False, help_text="Sees and may do everything, in every appcode."
    )
