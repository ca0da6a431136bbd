"""The history of what was decided about runs, and the code and values of what a run waits for. Older waits have only sentences."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0002_places")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="wait_code",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="What `wait_reason` says more precisely (admission/codes.py).",
                max_length=20,
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="wait_values",
            field=models.JSONField(
                db_default={}, default=dict, help_text="The values of `wait_code`, from which its sentence is made."
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="noted",
            field=models.JSONField(
                db_default={},
                default=dict,
                help_text='Its newest Decision: {"number": 3, "at": …, "code": "Gpus", "values": {…}}. status/history.py writes it.',
            ),
        ),
        migrations.CreateModel(
            name="Decision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField(help_text="From 1.")),
                ("at", models.DateTimeField()),
                ("code", models.CharField(help_text="One of admission/codes.py.", max_length=20)),
                ("values", models.JSONField(default=dict)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="decisions",
                        to="clusters.run",
                    ),
                ),
            ],
            options={
                "ordering": ["run_id", "number"],
                "constraints": [models.UniqueConstraint(fields=("run", "number"), name="decision_number_once")],
            },
        ),
    ]
