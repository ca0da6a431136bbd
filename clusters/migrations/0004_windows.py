"""Stretches of time in which nodes are closed for maintenance, or reserved for one appcode."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0003_decisions"),
        ("portal", "0003_shares"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Window",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("nodes", models.JSONField(help_text='Names of its nodes: ["n1", "n2"]')),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("reason", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("told_at", models.DateTimeField(null=True)),
                ("begun_at", models.DateTimeField(null=True)),
                ("cancelled_at", models.DateTimeField(null=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="portal.appcode"
                    ),
                ),
                (
                    "cloud",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="windows", to="clusters.cloud"
                    ),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["starts_at", "pk"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("cancelled_at", None)), fields=["cloud", "ends_at"], name="window_open"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("ends_at__gt", models.F("starts_at"))), name="window_ends_after_start"
                    )
                ],
            },
        ),
    ]
