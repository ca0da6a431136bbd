"""What programs record by MLflow's client."""

import uuid

import django.db.models.deletion
from django.db import migrations, models

from portal.tables import at_once


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0013_numbers_due"),
        ("portal", "0003_shares"),
    ]

    operations = [
        migrations.CreateModel(
            name="Experiment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=256)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="portal.appcode"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="TrackedRun",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=256)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("RUNNING", "Running"),
                            ("SCHEDULED", "Scheduled"),
                            ("FINISHED", "Finished"),
                            ("FAILED", "Failed"),
                            ("KILLED", "Killed"),
                        ],
                        default="RUNNING",
                        max_length=10,
                    ),
                ),
                ("started_at", models.BigIntegerField()),
                ("ended_at", models.BigIntegerField(null=True)),
                ("params", models.JSONField(default=dict, help_text="Texts by name; a value never changes.")),
                ("tags", models.JSONField(default=dict, help_text="Texts by name.")),
                (
                    "experiment",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tracked",
                        to="clusters.experiment",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="tracked", to="clusters.run"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="TrackedMetric",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=250)),
                ("last_step", models.BigIntegerField()),
                ("last_at", models.BigIntegerField(help_text="Milliseconds since 1970.")),
                ("last", models.FloatField(help_text="The value at the highest step.")),
                ("kept", models.BinaryField(default=b"")),
                ("stride", models.PositiveIntegerField(default=1)),
                (
                    "seen",
                    models.PositiveBigIntegerField(default=0, help_text="Points in `kept` before it was thinned."),
                ),
                ("recent", models.BinaryField(default=b"")),
                (
                    "extremes",
                    models.BinaryField(
                        default=b"", help_text="The smallest and the largest point that came into `kept`."
                    ),
                ),
                (
                    "tracked",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="metrics",
                        to="clusters.trackedrun",
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            model_name="experiment",
            constraint=models.UniqueConstraint(fields=("appcode", "name"), name="experiment_once"),
        ),
        migrations.AddIndex(
            model_name="trackedrun",
            index=models.Index(fields=["experiment", "-started_at", "id"], name="tracked_newest"),
        ),
        migrations.AddConstraint(
            model_name="trackedmetric",
            constraint=models.UniqueConstraint(fields=("tracked", "name"), name="tracked_metric_once"),
        ),
    ]
    operations = at_once(operations)
