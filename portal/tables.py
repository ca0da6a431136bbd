"""Migrations that create many tables or columns in a row.

After each `CreateModel` and `AddField` Django builds all related models again, which for 87 tables takes most of the first
`migrate`. Here the models of consecutive ones are built once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from django.db.migrations.operations import AddField, CreateModel
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState


class Together(Operation):
    """Consecutive `CreateModel`s or `AddField`s: the same SQL in the same order."""

    reduces_to_sql = True
    reversible = True

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        # A state without `apps` builds them when they are first asked for.
        state.__dict__.pop("apps", None)
        for operation in self.operations:
            operation.state_forwards(app_label, state)

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        for operation in self.operations:
            operation.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        for operation in reversed(self.operations):
            operation.database_backwards(app_label, schema_editor, from_state, to_state)

    def describe(self) -> str:
        return f"{len(self.operations)} times {type(self.operations[0]).__name__}"


def at_once(operations: Iterable[Operation]) -> list[Operation]:
    found: list[Operation] = []
    for kind, group in groupby(operations, type):
        each = list(group)
        found += [Together(each)] if kind in (CreateModel, AddField) and len(each) > 1 else each
    return found
