"""Field types shared by these forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms


class Words(forms.CharField):
    """Text exactly as typed, neither stripped nor validated. Line ends become LF."""

    def __init__(self, **options: Any) -> None:
        super().__init__(strip=False, **options)

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        return text.replace("\r\n", "\n") if isinstance(text, str) else text

    def validate(self, value: Any) -> None:
        """Skips validation: `required` only controls whether the label marks the field as optional."""


class Ticks(forms.CheckboxSelectMultiple):
    """Checkboxes whose values share one text, separated by spaces: "a b"."""

    def value_from_datadict(self, data: Mapping[str, Any], files: Any, name: str) -> str:
        said = data.getlist(name) if hasattr(data, "getlist") else data.get(name, "")
        return said if isinstance(said, str) else " ".join(said)

    def format_value(self, value: Any) -> list[str]:
        return str(value or "").split()
