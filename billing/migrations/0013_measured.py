"""How busy GPUs were while they were held: by pod and hour, and by day."""

import django.db.models.deletion
import django.db.models.expressions
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0012_gpu_counters"),
        ("portal", "0003_webhooks"),
    ]

    operations = [
        migrations.CreateModel(
            name="Measuring",
            fields=[
                ("cloud", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("position", models.CharField(blank=True, max_length=200)),
                ("read_at", models.DateTimeField(null=True)),
                ("trouble", models.CharField(blank=True, max_length=1000)),
                ("note", models.CharField(blank=True, max_length=1000)),
            ],
            options={
                "verbose_name_plural": "measuring",
            },
        ),
        migrations.CreateModel(
            name="MeasuredDay",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("day", models.DateField()),
                ("key", models.UUIDField()),
                ("business_line", models.CharField(max_length=200)),
                ("user", models.CharField(max_length=200)),
                ("framework", models.CharField(max_length=200)),
                ("gpu_model", models.CharField(max_length=60)),
                ("measured_ms", models.BigIntegerField()),
                ("busy_ms", models.BigIntegerField()),
                (
                    "appcode",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="portal.appcode",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("day", "key"), name="measured_day_once")],
            },
        ),
        migrations.CreateModel(
            name="MeasuredHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.CharField(max_length=80)),
                ("hour", models.DateTimeField()),
                ("gpu_model", models.CharField(blank=True, max_length=60)),
                ("minutes", models.BigIntegerField()),
                ("measured_ms", models.BigIntegerField()),
                ("busy_ms", models.BigIntegerField()),
                ("memory_mb", models.BigIntegerField(null=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="portal.appcode",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(
                            (
                                "measured_ms__gt",
                                django.db.models.expressions.CombinedExpression(
                                    models.F("busy_ms"), "*", models.Value(20)
                                ),
                            )
                        ),
                        fields=["hour"],
                        name="measured_idle",
                    )
                ],
                "constraints": [models.UniqueConstraint(fields=("uid", "hour"), name="measured_once")],
            },
        ),
    ]
