"""The two errors of an action, for forms, the REST API and commands alike.

`Invalid` carries one sentence for each invalid field, by its path in the manifest; a form maps paths to its fields, the
API sends them as problem details. `Conflict` means that the request is valid but not possible now (wrong state, name
taken meanwhile).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldError:
    """`see` is the path of the page on which to request what is missing; "" if there is none."""

    path: tuple[str, ...]
    message: str
    see: str = ""


class Invalid(Exception):
    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("; ".join(f"{'.'.join(error.path)}: {error.message}" for error in errors))
        self.errors = errors

    @classmethod
    def at(cls, *path: str, message: str, see: str = "") -> Invalid:
        return cls([FieldError(path, message, see)])


class Conflict(Exception):
    """Its text is a sentence about what is in the way and what to do."""


def sentence(error: Exception) -> str:
    """The text of a refusal for users; the messages of several fields become one text."""
    return " ".join(each.message for each in error.errors) if isinstance(error, Invalid) else str(error)
