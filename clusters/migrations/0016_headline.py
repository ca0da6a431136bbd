"""Two metrics of a run, so that lists show them without reading its metrics. Runs that ended before have none."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0015_decision_lost")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="headline",
            field=models.JSONField(
                db_default=[],
                default=list,
                help_text='Its two metrics for lists, when they were last read: [["loss", 0.31], …]',
            ),
        ),
    ]
