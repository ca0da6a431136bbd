"""The portal's forms. A form only parses the input into a manifest; manifest and action validate it.

So the form and REST accept and refuse the same things with the same messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms
from django.conf import settings
from django.utils.html import format_html

from portal.errors import FieldError, Invalid
from portal.lending import Share
from portal.manifests import parse
from portal.manifests.appcode import (
    MAX_EMAILS,
    MAX_OWNERS,
    MAX_REASON,
    MAX_REMARK,
    MAX_TOKEN_DAYS,
    MAX_WEIGHT,
    Answered,
    AppcodeManifest,
    Granted,
    Wanted,
)
from portal.models import Appcode, Membership, OrgNode
from portal.terms import Terms
from portal.text.zones import zone_named, zones


def show_errors(form: forms.BaseForm, error: Invalid, fields: Mapping[str, str]) -> None:
    """Adds each error to its field (see `field_of`). Errors without a field go to the top of the form, with their path."""
    for item in error.errors:
        name = field_of(item.path, fields)
        if name in form.fields:
            form.add_error(name, with_link(item))
        else:
            where = ".".join(map(str, item.path))
            form.add_error(None, f"{where}: {item.message}" if where else item.message)


def field_of(path: tuple[str, ...], fields: Mapping[str, str]) -> str | None:
    """The field for a manifest path, None if there is none. `fields` maps dotted paths to fields; the longest prefix wins."""
    prefixes = (".".join(map(str, path[:n])) for n in range(len(path), 0, -1))
    return next((fields[prefix] for prefix in prefixes if prefix in fields), None)


def with_link(error: FieldError) -> str:
    """The error's message, with a link to the page on which to request what is missing. It opens in a new tab, so that
    the form keeps its input."""
    link = '{} <a href="{}" target="_blank">Request quota</a>'
    return format_html(link, error.message, error.see) if error.see else error.message


class Words(forms.CharField):
    """Raw text. `required` is for the label and the browser; the manifest decides whether it may be empty."""

    def validate(self, value: Any) -> None:
        return


def prose(label: str, hint: str = "", *, required: bool = True, rows: int, most: int = 0) -> Words:
    """Several lines of text for people. With `most` the page counts the characters that are left; it refuses none."""
    widget = forms.Textarea(attrs={"rows": rows, **({"data-count": most} if most else {})})
    return Words(label=label, help_text=hint, required=required, widget=widget)


class TermsForm(forms.Form):
    """The terms of an appcode. Empty fields leave values unchanged, except the last day: empty means no end."""

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
        """The input of a valid form, as in a manifest."""
        typed = self.cleaned_data
        quota = {name: typed[name] for name in ("gpus", "storage", "budget") if typed.get(name)}
        return {"quota": quota, "expires": typed["expires"] or None} if "expires" in typed else {"quota": quota}

    @staticmethod
    def shown(terms: Terms) -> dict[str, Any]:
        """Initial values of the form."""
        budget = "" if terms.budget is None else f"{terms.budget:.2f}"
        expires = terms.expires.isoformat() if terms.expires else ""
        return {"gpus": terms.gpus, "storage": terms.storage, "budget": budget, "expires": expires}


class ShareForm(forms.Form):
    """What only administrators set. Empty fields leave values unchanged."""

    borrow = Words(
        label="May borrow",
        required=False,
        help_text="GPUs that its runs may hold beyond the quota while nobody else needs them.",
        widget=forms.NumberInput(attrs={"min": 0, "class": "num"}),
    )
    weight = Words(
        label="Weight",
        required=False,
        help_text="Its part of what is lent, against those of other appcodes. 0: what nobody else wants.",
        widget=forms.NumberInput(attrs={"min": 0, "max": MAX_WEIGHT, "class": "num"}),
    )

    def share(self) -> dict[str, Any]:
        """The input of a valid form, as in a manifest."""
        typed = self.cleaned_data
        return {"share": {name: typed[name] for name in ("borrow", "weight") if typed.get(name)}}

    @staticmethod
    def shown_share(share: Share) -> dict[str, Any]:
        """Initial values of the form."""
        return {"borrow": share.borrow, "weight": share.weight}


SHARE_PATHS = {"share": "borrow", "share.borrow": "borrow", "share.weight": "weight"}
TERMS_PATHS = {
    "quota": "gpus", "quota.gpus": "gpus", "quota.storage": "storage", "quota.budget": "budget", "expires": "expires",
}  # fmt: skip


class RequestForm(TermsForm):
    """An owner's request for other terms."""

    PATHS: ClassVar = TERMS_PATHS | {"reason": "reason"}

    reason = prose(
        "Reason",
        f"The administrators read it; at most {MAX_REASON} characters.",
        required=False,
        rows=3,
        most=MAX_REASON,
    )

    def wanted(self) -> Wanted:
        """Raises Invalid. Call it on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        return parse(Wanted, {**self.terms(), "reason": " ".join(self.cleaned_data["reason"].split())})


class DecisionForm(TermsForm, ShareForm):
    """An administrator's decision: other terms than requested, a share, or a note."""

    PATHS: ClassVar = TERMS_PATHS | SHARE_PATHS | {"note": "note"}

    revision = forms.IntegerField(widget=forms.HiddenInput())
    note = prose(
        "Note",
        "Why you refuse it, or what is to be changed. The owners read it.",
        required=False,
        rows=2,
        most=MAX_REASON,
    )

    def granted(self) -> Granted:
        """Raises Invalid. Call it on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        return parse(Granted, {**self.terms(), **self.share(), "revision": self.cleaned_data["revision"]})

    def answered(self) -> Answered:
        """Raises Invalid. Call it on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        note = " ".join(self.cleaned_data["note"].split())
        return parse(Answered, {"revision": self.cleaned_data["revision"], "note": note})


class AppcodeForm(TermsForm, ShareForm):
    """Requests or changes an appcode: every field of its manifest."""

    PATHS: ClassVar = {
        "metadata.name": "code",
        "spec.orgNode": "org_node",
        "spec.name": "name",
        "spec.owners": "owners",
        "spec.emails": "emails",
        "spec.remark": "remark",
        "spec.resourceType": "resource_type",
        **{f"spec.{path}": name for path, name in (TERMS_PATHS | SHARE_PATHS).items()},
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
        if not administrator:
            del self.fields["borrow"], self.fields["weight"]
        new = appcode is None or appcode.state == Appcode.State.REQUESTED
        if new:
            self.fields[
                "budget"
            ].help_text = f"In {settings.CURRENCY}. When it is used up, new runs are blocked. Empty: none."
        elif not administrator:
            for name in ("gpus", "storage", "budget", "expires"):
                del self.fields[name]

    def manifest(self) -> AppcodeManifest:
        """Raises Invalid. Call it on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        typed = self.cleaned_data
        spec: dict[str, Any] = {"name": typed["name"], "remark": typed["remark"], "orgNode": typed["org_node"]}
        spec["resourceType"] = typed["resource_type"]
        spec["owners"] = [name for name in re.split(r"[\s,;]+", typed["owners"]) if name]
        spec["emails"] = [email for email in re.split(r"[\s,;]+", typed["emails"]) if email]
        return parse(AppcodeManifest, {"metadata": {"name": typed["code"]}, "spec": spec | self.terms() | self.share()})

    @staticmethod
    def fields_of(appcode: Appcode, terms: Terms) -> dict[str, Any]:
        """Initial values of the form."""
        owners = appcode.memberships.filter(role=Membership.Role.OWNER).values_list("user__username", flat=True)
        return {
            "org_node": appcode.org_node.path, "code": appcode.code, "name": appcode.name, "owners": ", ".join(sorted(owners)),
            "emails": "\n".join(appcode.emails), "remark": appcode.remark, "resource_type": appcode.resource_type,
            **TermsForm.shown(terms), **ShareForm.shown_share(appcode.share),
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
    """`?from=` and `?to=`, both inclusive. An invalid day filters nothing and shows an error at its field."""

    use_required_attribute = False


for _name, _label in (("from", "From"), ("to", "To")):
    DaysForm.base_fields[_name] = forms.DateField(
        label=_label, required=False, widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    )


class ZoneInput(forms.TextInput):
    """A time zone, offered as one types: a city is enough."""

    template_name = "components/zone.html"

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        listed = {
            **(attrs or {}),
            "list": f"{(attrs or {}).get('id', name)}_zones",
            "autocomplete": "off",
            "spellcheck": "false",
        }
        return {**super().get_context(name, value, listed), "zones": zones()}

    def value_from_datadict(self, data: Mapping[str, Any], files: Any, name: str) -> str:
        return zone_named(data.get(name) or "")


class ZoneForm(forms.Form):
    time_zone = Words(label="Time zone", required=False, widget=ZoneInput(attrs={"placeholder": "The browser's"}))


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
