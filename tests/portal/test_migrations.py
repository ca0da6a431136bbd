"""Migrations run while servers of the version before still answer: these know nothing of a new column and must go on writing."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.migrations import AddField
from django.db.migrations.loader import MigrationLoader

APPS = ("portal", "billing", "datastores", "clusters")


@pytest.mark.django_db
def test_a_column_that_a_table_got_later_has_a_value_that_the_database_itself_knows():
    loader = MigrationLoader(connection)
    made_by = {
        (app, operation.name_lower): name
        for (app, name), migration in loader.disk_migrations.items()
        for operation in migration.operations
        if type(operation).__name__ == "CreateModel"
    }
    state = loader.project_state()
    late = [
        (app, operation.model_name_lower, operation.name)
        for (app, name), migration in loader.disk_migrations.items()
        for operation in migration.operations
        if app in APPS and isinstance(operation, AddField) and made_by[app, operation.model_name_lower] != name
    ]
    assert len(late) > 10
    for app, model, name in late:
        field = state.models[app, model].fields[name]
        assert field.null or field.has_db_default() or field.many_to_many, f"{app}.{model}.{name}"
