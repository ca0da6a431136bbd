"""Runs that lost their places are found by when they did. Without a transaction, so that nobody waits for the index."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("clusters", "0014_tracking")]

    operations = [
        AddIndexConcurrently(
            model_name="decision",
            index=models.Index(
                condition=models.Q(("code__in", ["TakenBack", "GivenBack"])), fields=["at"], name="decision_lost"
            ),
        ),
    ]
