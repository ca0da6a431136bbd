"""The events that the bell tells are found by an index. Without a transaction, so that nobody waits for it."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

KINDS = [
    "appcode.requested",
    "appcode.approved",
    "appcode.renewed",
    "appcode.refused",
    "appcode.changes-requested",
    "appcode.disabled",
    "appcode.enabled",
    "appcode.expiring",
    "appcode.expired",
    "budget.told",
    "budget.announced",
    "budget.acted",
    "budget.taken-back",
    "budget.lifted",
]


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("portal", "0004_bell")]

    operations = [
        AddIndexConcurrently(
            model_name="event",
            index=models.Index(condition=models.Q(("verb__in", KINDS)), fields=["appcode", "-id"], name="event_told"),
        ),
    ]
