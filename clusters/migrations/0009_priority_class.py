"""The class of a run is a column, so that queries read no specs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0008_checkpoints")]

    operations = [
        # Programs of the release before know no classes: what they add is normal, also of a definition that names another one.
        migrations.AddField(
            model_name="run",
            name="priority_class",
            field=models.CharField(
                db_default="normal",
                default="normal",
                help_text="As in its spec; for queries, which read no JSON.",
                max_length=6,
            ),
        ),
    ]
