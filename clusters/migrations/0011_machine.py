"""What tasks did with their machines, and what clouds do not tell of that. The version before reads and writes none of it."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0010_runs_by_place"),
    ]

    operations = [
        migrations.AddField(
            model_name="cloudstate",
            name="unmeasured",
            field=models.JSONField(db_default={}, default=dict),
        ),
        migrations.CreateModel(
            name="MachineSeries",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("role", models.CharField(blank=True, max_length=12)),
                ("index", models.PositiveIntegerField(default=0)),
                ("attempt", models.PositiveIntegerField(default=0)),
                ("at", models.DateTimeField(help_text="Of the last sample.")),
                ("state", models.JSONField(default=dict)),
                ("begin", models.DateTimeField(null=True)),
                ("recent", models.BinaryField(default=b"")),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="machine_series",
                        to="clusters.run",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "machine series",
            },
        ),
        migrations.CreateModel(
            name="MachineBlock",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("step", models.PositiveSmallIntegerField()),
                ("begin", models.DateTimeField()),
                ("data", models.BinaryField()),
                (
                    "series",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="blocks",
                        to="clusters.machineseries",
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="machineseries",
            index=models.Index(condition=models.Q(("begin__isnull", False)), fields=["begin"], name="machine_open"),
        ),
        migrations.AddConstraint(
            model_name="machineseries",
            constraint=models.UniqueConstraint(fields=("run", "role", "index", "attempt"), name="machine_series_once"),
        ),
        migrations.AddIndex(
            model_name="machineblock",
            index=models.Index(fields=["series", "begin"], name="machine_block_of"),
        ),
        migrations.AddIndex(
            model_name="machineblock",
            index=models.Index(fields=["step", "begin"], name="machine_block_age"),
        ),
    ]
