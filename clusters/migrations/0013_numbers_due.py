"""Runs whose numbers are to be read are found by an index. Without a transaction, so that nobody waits for it."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("clusters", "0012_results")]

    operations = [
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(("gone", True), ("numbers_due", True)), fields=["id"], name="run_numbers_due"
            ),
        ),
    ]
