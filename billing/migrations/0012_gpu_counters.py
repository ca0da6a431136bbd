"""The highest GPU-seconds that Prometheus was told."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0011_budgets"),
    ]

    operations = [
        migrations.CreateModel(
            name="GpuCounter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("code", models.CharField(max_length=63)),
                ("business_line", models.CharField(max_length=200)),
                ("gpu_model", models.CharField(max_length=60)),
                ("seconds", models.BigIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("code", "business_line", "gpu_model"), name="gpu_counter_once")
                ],
            },
        ),
    ]
