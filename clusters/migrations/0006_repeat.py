"""Windows that repeat every day or every week."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0005_pools")]

    operations = [
        migrations.AddField(
            "window",
            "repeat",
            models.CharField(
                blank=True,
                choices=[("", "never"), ("daily", "every day"), ("weekly", "every week")],
                db_default="",
                default="",
                max_length=6,
            ),
        ),
    ]
