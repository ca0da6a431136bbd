"""The form of a manifest: what the forms of all rooms share.

A form judges nothing. It turns its input into a manifest document; the manifest, and later the action, validate it. Each error is
shown beside the field that its path names. So form and REST accept and refuse the same things, in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from django import forms
from django.core.exceptions import PermissionDenied
from django.forms.widgets import ChoiceWidget
from pydantic import BaseModel

from clusters.frame.raw_text import Words
from portal.errors import Conflict, FieldError, Invalid
from portal.manifests import parse
from portal.pages.forms import field_of, with_link

M = TypeVar("M", bound=BaseModel)
Made = TypeVar("Made")
Choices = Sequence[tuple[str, Any]]
PLAIN = {"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
CODE = {"class": "code", **PLAIN}


def line(
    label: str, hint: str = "", *, code: bool = False, required: bool = True, initial: Any = None, **html: Any
) -> Words:
    """One line of text. `html` are further attributes of the input."""
    widget = forms.TextInput(attrs={**(CODE if code else PLAIN), **html})
    return Words(label=label, help_text=hint, required=required, initial=initial, widget=widget)


def area(label: str, hint: str = "", *, required: bool = True, rows: int, **html: Any) -> Words:
    """Several lines of code. For texts see `prose` of `portal/pages/forms.py`."""
    attributes = {"rows": rows, "class": "code", "spellcheck": "false", "autocapitalize": "none", **html}
    return Words(label=label, help_text=hint, required=required, widget=forms.Textarea(attrs=attributes))


def number(label: str, hint: str = "", *, required: bool = True, initial: Any = None, **html: Any) -> Words:
    """A number, kept as typed. With `min` or `max` the browser draws steppers."""
    kind = forms.NumberInput if html.keys() & {"min", "max"} else forms.TextInput
    usual = {"step": 1} if kind is forms.NumberInput else {"autocomplete": "off"}
    widget = kind(attrs={"inputmode": "numeric", **usual, **html})
    return Words(label=label, help_text=hint, required=required, initial=initial, widget=widget)


class Select(forms.Select):
    """A select. Options in `closed` cannot be chosen any more; one that is chosen already stays."""

    closed: Collection[str] = ()

    def create_option(self, name: str, value: Any, label: Any, selected: Any, *args: Any, **options: Any) -> Any:
        made = super().create_option(name, value, label, selected, *args, **options)
        if not selected and str(value) in self.closed:
            made["attrs"]["disabled"] = True
        return made


def choice(
    label: str, hint: str = "", choices: Choices = (), *, required: bool = True, initial: Any = None, **html: Any
) -> Words:
    """One of some choices, which the form may set later by `choose`."""
    widget = Select(choices=choices, attrs=html)
    return Words(label=label, help_text=hint, required=required, initial=initial, widget=widget)


def aria(label: str) -> dict[str, Any]:
    """The attribute that names an input for screen readers, where its label is too short."""
    return {"aria-label": label}


class ManifestForm(forms.Form, Generic[M]):
    """After a valid `is_valid()`, `manifest` is what the user asked for."""

    use_required_attribute = False

    manifest_class: ClassVar[type[BaseModel]]
    # Fields by dotted path in the manifest; the longest prefix of a path names its field.
    paths: ClassVar[Mapping[str, str]]
    manifest: M | None = None

    def document(self, values: Mapping[str, str]) -> tuple[Any, list[FieldError]]:
        """The manifest document for these values, and errors for values that no document can hold. May raise Invalid."""
        raise NotImplementedError

    def parsed(self, values: Mapping[str, str]) -> M:
        """The manifest for these values. Raises Invalid."""
        document, complaints = self.document(values)
        try:
            manifest = self.read(document)
        except Invalid as invalid:
            raise Invalid([*complaints, *invalid.errors]) from None
        if complaints:
            raise Invalid(complaints)
        return manifest

    def read(self, document: Any) -> M:
        """The document as a manifest. Raises Invalid."""
        return parse(self.manifest_class, document)  # type: ignore[return-value]  # the class says M and `manifest_class` alike

    def clean(self) -> dict[str, Any]:
        try:
            self.manifest = self.parsed(self.cleaned())
        except Invalid as invalid:
            self.complain(invalid.errors)
        return self.cleaned_data

    def cleaned(self) -> dict[str, Any]:
        """The submitted values; "" for an invalid one."""
        return {name: self.cleaned_data.get(name, "") for name in self.fields}

    def said(self) -> dict[str, str]:
        """The values as shown, whether submitted or initial."""
        return {name: str(self[name].value() or "") for name in self.fields}

    def field_at(self, path: tuple[str, ...]) -> str | None:
        return field_of(path, self.paths)

    def complain(self, errors: Iterable[FieldError]) -> None:
        """Puts each error beside the field that its path names, or above the form. Only the first error of a field is shown."""
        for error in errors:
            name = self.field_at(error.path)
            if name is None:
                where = ".".join(error.path)
                self.add_error(None, f"{where}: {error.message}" if where else error.message)
            elif name not in self.errors:
                variable = f"{error.path[2]}: " if name == "env" and len(error.path) > 2 else ""
                self.add_error(name, with_link(replace(error, message=variable + error.message)))

    def attempt(self, action: Callable[[M], Made], *, show_denied: bool = True) -> Made | None:
        """What `action` makes of the manifest; None if the form is invalid or refused, with the errors beside the fields. Without
        `show_denied`, PermissionDenied is raised and answered by 403."""
        if not self.is_valid() or self.manifest is None:
            return None
        try:
            return action(self.manifest)
        except Invalid as invalid:
            self.complain(invalid.errors)
        except PermissionDenied as denied:
            if not show_denied:
                raise
            self.complain([FieldError(("metadata", "appcode"), str(denied))])
        except Conflict as conflict:
            self.add_error(None, str(conflict))
        return None

    def complaints(self) -> dict[str, list[Any]]:
        """The wrong fields, for a preview: `missing`, the labels of empty ones, and `wrong`, (label, error, id of
        the control) of others."""
        found = [
            (
                self.fields[name].widget.attrs.get("aria-label", self[name].label),
                self[name].value(),
                errors[0],
                self[name].id_for_label,
            )
            for name, errors in ((name, self.errors[name]) for name in self.fields if name in self.errors)
        ]
        return {
            "missing": [label for label, value, *_ in found if not value],
            "wrong": [(label, sentence, at) for label, value, sentence, at in found if value],
        }

    def choose(self, name: str, choices: Choices) -> None:
        widget = self.fields[name].widget
        assert isinstance(widget, ChoiceWidget)
        widget.choices = choices

    def close(self, name: str, values: Collection[str]) -> None:
        """Shows these choices without letting anybody choose them."""
        widget = self.fields[name].widget
        assert isinstance(widget, Select)
        widget.closed = values

    def offer_kept(self, name: str, choices: Choices, *, prefix: str = "") -> None:
        """Offers `choices`, and the current value even if it is no longer among them. Its label leaves out `prefix`."""
        value = str(self[name].value() or "")
        if value not in {key for key, _ in choices}:
            choices = [*choices, (value, f"{value.removeprefix(prefix)} (not available)" if value else "Choose")]
        self.choose(name, choices)

    def fix(self, *names: str) -> None:
        """Locks fields at their initial value, whatever the request sends."""
        for name in names:
            self.fields[name].disabled = True
