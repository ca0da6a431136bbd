"""The portal's forms. A form only reads what was typed into a manifest; the manifest and the action judge it."""

from __future__ import annotations

from collections.abc import Mapping

from django import forms

from portal.errors import Invalid


def show_errors(form: forms.BaseForm, error: Invalid, fields: Mapping[str, str]) -> None:
    """Puts each sentence beside its field. `fields` maps dotted manifest paths to field names; the longest prefix wins.

    What has no field goes to the top of the form together with its path.
    """
    for item in error.errors:
        parts = [str(part) for part in item.path]
        prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        name = next((fields[prefix] for prefix in prefixes if prefix in fields), None)
        if name in form.fields:
            form.add_error(name, item.message)
        else:
            form.add_error(None, f"{'.'.join(parts)}: {item.message}" if parts else item.message)
