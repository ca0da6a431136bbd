"""The Import form: manifests from a file or pasted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from pydantic import ValidationError

from clusters.frame.form import area
from clusters.frame.written import read_document
from clusters.manifest.cluster import ClusterManifest
from portal.errors import FieldError, Invalid
from portal.manifests import mistakes

MAX_IMPORT = 100
MAX_IMPORT_BYTES = 1024 * 1024


class ImportForm(forms.Form):
    """Manifests as a file or pasted; `text` holds them after validation."""

    use_required_attribute = False

    file = forms.FileField(
        label="File",
        required=False,
        help_text="One manifest as YAML or JSON, or several in a list, as Export writes them.",
        widget=forms.ClearableFileInput(attrs={"accept": ".json,.yaml,.yml,application/json,application/yaml"}),
    )
    manifest = area("Or paste it", required=False, rows=12, placeholder='{"kind": "cluster", …}')

    def clean(self) -> dict[str, Any]:
        file = self.cleaned_data.get("file")
        self.text = self.cleaned_data.get("manifest") or ""
        if file is not None:
            if file.size > MAX_IMPORT_BYTES:
                self.add_error("file", "The file is larger than 1 MiB.")
                return self.cleaned_data
            try:
                self.text = file.read().decode("utf-8-sig")
            except UnicodeDecodeError:
                self.add_error("file", "This is not a text file in UTF-8.")
        elif not self.text.strip() and not self.errors:
            self.add_error("manifest", "Choose a file or paste a manifest.")
        return self.cleaned_data

    def complain(self, errors: Iterable[FieldError]) -> None:
        field = "file" if self.cleaned_data.get("file") else "manifest"
        for error in errors:
            self.add_error(field, f"{'.'.join(error.path)}: {error.message}" if error.path else error.message)


def read_manifests(text: str) -> list[ClusterManifest]:
    """Parses one manifest, a list, or Export's {"kind": "List", "items": […]}. Raises Invalid; the path starts with the
    manifest's number if there are several."""
    value = read_document(text)
    if isinstance(value, dict) and value.get("kind") == "List":
        value = value.get("items")
    documents = value if isinstance(value, list) else [value]
    if not documents or len(documents) > MAX_IMPORT:
        raise Invalid.at(message=f"Give 1 to {MAX_IMPORT} manifests at one time.")
    manifests: list[ClusterManifest] = []
    errors: list[FieldError] = []
    for number, document in enumerate(documents):
        where = (f"manifest {number + 1}",) if len(documents) > 1 else ()
        try:
            manifests.append(ClusterManifest.model_validate(document))
        except ValidationError as error:
            errors += [FieldError((*where, *each.path), each.message) for each in mistakes(error)]
    if errors:
        raise Invalid(errors)
    return manifests
