"""By when runs that wait will probably start, and what they were told first."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0006_repeat"),
    ]

    operations = [
        migrations.CreateModel(
            name="Forecast",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="forecast",
                        serialize=False,
                        to="clusters.run",
                    ),
                ),
                ("cloud", models.CharField(max_length=40)),
                ("p50", models.DateTimeField(null=True)),
                ("p90", models.DateTimeField(null=True)),
                ("as_of", models.DateTimeField()),
                (
                    "values",
                    models.JSONField(
                        default=dict, help_text="What it is based on, and why it became later: admission/foretold.py."
                    ),
                ),
                ("first_at", models.DateTimeField(null=True)),
                ("first_p50", models.DateTimeField(null=True)),
                ("first_p90", models.DateTimeField(null=True)),
                ("first_gpus", models.PositiveIntegerField(default=0)),
                ("first_newest", models.BigIntegerField(default=0)),
                ("started_at", models.DateTimeField(help_text="When it first got its places after that.", null=True)),
            ],
            options={
                "indexes": [models.Index(fields=["cloud", "-started_at"], name="forecast_started")],
            },
        ),
    ]
