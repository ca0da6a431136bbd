"""Sessions that have ended stay ended. Servers of the version before still write people without it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("portal", "0006_events_kept")]
    operations = [
        migrations.AddField(
            "user",
            "session_epoch",
            models.PositiveIntegerField(
                db_default=0, default=0, help_text="Sessions that were begun in an earlier one have ended."
            ),
        )
    ]
