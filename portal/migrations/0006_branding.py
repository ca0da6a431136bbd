"""Branding: name, logo, colour, banner."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("portal", "0005_event_told"),
    ]

    operations = [
        migrations.CreateModel(
            name="Branding",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("spec", models.JSONField(default=dict)),
            ],
            options={"constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="branding_once")]},
        ),
    ]
