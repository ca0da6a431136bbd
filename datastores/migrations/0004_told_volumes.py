"""Since when a cloud has taken a volume: for those that are there already, since they were made."""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def were_told(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    apps.get_model("datastores", "Volume").objects.filter(told_at=None).update(told_at=models.F("made_at"))


class Migration(migrations.Migration):
    dependencies = [
        ("datastores", "0003_metered_volumes"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="volume",
            name="volume_unsettled",
        ),
        migrations.AddField(
            model_name="volume",
            name="told_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.RunPython(were_told, migrations.RunPython.noop),
        migrations.AddIndex(
            model_name="volume",
            index=models.Index(
                condition=models.Q(
                    ("datastore", None),
                    models.Q(
                        ("told_at__isnull", False),
                        models.Q(
                            models.Q(("size", models.F("told_size")), _negated=True),
                            ("metered_mb", 0),
                            _connector="OR",
                        ),
                    ),
                    _connector="OR",
                ),
                fields=["tried_at"],
                name="volume_unsettled",
            ),
        ),
    ]
