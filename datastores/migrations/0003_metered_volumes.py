"""What of a volume is paid for."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("datastores", "0002_volumes"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="volume",
            name="volume_unsettled",
        ),
        migrations.AddField(
            model_name="volume",
            name="metered_mb",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.AddIndex(
            model_name="volume",
            index=models.Index(
                condition=models.Q(
                    ("datastore", None),
                    models.Q(("size", models.F("told_size")), _negated=True),
                    ("metered_mb", 0),
                    _connector="OR",
                ),
                fields=["tried_at"],
                name="volume_unsettled",
            ),
        ),
    ]
