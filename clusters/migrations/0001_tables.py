from decimal import Decimal

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.db.models.fields.json
import django.utils.timezone
import encrypted_fields.fields
from django.conf import settings
from django.db import migrations, models

import clusters.runs.models
from portal.tables import at_once


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("portal", "0001_tables"),
        ("datastores", "0001_tables"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="CloudState",
            fields=[
                ("name", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("position", models.CharField(blank=True, max_length=1000)),
                ("heard_at", models.DateTimeField(null=True)),
                ("asked_at", models.DateTimeField(null=True)),
                ("trouble", models.TextField(blank=True, db_default="")),
                ("capacity", models.JSONField(default=dict)),
                ("simulated", models.PositiveIntegerField(db_default=0, default=0)),
                ("notes", models.JSONField(db_default=[], default=list)),
            ],
        ),
        migrations.CreateModel(
            name="Flavor",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField(max_length=63, unique=True)),
                (
                    "title",
                    models.CharField(help_text='As people say it: "Middle + 1 GPU".', max_length=60, unique=True),
                ),
                ("cpu_milli", models.PositiveIntegerField(help_text="1000 is one core.")),
                ("memory_mb", models.PositiveIntegerField()),
                ("gpus", models.PositiveIntegerField(default=0)),
                ("gpu_model", models.CharField(blank=True, max_length=60)),
                ("enabled", models.BooleanField(default=True)),
            ],
            options={
                "ordering": ["gpus", "cpu_milli", "name"],
            },
        ),
        migrations.CreateModel(
            name="Image",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField(max_length=63, unique=True)),
                ("title", models.CharField(max_length=100)),
                ("description", models.TextField(blank=True)),
                ("container", models.CharField(blank=True, max_length=300)),
                ("environment", models.CharField(blank=True, max_length=500)),
                ("program", models.CharField(blank=True, max_length=500)),
                (
                    "frameworks",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=40),
                        blank=True,
                        db_default=[],
                        default=list,
                        help_text="Those that it has, by the names of their drivers; empty where nobody said, and then none is refused.",
                        size=None,
                    ),
                ),
                ("enabled", models.BooleanField(default=True)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Environment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=40)),
                ("version", models.PositiveIntegerField()),
                ("image", models.CharField(max_length=63)),
                ("python", models.CharField(max_length=20)),
                ("platform", models.CharField(max_length=40)),
                (
                    "packages",
                    models.JSONField(
                        default=list, help_text='[{"name", "version", "was"}]; "was" is "" where the image has none.'
                    ),
                ),
                ("lock", models.TextField(blank=True)),
                ("script", models.TextField(blank=True)),
                ("digest", models.CharField(max_length=64)),
                ("application", models.CharField(help_text="Where it was saved.", max_length=63)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("deleted_at", models.DateTimeField(null=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="environments", to="portal.appcode"
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
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(fields=("appcode", "name", "version"), name="environment_version_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="PullSecret",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("host", models.CharField(max_length=255)),
                ("username", models.CharField(max_length=200)),
                ("password", encrypted_fields.fields.EncryptedTextField(help_text="Never shown.")),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "line",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="pull_secrets", to="portal.orgnode"
                    ),
                ),
            ],
            options={
                "ordering": ["line__path", "host"],
                "constraints": [models.UniqueConstraint(fields=("line", "host"), name="pull_secret_once")],
            },
        ),
        migrations.CreateModel(
            name="GitToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("host", models.CharField(max_length=255)),
                ("name", models.CharField(max_length=100)),
                ("token", encrypted_fields.fields.EncryptedTextField(help_text="Never shown.")),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="git_tokens", to="portal.appcode"
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
                "ordering": ["host"],
                "constraints": [models.UniqueConstraint(fields=("appcode", "host"), name="git_token_once")],
            },
        ),
        migrations.CreateModel(
            name="Hook",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=20)),
                ("description", models.CharField(blank=True, max_length=200)),
                ("spec", models.JSONField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="hooks", to="portal.appcode"
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
                "ordering": ["-id"],
                "constraints": [models.UniqueConstraint(fields=("appcode", "name"), name="hook_once_in_appcode")],
            },
        ),
        migrations.CreateModel(
            name="Template",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=40)),
                ("description", models.CharField(blank=True, max_length=200)),
                ("spec", models.JSONField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="templates",
                        to="portal.appcode",
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
                (
                    "owner",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="templates",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("appcode", None), ("owner__isnull", False)),
                            models.Q(("appcode__isnull", False), ("owner", None)),
                            _connector="OR",
                        ),
                        name="template_of_one",
                    ),
                    models.UniqueConstraint(fields=("appcode", "name"), name="template_once_in_appcode"),
                    models.UniqueConstraint(fields=("owner", "name"), name="template_once_of_person"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Plugin",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=40)),
                ("version", models.PositiveIntegerField()),
                ("title", models.CharField(max_length=60)),
                ("description", models.CharField(blank=True, max_length=500)),
                (
                    "requirements",
                    models.JSONField(default=list, help_text='As they were asked for: ["jupyter-archive>=3"]'),
                ),
                ("packages", models.JSONField(default=list, help_text='[{"name", "version"}]')),
                ("lock", models.TextField()),
                ("digest", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("deleted_at", models.DateTimeField(null=True)),
                (
                    "image",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="plugins", to="clusters.image"
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
                "ordering": ["image", "name", "-version"],
                "constraints": [
                    models.UniqueConstraint(fields=("image", "name", "version"), name="plugin_version_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Cluster",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=63)),
                ("spec", models.JSONField()),
                (
                    "framework",
                    models.GeneratedField(
                        db_persist=True,
                        expression=django.db.models.fields.json.KeyTextTransform("framework", "spec"),
                        output_field=models.CharField(max_length=40),
                    ),
                ),
                (
                    "part_of",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text='What made it, in its appcode: "sweeps/lr".',
                        max_length=80,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                ("deleted_at", models.DateTimeField(null=True)),
                ("purged", models.BooleanField(default=False, help_text="Deleted, and its logs are gone too.")),
                (
                    "origins",
                    models.JSONField(
                        db_default={},
                        default=dict,
                        help_text="Where its endpoints are opened: labels as in `Origin`, or whole names",
                    ),
                ),
                (
                    "proof",
                    models.CharField(
                        default=clusters.runs.models.new_proof,
                        help_text="What requests to its endpoints carry that the gateway or a router sends.",
                        max_length=64,
                    ),
                ),
                ("run_count", models.PositiveIntegerField(default=0)),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="clusters", to="portal.appcode"
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
                (
                    "next_by",
                    models.ForeignKey(
                        help_text="Who wants a run as soon as this is over.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("deleted_at", None), ("part_of", "")), fields=["-id"], name="cluster_alive"
                    ),
                    models.Index(
                        condition=models.Q(("part_of", ""), _negated=True),
                        fields=["appcode", "part_of", "id"],
                        name="cluster_parts",
                    ),
                    models.Index(
                        condition=models.Q(("deleted_at", None)),
                        fields=["framework", "-id"],
                        name="cluster_by_framework",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("deleted_at", None)), fields=("appcode", "name"), name="cluster_name_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Cloud",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        max_length=40,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?\\Z",
                                "Use at most 40 lower-case letters, digits and '-', and start with a letter.",
                            )
                        ],
                    ),
                ),
                ("kind", models.CharField(max_length=40)),
                ("title", models.CharField(max_length=100)),
                ("credentials", encrypted_fields.fields.EncryptedTextField(null=True)),
                ("server", models.CharField(blank=True, help_text="Its address, which is no secret.", max_length=300)),
                ("settings", models.JSONField(default=dict)),
                (
                    "prometheus_token",
                    encrypted_fields.fields.EncryptedTextField(
                        help_text="Never shown; goes when the address changes.", null=True
                    ),
                ),
                ("revision", models.PositiveIntegerField(default=1)),
                ("uid", models.CharField(blank=True, max_length=80)),
                ("enabled", models.BooleanField(default=True)),
                ("is_default", models.BooleanField(default=False)),
                (
                    "given_up_at",
                    models.DateTimeField(
                        help_text="Since when it counts as lost; see cloud_admin/decommission.py.", null=True
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                ("tested_at", models.DateTimeField(null=True)),
                ("test", models.JSONField(default=dict, help_text="What the last test of the connection found.")),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name__regex", "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")), name="cloud_name"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("enabled", True), ("is_default", False), _connector="OR"),
                        name="cloud_default_enabled",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("is_default", True)), fields=("is_default",), name="cloud_one_default"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Placement",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "cloud",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="placements", to="clusters.cloud"
                    ),
                ),
                (
                    "org_node",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="placement", to="portal.orgnode"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("cloud", models.CharField(db_default="local", default="local", max_length=40)),
                ("namespace", models.CharField(db_default="default", default="default", max_length=63)),
                ("spec", models.JSONField()),
                (
                    "resources",
                    models.JSONField(
                        help_text='What one task holds, by role, copied from the flavors: {"worker": {"gpus": 1, …}}'
                    ),
                ),
                (
                    "gpus",
                    models.PositiveIntegerField(
                        help_text="GPUs of all its tasks that there are at one time; counted against the quota while admitted."
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "source",
                    models.ForeignKey(
                        help_text="The run whose output it reads; it waits until that has succeeded.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="readers",
                        to="clusters.run",
                    ),
                ),
                (
                    "not_before",
                    models.DateTimeField(
                        help_text="The cloud is not told to start it, or put it right, earlier.", null=True
                    ),
                ),
                (
                    "desired",
                    models.CharField(
                        choices=[("running", "Running"), ("ended", "Ended")], default="running", max_length=10
                    ),
                ),
                ("stop_reason", models.CharField(blank=True, max_length=40)),
                ("stop_message", models.TextField(blank=True)),
                ("wait_reason", models.CharField(blank=True, max_length=40)),
                ("wait_message", models.TextField(blank=True)),
                ("admitted_at", models.DateTimeField(null=True)),
                ("applied_at", models.DateTimeField(null=True)),
                ("release_asked_at", models.DateTimeField(null=True)),
                (
                    "logs_asked_at",
                    models.DateTimeField(help_text="Since when it waits to be ended for logs to be opened.", null=True),
                ),
                ("refusal", models.TextField(blank=True)),
                ("claim_token", models.UUIDField(null=True)),
                ("claimed_until", models.DateTimeField(null=True)),
                (
                    "phase",
                    models.CharField(
                        choices=[
                            ("Queued", "Queued"),
                            ("Starting", "Starting"),
                            ("Running", "Running"),
                            ("Succeeded", "Succeeded"),
                            ("Failed", "Failed"),
                            ("Stopped", "Stopped"),
                        ],
                        default="Queued",
                        max_length=10,
                    ),
                ),
                ("reason", models.CharField(blank=True, max_length=40)),
                ("message", models.TextField(blank=True)),
                ("phase_since", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "verdict",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("Queued", "Queued"),
                            ("Starting", "Starting"),
                            ("Running", "Running"),
                            ("Succeeded", "Succeeded"),
                            ("Failed", "Failed"),
                            ("Stopped", "Stopped"),
                        ],
                        max_length=10,
                    ),
                ),
                ("verdict_reason", models.CharField(blank=True, max_length=40)),
                ("verdict_message", models.TextField(blank=True)),
                ("started_at", models.DateTimeField(null=True)),
                (
                    "deadline",
                    models.DateTimeField(
                        help_text="started_at and the time limit; before that, when fetching began and the time limit.",
                        null=True,
                    ),
                ),
                ("finished_at", models.DateTimeField(null=True)),
                ("storage_state", models.CharField(blank=True, max_length=10)),
                ("storage_message", models.TextField(blank=True)),
                (
                    "data_warning",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Data that is there and hardly what was meant: empty input.",
                    ),
                ),
                (
                    "read",
                    models.JSONField(
                        db_default={},
                        default=dict,
                        help_text='What was copied as input: {"digest": "ab…", "files": 3, "bytes": 12, "changed_since": 2}',
                    ),
                ),
                (
                    "wrote",
                    models.JSONField(
                        db_default={},
                        default=dict,
                        help_text='What lay in its output folder when it was gone, as in `read`, and "complete"; NULL until that is listed.',
                        null=True,
                    ),
                ),
                (
                    "crashes",
                    models.JSONField(
                        db_default=[],
                        default=list,
                        help_text="Of tasks that were started again: scalars/crashes.py; NULL once it is gone until they are counted.",
                        null=True,
                    ),
                ),
                (
                    "code",
                    models.JSONField(
                        db_default={},
                        default=dict,
                        help_text='Which program it started with, beside its image: {"digest": "ab…"} or {"commit": "ab…"}',
                    ),
                ),
                ("blocked_reason", models.CharField(blank=True, db_default="", default="", max_length=40)),
                (
                    "blocked_message",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="What keeps the cloud from making its tasks: a quota, admission, a queue.",
                    ),
                ),
                ("gone", models.BooleanField(default=False)),
                ("stored", models.BooleanField(default=True)),
                ("gone_message", models.TextField(blank=True)),
                ("roles", models.JSONField(default=dict, help_text='{"worker": {"ready": 2, "count": 2}}')),
                (
                    "endpoints",
                    models.JSONField(
                        db_default={},
                        default=dict,
                        help_text='Those that answer: {"notebook": {"address": "127.0.0.1:20123", "since": …, "routed": true}}',
                    ),
                ),
                (
                    "activity",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="busy, idle or unknown; empty: nobody tells.",
                        max_length=10,
                    ),
                ),
                ("activity_since", models.DateTimeField(null=True)),
                ("activity_why", models.CharField(blank=True, db_default="", default="", max_length=300)),
                (
                    "kept_at",
                    models.DateTimeField(help_text="When somebody said last that it is still needed.", null=True),
                ),
                (
                    "idle_announced_at",
                    models.DateTimeField(help_text="Its end for idleness stands announced since then.", null=True),
                ),
                (
                    "idle_stops_at",
                    models.DateTimeField(
                        help_text="As was announced then; none where it is only announced.", null=True
                    ),
                ),
                (
                    "end_announced_at",
                    models.DateTimeField(help_text="The end by its time limit was announced.", null=True),
                ),
                (
                    "needed_asked_at",
                    models.DateTimeField(help_text="The last mail that asked whether it is needed.", null=True),
                ),
                ("look_at", models.DateTimeField(help_text="When one of these is to be looked at next.", null=True)),
                ("usage_as_of", models.DateTimeField(null=True)),
                ("gpu_seconds", models.BigIntegerField(default=0)),
                ("gpu_rate", models.IntegerField(default=0, help_text="GPUs held at usage_as_of.")),
                ("cost", models.DecimalField(decimal_places=9, default=Decimal(0), max_digits=20)),
                (
                    "cost_rate",
                    models.DecimalField(decimal_places=12, default=Decimal(0), help_text="Per second.", max_digits=20),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="runs", to="clusters.cluster"
                    ),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-number"],
                "indexes": [
                    models.Index(condition=models.Q(("gone", False)), fields=["id"], name="run_not_gone"),
                    models.Index(condition=models.Q(("gone", False)), fields=["cloud"], name="run_not_gone_cloud"),
                    models.Index(
                        condition=models.Q(("desired", "running"), ("verdict", "")),
                        fields=["deadline"],
                        name="run_deadline",
                    ),
                    models.Index(
                        condition=models.Q(("desired", "running"), ("verdict", "")), fields=["look_at"], name="run_look"
                    ),
                    models.Index(
                        condition=models.Q(("stop_reason", "Idle")), fields=["cluster", "number"], name="run_idle"
                    ),
                    models.Index(fields=["created_by", "phase_since"], name="run_news"),
                    models.Index(condition=models.Q(("wrote__isnull", True)), fields=["id"], name="run_unlisted"),
                    models.Index(condition=models.Q(("crashes__isnull", True)), fields=["id"], name="run_uncounted"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("cluster", "number"), name="run_number_once"),
                    models.UniqueConstraint(
                        condition=models.Q(("phase__in", ["Succeeded", "Failed", "Stopped"]), _negated=True),
                        fields=("cluster",),
                        name="run_one_live",
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="cluster",
            name="current_run",
            field=models.OneToOneField(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="current_of", to="clusters.run"
            ),
        ),
        migrations.CreateModel(
            name="Task",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("role", models.CharField(max_length=12)),
                ("index", models.PositiveIntegerField()),
                ("attempt", models.PositiveIntegerField(default=0)),
                ("uid", models.CharField(max_length=80, unique=True)),
                ("phase", models.CharField(max_length=12)),
                ("reason", models.CharField(blank=True, max_length=40)),
                ("message", models.TextField(blank=True)),
                ("node", models.CharField(blank=True, max_length=253)),
                ("gpus", models.JSONField(default=list)),
                ("gpu_model", models.CharField(blank=True, max_length=60)),
                ("scheduled_at", models.DateTimeField(null=True)),
                (
                    "began_at",
                    models.DateTimeField(help_text="It is billed from here on: its data have come.", null=True),
                ),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("exit_code", models.IntegerField(null=True)),
                ("disrupted", models.BooleanField(default=False)),
                ("log_tail", models.TextField(blank=True)),
                (
                    "log_state",
                    models.CharField(
                        blank=True,
                        choices=[("due", "Due"), ("open", "Open"), ("kept", "Kept"), ("lost", "Lost")],
                        db_default="",
                        default="",
                        max_length=10,
                    ),
                ),
                ("log_size", models.BigIntegerField(help_text="Bytes of the copy.", null=True)),
                (
                    "log_message",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Why there is no copy, or none yet, or not all.",
                    ),
                ),
                ("log_claimed_until", models.DateTimeField(null=True)),
                ("observed_at", models.DateTimeField(auto_now=True)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="tasks", to="clusters.run"
                    ),
                ),
            ],
            options={
                "ordering": ["role", "index", "-attempt"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("log_state__in", ["due", "open"])),
                        fields=["log_claimed_until", "id"],
                        name="task_log_due",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "role", "index", "attempt"), name="task_attempt_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="HookRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=20)),
                ("before", models.BooleanField(default=False)),
                ("message", models.TextField(blank=True)),
                (
                    "model",
                    models.CharField(
                        blank=True, help_text="Of which a version is still to be registered.", max_length=80
                    ),
                ),
                ("waits", models.TextField(blank=True, db_default="", default="")),
                (
                    "did",
                    models.OneToOneField(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="does", to="clusters.run"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="hook_runs", to="clusters.run"
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("did", None), ("message", "")), fields=["id"], name="hook_run_due"
                    ),
                    models.Index(
                        condition=models.Q(("message", ""), models.Q(("model", ""), _negated=True)),
                        fields=["id"],
                        name="hook_run_model",
                    ),
                ],
                "constraints": [models.UniqueConstraint(fields=("run", "name"), name="hook_run_once")],
            },
        ),
        migrations.CreateModel(
            name="AccessToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("token", encrypted_fields.fields.EncryptedTextField()),
                ("made_at", models.DateTimeField(auto_now=True)),
                (
                    "cluster",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="access_token", to="clusters.cluster"
                    ),
                ),
                (
                    "made_by",
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
            name="Origin",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("label", models.CharField(max_length=63, unique=True)),
                ("cluster_name", models.CharField(max_length=63)),
                ("endpoint", models.CharField(max_length=15)),
                (
                    "used_at",
                    models.DateTimeField(
                        help_text="When the gateway last let somebody in, to a minute or so.", null=True
                    ),
                ),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="portal.appcode"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("appcode", "cluster_name", "endpoint"), name="origin_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Pipeline",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=30)),
                ("spec", models.JSONField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                ("run_count", models.PositiveIntegerField(default=0)),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="pipelines", to="portal.appcode"
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
                (
                    "next_by",
                    models.ForeignKey(
                        help_text="Who wants a run as soon as this is over.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [models.UniqueConstraint(fields=("appcode", "name"), name="pipeline_name_once")],
            },
        ),
        migrations.CreateModel(
            name="PipelineRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("spec", models.JSONField()),
                ("fresh", models.BooleanField(default=False)),
                ("newest", models.BooleanField(default=False)),
                (
                    "phase",
                    models.CharField(
                        choices=[
                            ("Running", "Running"),
                            ("Paused", "Paused"),
                            ("Succeeded", "Succeeded"),
                            ("Failed", "Failed"),
                            ("Stopped", "Stopped"),
                        ],
                        default="Running",
                        max_length=10,
                    ),
                ),
                ("message", models.TextField(blank=True)),
                ("cancelled_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "pipeline",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="runs", to="clusters.pipeline"
                    ),
                ),
            ],
            options={
                "ordering": ["-number"],
                "indexes": [
                    models.Index(condition=models.Q(("finished_at", None)), fields=["id"], name="pipeline_run_live")
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("pipeline", "number"), name="pipeline_run_once"),
                    models.UniqueConstraint(
                        condition=models.Q(("finished_at", None)), fields=("pipeline",), name="pipeline_run_one_live"
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="pipeline",
            name="current_run",
            field=models.OneToOneField(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="current_of",
                to="clusters.pipelinerun",
            ),
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=40)),
                ("spec", models.JSONField()),
                ("next_at", models.DateTimeField(null=True)),
                ("last_at", models.DateTimeField(help_text="The last time that came.", null=True)),
                (
                    "last_result",
                    models.CharField(blank=True, help_text="What became of it, in a sentence.", max_length=300),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="schedules", to="portal.appcode"
                    ),
                ),
                (
                    "changed_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("next_at__isnull", False)), fields=["next_at"], name="schedule_next"
                    )
                ],
                "constraints": [models.UniqueConstraint(fields=("appcode", "name"), name="schedule_name_once")],
            },
        ),
        migrations.CreateModel(
            name="StageRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stage", models.CharField(max_length=30)),
                ("attempt", models.PositiveIntegerField(default=1)),
                ("tries", models.PositiveIntegerField(default=1)),
                ("reused", models.BooleanField(default=False)),
                (
                    "phase",
                    models.CharField(
                        choices=[
                            ("Waiting", "Waiting"),
                            ("Running", "Running"),
                            ("Succeeded", "Succeeded"),
                            ("Failed", "Failed"),
                            ("Stopped", "Stopped"),
                            ("Skipped", "Skipped"),
                        ],
                        default="Waiting",
                        max_length=10,
                    ),
                ),
                ("message", models.TextField(blank=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "pipeline_run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="stages", to="clusters.pipelinerun"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="stages",
                        to="clusters.run",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "constraints": [
                    models.UniqueConstraint(fields=("pipeline_run", "stage", "attempt"), name="stage_attempt_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Visit",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("session_key", models.CharField(max_length=40)),
                (
                    "session_hash",
                    models.CharField(
                        help_text="Changes with the password and with a sign-out everywhere.", max_length=128
                    ),
                ),
                ("ticket_hash", models.CharField(max_length=64, null=True, unique=True)),
                ("cookie_hash", models.CharField(max_length=64, null=True, unique=True)),
                ("expires_at", models.DateTimeField(db_index=True)),
                (
                    "origin",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="visits", to="clusters.origin"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Benchmark",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=40)),
                ("spec", models.JSONField()),
                (
                    "phase",
                    models.CharField(
                        choices=[
                            ("Running", "Running"),
                            ("Paused", "Paused"),
                            ("Succeeded", "Succeeded"),
                            ("Failed", "Failed"),
                            ("Stopped", "Stopped"),
                        ],
                        default="Running",
                        max_length=10,
                    ),
                ),
                ("message", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="benchmarks", to="portal.appcode"
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
                "ordering": ["-id"],
                "indexes": [
                    models.Index(condition=models.Q(("finished_at", None)), fields=["id"], name="benchmark_living")
                ],
                "constraints": [models.UniqueConstraint(fields=("appcode", "name"), name="benchmark_name_once")],
            },
        ),
        migrations.CreateModel(
            name="Measurement",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("strategy", models.CharField(max_length=20)),
                ("data", models.CharField(max_length=20)),
                ("count", models.PositiveIntegerField()),
                (
                    "phase",
                    models.CharField(
                        blank=True,
                        choices=[("Succeeded", "Succeeded"), ("Failed", "Failed"), ("Stopped", "Stopped")],
                        max_length=10,
                    ),
                ),
                ("message", models.TextField(blank=True)),
                ("result", models.JSONField(null=True)),
                ("cloud", models.CharField(blank=True, max_length=40)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "benchmark",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="measurements",
                        to="clusters.benchmark",
                    ),
                ),
                (
                    "cluster",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="measurement",
                        to="clusters.cluster",
                    ),
                ),
            ],
            options={
                "ordering": ["number"],
                "constraints": [models.UniqueConstraint(fields=("benchmark", "number"), name="measurement_once")],
            },
        ),
        migrations.CreateModel(
            name="Sweep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=30)),
                ("spec", models.JSONField()),
                (
                    "phase",
                    models.CharField(
                        choices=[
                            ("Running", "Running"),
                            ("Paused", "Paused"),
                            ("Succeeded", "Succeeded"),
                            ("Failed", "Failed"),
                            ("Stopped", "Stopped"),
                        ],
                        default="Running",
                        max_length=10,
                    ),
                ),
                ("message", models.TextField(blank=True)),
                (
                    "best",
                    models.JSONField(
                        help_text='The best point so far: {"number": 7, "value": 0.31, "sd": 0.02, "parameters": {…}}',
                        null=True,
                    ),
                ),
                ("settled", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "deleted_at",
                    models.DateTimeField(help_text="Its clusters are being deleted, and then it goes, too.", null=True),
                ),
                (
                    "acts_for",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="sweeps", to="portal.appcode"
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
                "ordering": ["-id"],
                "indexes": [
                    models.Index(condition=models.Q(("settled", False)), fields=["id"], name="sweep_unsettled")
                ],
                "constraints": [models.UniqueConstraint(fields=("appcode", "name"), name="sweep_name_once")],
            },
        ),
        migrations.AddField(
            model_name="stagerun",
            name="sweep",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="stages", to="clusters.sweep"
            ),
        ),
        migrations.CreateModel(
            name="Trial",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("fold", models.PositiveIntegerField(default=0)),
                ("parameters", models.JSONField()),
                (
                    "attempt",
                    models.PositiveIntegerField(default=0, help_text="How often its failed run was started anew."),
                ),
                (
                    "phase",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("Succeeded", "Succeeded"),
                            ("Failed", "Failed"),
                            ("Pruned", "Pruned"),
                            ("Stopped", "Stopped"),
                        ],
                        max_length=10,
                    ),
                ),
                ("value", models.FloatField(null=True)),
                (
                    "step",
                    models.BigIntegerField(
                        help_text="Of a sweep that stops early: the last one that was compared.", null=True
                    ),
                ),
                (
                    "compared",
                    models.JSONField(default=dict, help_text="What the pruner remembers of it (sweeps/stopping.py)."),
                ),
                ("message", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="trials",
                        to="clusters.cluster",
                    ),
                ),
                (
                    "index",
                    models.PositiveIntegerField(help_text="Which copy it is of a run that it shares.", null=True),
                ),
                (
                    "sweep",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="trials", to="clusters.sweep"
                    ),
                ),
            ],
            options={
                "ordering": ["number", "fold"],
                "indexes": [
                    models.Index(condition=models.Q(("phase", "")), fields=["sweep", "id"], name="trial_living")
                ],
                "constraints": [models.UniqueConstraint(fields=("sweep", "number", "fold"), name="trial_once")],
            },
        ),
        migrations.CreateModel(
            name="RegisteredModel",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=30)),
                ("description", models.CharField(blank=True, max_length=200)),
                (
                    "version_count",
                    models.PositiveIntegerField(default=0, help_text="The highest number that was given."),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                ("deleted_at", models.DateTimeField(null=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="registered_models",
                        to="portal.appcode",
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
                "ordering": ["-id"],
                "constraints": [models.UniqueConstraint(fields=("appcode", "name"), name="model_once")],
            },
        ),
        migrations.CreateModel(
            name="ModelVersion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("description", models.CharField(blank=True, max_length=500)),
                ("datastore", models.CharField(max_length=63)),
                ("folder", models.CharField(blank=True, max_length=2000)),
                (
                    "files",
                    models.JSONField(help_text='[{"path", "size", "sha256"}]; the last is "" until it has been read.'),
                ),
                ("size", models.BigIntegerField()),
                ("format", models.CharField(max_length=20)),
                (
                    "signature",
                    models.JSONField(help_text='{"inputs": [{"name", "dtype", "shape"}], "outputs": […]}', null=True),
                ),
                ("sample", models.JSONField(help_text="A request that it answers.", null=True)),
                ("metrics", models.JSONField(default=dict, help_text='By name; null for NaN: {"accuracy": 0.97}')),
                (
                    "lineage",
                    models.JSONField(
                        default=dict, help_text='{"run": "train/3", "image", "environment", "code", "input"}'
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("Pending", "Pending"),
                            ("Ready", "Ready"),
                            ("Changed", "Changed"),
                            ("Failed", "Failed"),
                        ],
                        default="Pending",
                        max_length=10,
                    ),
                ),
                ("message", models.TextField(blank=True)),
                (
                    "asked_at",
                    models.DateTimeField(
                        default=django.utils.timezone.now, help_text="When it was asked last to read its files."
                    ),
                ),
                ("tried_at", models.DateTimeField(null=True)),
                ("checked_at", models.DateTimeField(help_text="When they were read last.", null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("deleted_at", models.DateTimeField(null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "frozen",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="model_version",
                        to="datastores.version",
                    ),
                ),
                (
                    "hook_run",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="model_version",
                        to="clusters.hookrun",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="model_versions",
                        to="clusters.run",
                    ),
                ),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="clusters.registeredmodel",
                    ),
                ),
            ],
            options={
                "ordering": ["-number"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("deleted_at", None), ("state", "Pending")),
                        fields=["id"],
                        name="model_version_pending",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("model", "number"), name="model_version_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("deleted_at", None), ("frozen__isnull", False)),
                            models.Q(("deleted_at__isnull", False), ("frozen", None)),
                            _connector="OR",
                        ),
                        name="model_version_kept",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ModelAlias",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=40)),
                ("since", models.DateTimeField()),
                ("until", models.DateTimeField(null=True)),
                ("reason", models.CharField(blank=True, max_length=300)),
                (
                    "moved_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="aliases",
                        to="clusters.modelversion",
                    ),
                ),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="aliases",
                        to="clusters.registeredmodel",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("until", None)), fields=("model", "name"), name="model_alias_one_now"
                    ),
                    models.UniqueConstraint(fields=("model", "name", "since"), name="model_alias_since_once"),
                    models.CheckConstraint(
                        condition=models.Q(("until", None), ("until__gt", models.F("since")), _connector="OR"),
                        name="model_alias_not_backwards",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ModelRetention",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("keep", models.PositiveIntegerField()),
                ("days", models.PositiveIntegerField(null=True)),
                ("created_at", models.DateTimeField()),
                ("due_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ("applied_at", models.DateTimeField(null=True)),
                ("versions", models.PositiveIntegerField(default=0)),
                ("bytes", models.BigIntegerField(default=0)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "model",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="retention",
                        to="clusters.registeredmodel",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("keep__gte", 1)), name="model_retention_keeps")
                ],
            },
        ),
        migrations.CreateModel(
            name="Router",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=80, unique=True)),
                ("seen_at", models.DateTimeField()),
                ("services", models.JSONField(default=dict)),
            ],
        ),
        migrations.CreateModel(
            name="ServingRuntime",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField(max_length=40, unique=True)),
                ("title", models.CharField(max_length=60)),
                ("description", models.CharField(blank=True, max_length=500)),
                (
                    "formats",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=20),
                        help_text="Of models: saved-model, onnx …",
                        size=None,
                    ),
                ),
                (
                    "protocols",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=30),
                        help_text="PROTOCOLS of frameworks/runtimes.py",
                        size=None,
                    ),
                ),
                ("image", models.CharField(blank=True, max_length=300)),
                (
                    "command",
                    models.TextField(blank=True, help_text="Divided into words as a shell does; no shell runs it."),
                ),
                ("env", models.JSONField(blank=True, db_default={}, default=dict)),
                ("port", models.PositiveIntegerField(default=8501)),
                (
                    "health",
                    models.CharField(
                        default="/v2/health/ready",
                        help_text="A path that is answered without an error as soon as the model is loaded.",
                        max_length=200,
                    ),
                ),
                (
                    "folder",
                    models.CharField(default="/elearn/model", help_text="Where it reads the model.", max_length=200),
                ),
                (
                    "warm_up_seconds",
                    models.PositiveIntegerField(
                        default=0, help_text="For how long it has been healthy before it is asked anything."
                    ),
                ),
                (
                    "drain_seconds",
                    models.PositiveIntegerField(
                        default=30, help_text="How long a replica that is to end may answer what it was asked before."
                    ),
                ),
                ("enabled", models.BooleanField(default=True)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Revision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                (
                    "model",
                    models.CharField(
                        help_text="As runs say it, also when the version is gone: digits/3", max_length=45
                    ),
                ),
                ("spec", models.JSONField()),
                ("drain_seconds", models.PositiveIntegerField(default=30)),
                (
                    "weight",
                    models.PositiveIntegerField(default=0, help_text="Per cent of the requests that it is to answer."),
                ),
                (
                    "mirrored",
                    models.BooleanField(
                        default=False, help_text="It is sent a copy of each request, and its answers go nowhere."
                    ),
                ),
                ("wanted", models.PositiveIntegerField(default=0, help_text="How many replicas it is to have.")),
                (
                    "counted",
                    models.PositiveBigIntegerField(
                        default=0,
                        help_text="Requests that it answered until its service's `counted_until`, copies not among them.",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="clusters.modelversion",
                    ),
                ),
            ],
            options={
                "ordering": ["-number"],
            },
        ),
        migrations.CreateModel(
            name="Service",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=30)),
                (
                    "label",
                    models.CharField(
                        help_text="Before the domain of services: <service>-<appcode>.", max_length=63, unique=True
                    ),
                ),
                ("spec", models.JSONField()),
                (
                    "desired",
                    models.CharField(
                        choices=[("running", "Running"), ("ended", "Ended")], default="running", max_length=10
                    ),
                ),
                (
                    "phase",
                    models.CharField(
                        choices=[
                            ("Starting", "Starting"),
                            ("Running", "Running"),
                            ("Degraded", "Degraded"),
                            ("Sleeping", "Sleeping"),
                            ("Failed", "Failed"),
                            ("Stopped", "Stopped"),
                        ],
                        default="Starting",
                        max_length=10,
                    ),
                ),
                ("message", models.TextField(blank=True)),
                ("phase_since", models.DateTimeField(default=django.utils.timezone.now)),
                ("route", models.PositiveBigIntegerField(default=1)),
                (
                    "scale",
                    models.JSONField(
                        db_default={},
                        default=dict,
                        help_text='What the autoscaler decided last: {"replicas": 2, "since": …, "why": "…"}',
                    ),
                ),
                (
                    "followed",
                    models.BigIntegerField(
                        help_text="The row of its alias (ModelAlias) that was looked at last: another one says that it has moved.",
                        null=True,
                    ),
                ),
                (
                    "counted_until",
                    models.DateTimeField(
                        help_text="Before it, what its minutes say is in `Revision.counted`.", null=True
                    ),
                ),
                ("revision_count", models.PositiveIntegerField(default=0)),
                ("rollout_count", models.PositiveIntegerField(default=0)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                ("deleted_at", models.DateTimeField(null=True)),
                (
                    "acts_for",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "appcode",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="services", to="portal.appcode"
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
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("phase", "Stopped"), _negated=True), fields=["id"], name="service_living"
                    )
                ],
                "constraints": [models.UniqueConstraint(fields=("appcode", "name"), name="service_once")],
            },
        ),
        migrations.CreateModel(
            name="Rollout",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                (
                    "kind",
                    models.CharField(
                        choices=[("rolling", "Rolling"), ("canary", "Canary"), ("shadow", "Shadow")], max_length=10
                    ),
                ),
                ("weight", models.PositiveIntegerField(default=100)),
                (
                    "phase",
                    models.CharField(
                        choices=[
                            ("Gated", "Gated"),
                            ("Starting", "Starting"),
                            ("Comparing", "Comparing"),
                            ("Shifting", "Shifting"),
                            ("Promoted", "Promoted"),
                            ("RolledBack", "Rolled Back"),
                            ("Cancelled", "Cancelled"),
                            ("Failed", "Failed"),
                        ],
                        default="Starting",
                        max_length=10,
                    ),
                ),
                ("message", models.TextField(blank=True)),
                ("reason", models.CharField(blank=True, help_text="Why somebody wanted it.", max_length=300)),
                (
                    "judged",
                    models.JSONField(
                        db_default={},
                        default=dict,
                        help_text='What was compared: {"from": {"requests", "errors", "p99Ms"}, "to": {…}}',
                    ),
                ),
                (
                    "by_hand",
                    models.BooleanField(default=False, help_text="Whether somebody, not the clock, promotes it."),
                ),
                (
                    "minutes",
                    models.PositiveIntegerField(
                        default=0, help_text="Of a canary or shadow: for how long it is compared."
                    ),
                ),
                ("judge_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("phase_since", models.DateTimeField(default=django.utils.timezone.now)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "from_revision",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="clusters.revision"
                    ),
                ),
                (
                    "to_revision",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="rollouts", to="clusters.revision"
                    ),
                ),
                (
                    "service",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="rollouts", to="clusters.service"
                    ),
                ),
            ],
            options={
                "ordering": ["-number"],
                "constraints": [
                    models.UniqueConstraint(fields=("service", "number"), name="rollout_once"),
                    models.UniqueConstraint(
                        condition=models.Q(("phase__in", ["Gated", "Starting", "Comparing", "Shifting"])),
                        fields=("service",),
                        name="rollout_one_living",
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="revision",
            name="service",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="revisions", to="clusters.service"
            ),
        ),
        migrations.CreateModel(
            name="Replica",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("slot", models.PositiveIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("starting", "Starting"),
                            ("serving", "Serving"),
                            ("draining", "Draining"),
                            ("gone", "Gone"),
                        ],
                        default="starting",
                        max_length=10,
                    ),
                ),
                ("address", models.CharField(blank=True, max_length=260)),
                ("left_at", models.PositiveBigIntegerField(null=True)),
                ("drain_until", models.DateTimeField(null=True)),
                ("message", models.TextField(blank=True)),
                (
                    "counted",
                    models.JSONField(
                        db_default={},
                        default=dict,
                        help_text="What it had counted beside its training sample when it was last asked.",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("served_at", models.DateTimeField(help_text="When it could answer first.", null=True)),
                ("gone_at", models.DateTimeField(null=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="clusters.cluster"
                    ),
                ),
                (
                    "run",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="replica",
                        to="clusters.run",
                    ),
                ),
                (
                    "revision",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="replicas", to="clusters.revision"
                    ),
                ),
                (
                    "service",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="replicas", to="clusters.service"
                    ),
                ),
            ],
            options={
                "ordering": ["slot", "id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "gone"), _negated=True),
                        fields=["service", "id"],
                        name="replica_living",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "gone"), _negated=True),
                        fields=("service", "slot"),
                        name="replica_slot_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ServiceMinute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("router", models.CharField(max_length=80)),
                ("minute", models.DateTimeField()),
                ("mirrored", models.BooleanField(default=False)),
                ("requests", models.PositiveIntegerField(default=0)),
                ("errors", models.PositiveIntegerField(default=0)),
                ("refused", models.PositiveIntegerField(default=0)),
                (
                    "rows",
                    models.PositiveBigIntegerField(
                        default=0, help_text="That were answered, as far as model servers say it."
                    ),
                ),
                (
                    "latency",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "busy_ms",
                    models.PositiveBigIntegerField(
                        default=0, help_text="Of all requests together, until their answer was complete."
                    ),
                ),
                ("bytes_in", models.PositiveBigIntegerField(default=0)),
                ("bytes_out", models.PositiveBigIntegerField(default=0)),
                (
                    "revision",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="minutes", to="clusters.revision"
                    ),
                ),
                (
                    "service",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="minutes", to="clusters.service"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("service", "minute", "revision", "router", "mirrored"), name="service_minute_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ServiceToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(help_text="Who asks with it.", max_length=40)),
                ("digest", models.CharField(max_length=64, unique=True)),
                (
                    "begins",
                    models.CharField(
                        help_text="Its first letters, by which people tell it from others.", max_length=12
                    ),
                ),
                ("per_second", models.PositiveIntegerField(help_text="Requests; NULL: no limit.", null=True)),
                ("at_once", models.PositiveIntegerField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("used_at", models.DateTimeField(help_text="To a minute or so.", null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "service",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="tokens", to="clusters.service"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [models.UniqueConstraint(fields=("service", "name"), name="service_token_once")],
            },
        ),
        migrations.CreateModel(
            name="RevisionDrift",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("hour", models.DateTimeField()),
                ("rows", models.PositiveBigIntegerField(default=0)),
                ("columns", models.JSONField(default=list)),
                ("alerted", models.BooleanField(default=False)),
                (
                    "revision",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="drift", to="clusters.revision"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("revision", "hour"), name="revision_drift_once")],
            },
        ),
        migrations.AddConstraint(
            model_name="revision",
            constraint=models.UniqueConstraint(fields=("service", "number"), name="revision_once"),
        ),
    ]
    operations = at_once(operations)
