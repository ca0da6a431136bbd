"""What all fields of these forms are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms


class Words(forms.CharField):
    """Text exactly as typed, nothing stripped or judged; line ends as programs write them, not as browsers send them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(strip=False, **options)

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        return text.replace("\r\n", "\n") if isinstance(text, str) else text

    def validate(self, value: Any) -> None:
        """`required` only says whether the label calls the field optional."""


class Ticks(forms.CheckboxSelectMultiple):
    """Boxes whose values, none of which has a space, are one text: "a b"."""

    def value_from_datadict(self, data: Mapping[str, Any], files: Any, name: str) -> str:
        said = data.getlist(name) if hasattr(data, "getlist") else data.get(name, "")
        return said if isinstance(said, str) else " ".join(said)

    def format_value(self, value: Any) -> list[str]:
        return str(value or "").split()
