"""Runs that wait for places and runs that have some are found by indexes; and runs made by unreleased programs get their class.

Without a transaction, so that nobody waits for the indexes. Each operation may be repeated.
"""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

# Those of the release before have no class, and are normal already.
FILL = """UPDATE clusters_run SET priority_class = spec->>'priorityClass'
WHERE spec->>'priorityClass' IN ('urgent', 'spare') AND priority_class = 'normal'"""


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("clusters", "0009_priority_class")]

    operations = [
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(
                    models.Q(("placed_at__isnull", False), ("applied_at__isnull", False), _connector="OR"),
                    ("gone", False),
                ),
                fields=["cloud"],
                name="run_holds",
            ),
        ),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(
                    ("desired", "running"),
                    ("given_back_at", None),
                    ("gone", False),
                    ("placed_at", None),
                    ("refusal", ""),
                    ("verdict", ""),
                ),
                fields=["cloud", "id"],
                include=[
                    "cluster",
                    "created_by",
                    "priority_class",
                    "phase",
                    "admitted_at",
                    "applied_at",
                    "wait_reason",
                    "source",
                    "not_before",
                    "blocked_message",
                ],
                name="run_waits",
            ),
        ),
    ]
