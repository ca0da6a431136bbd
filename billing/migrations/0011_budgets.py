"""Budgets and their steps."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0010_example_invoices"),
        ("portal", "0002_guards"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Budget",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("amount", models.DecimalField(decimal_places=2, max_digits=14)),
                (
                    "policy",
                    models.CharField(
                        choices=[
                            ("notify", "Only tell"),
                            ("block", "Block new runs"),
                            ("stop_services", "Block, then stop services"),
                            ("stop_all", "Block, stop services, then everything"),
                        ],
                        default="notify",
                        max_length=13,
                    ),
                ),
                ("countdown_minutes", models.PositiveIntegerField(default=60)),
                ("by_administrator", models.BooleanField(default=False)),
                ("set_at", models.DateTimeField()),
                ("lifted_until", models.DateTimeField(help_text="No measures before: the end of a month.", null=True)),
                ("lifted_at", models.DateTimeField(null=True)),
                ("lift_reason", models.CharField(blank=True, max_length=300)),
                ("paused_at", models.DateTimeField(null=True)),
                ("pause_reason", models.CharField(blank=True, max_length=300)),
                (
                    "appcode",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="budget",
                        to="portal.appcode",
                    ),
                ),
                (
                    "lifted_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "org_node",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="budget",
                        to="portal.orgnode",
                    ),
                ),
                (
                    "paused_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "set_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="BudgetStep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("month", models.DateField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("spent_50", "50 % spent"),
                            ("spent_80", "80 % spent"),
                            ("spent_100", "100 % spent"),
                            ("block", "New runs blocked"),
                            ("stop_services", "Services stopped"),
                            ("stop_all", "Everything stopped"),
                        ],
                        max_length=13,
                    ),
                ),
                ("announced_at", models.DateTimeField()),
                ("due_at", models.DateTimeField()),
                ("done_at", models.DateTimeField(null=True)),
                ("lifted_at", models.DateTimeField(null=True)),
                (
                    "budget",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="steps", to="billing.budget"
                    ),
                ),
                (
                    "lifted_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("appcode", None), ("org_node__isnull", False)),
                    models.Q(("appcode__isnull", False), ("org_node", None)),
                    _connector="OR",
                ),
                name="budget_of_one",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(condition=models.Q(("amount__gt", 0)), name="budget_amount"),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("policy__in", ("notify", "block", "stop_services", "stop_all"))),
                name="budget_policy",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("countdown_minutes__gte", 1), ("countdown_minutes__lte", 10080)),
                name="budget_countdown",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("appcode__isnull", False), ("by_administrator", True), _connector="OR"),
                name="budget_line_by_administrator",
            ),
        ),
        migrations.AddIndex(
            model_name="budgetstep",
            index=models.Index(
                condition=models.Q(("kind__in", ("block", "stop_services", "stop_all")), ("lifted_at", None)),
                fields=["month", "budget"],
                name="budget_step_stands",
            ),
        ),
        migrations.AddConstraint(
            model_name="budgetstep",
            constraint=models.UniqueConstraint(fields=("budget", "month", "kind"), name="budget_step_once"),
        ),
        migrations.AddConstraint(
            model_name="budgetstep",
            constraint=models.CheckConstraint(condition=models.Q(("month__day", 1)), name="budget_step_month"),
        ),
        migrations.AddConstraint(
            model_name="budgetstep",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("kind__in", ["spent_50", "spent_80", "spent_100", "block", "stop_services", "stop_all"])
                ),
                name="budget_step_kind",
            ),
        ),
        migrations.AddConstraint(
            model_name="budgetstep",
            constraint=models.CheckConstraint(
                condition=models.Q(("due_at__gte", models.F("announced_at"))), name="budget_step_announced_first"
            ),
        ),
        migrations.AddConstraint(
            model_name="budgetstep",
            constraint=models.CheckConstraint(
                condition=models.Q(("done_at", None), ("done_at__gte", models.F("due_at")), _connector="OR"),
                name="budget_step_when_due",
            ),
        ),
    ]
