"""The numbers of runs in short, their parameters, tags and notes, and views of the table of results.

The version before writes none of it: its runs have no parameters, and their numbers are due, so the new one reads them.
"""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from portal.tables import at_once

ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0011_machine"),
        ("portal", "0003_shares"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="note",
            field=models.TextField(blank=True, db_default="", default="", help_text="What users say about it."),
        ),
        migrations.AddField(
            model_name="run",
            name="numbers_at",
            field=models.DateTimeField(help_text="As of when its metrics are kept (results/models.py).", null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="numbers_due",
            field=models.BooleanField(
                db_default=True,
                default=True,
                help_text="Once it is gone, its metrics are to be read for the last time.",
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="parameters",
            field=models.JSONField(
                help_text="Its variables and options by name (results/values.py); NULL in runs of earlier releases.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="tags",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=40),
                db_default=[],
                default=list,
                help_text="Words of users.",
                size=None,
            ),
        ),
        migrations.CreateModel(
            name="Metric",
            fields=[
                ("id", ID.clone()),
                ("name", models.CharField(max_length=200)),
                (
                    "appcode",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="portal.appcode",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("appcode", "name"), name="metric_name_once")],
            },
        ),
        migrations.CreateModel(
            name="ResultsView",
            fields=[
                ("id", ID.clone()),
                ("scope", models.CharField(blank=True, default="", max_length=80)),
                ("query", models.TextField(help_text="As after the ? of the address.")),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="portal.appcode",
                    ),
                ),
                (
                    "person",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("appcode", "person", "scope"), name="results_view_once"),
                    models.UniqueConstraint(
                        condition=models.Q(("person", None)), fields=("appcode",), name="results_view_of_appcode"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RunMetric",
            fields=[
                ("id", ID.clone()),
                ("last", models.FloatField()),
                ("step", models.BigIntegerField()),
                ("low", models.FloatField(null=True)),
                ("low_step", models.BigIntegerField(null=True)),
                ("high", models.FloatField(null=True)),
                ("high_step", models.BigIntegerField(null=True)),
                (
                    "metric",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="clusters.metric",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="numbers",
                        to="clusters.run",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("run", "metric"), name="run_metric_once")],
                "indexes": [
                    models.Index(fields=["metric", "run"], include=("last", "low", "high"), name="run_metric_values")
                ],
            },
        ),
    ]
    operations = at_once(operations)
