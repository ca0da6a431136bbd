"""The two ways in which an action says no, whoever asked: a form, the REST API or a command.

`Invalid` carries one sentence for each field to mend, by its path in the manifest; a form maps paths to its fields, the API
sends them as problem details. `Conflict` means that the request is fine but not now (wrong state, name taken meanwhile).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldError:
    """`see` is the page, as a path, on which one asks for what is missing; "" where there is none."""

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
    """The text is a sentence that says what is in the way and what to do."""
