"""Use that fades, a row for each appcode. The first pass over the ledger fills it."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0003_class"),
        ("portal", "0002_rules"),
    ]

    operations = [
        migrations.CreateModel(
            name="DecayedUse",
            fields=[
                (
                    "appcode",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="portal.appcode",
                    ),
                ),
                ("gpu_seconds", models.FloatField()),
                ("at", models.DateTimeField()),
                ("entry", models.BigIntegerField()),
            ],
            options={
                "verbose_name_plural": "decayed use",
            },
        ),
    ]
