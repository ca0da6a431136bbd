import django.core.validators
import django.db.models.deletion
import encrypted_fields.fields
from django.db import migrations, models


def fill_namespaces(apps, schema_editor):
    """Runs that there are stay in the namespace in which they were made: that of the nearest business line."""
    lines = dict(
        apps.get_model("portal", "OrgNode").objects.filter(namespace__isnull=False).values_list("path", "namespace")
    )
    runs = apps.get_model("clusters", "Run").objects
    for pk, path in apps.get_model("portal", "Appcode").objects.values_list("pk", "org_node__path"):
        words = path.split(".")
        above = (".".join(words[:n]) for n in range(len(words), 0, -1))
        namespace = next((lines[each] for each in above if each in lines), "default")
        runs.filter(cluster__appcode=pk).update(namespace=namespace)


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0001_initial"),
        ("portal", "0002_guards"),
    ]

    operations = [
        migrations.CreateModel(
            name="KubernetesCluster",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        max_length=40,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^(?!local\\Z)[a-z]([a-z0-9-]{0,38}[a-z0-9])?\\Z",
                                "Use at most 40 lower-case letters, digits and '-', and start with a letter; “local” is the portal's own machine.",
                            )
                        ],
                    ),
                ),
                ("title", models.CharField(max_length=100)),
                ("kubeconfig", encrypted_fields.fields.EncryptedTextField(null=True)),
                (
                    "server",
                    models.CharField(
                        blank=True, help_text="The address in the kubeconfig, which is no secret.", max_length=300
                    ),
                ),
                ("settings", models.JSONField(default=dict)),
                ("revision", models.PositiveIntegerField(default=1)),
                ("uid", models.CharField(blank=True, max_length=80)),
                ("enabled", models.BooleanField(default=True)),
                ("is_default", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                ("tested_at", models.DateTimeField(null=True)),
                ("test", models.JSONField(default=dict, help_text="What the last test of the connection found.")),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Placement",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
            ],
        ),
        migrations.AddField(
            model_name="cloudstate",
            name="simulated",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="cloudstate",
            name="notes",
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name="cloudstate",
            name="trouble",
            field=models.TextField(blank=True),
        ),
        migrations.AddField(
            model_name="run",
            name="cloud",
            field=models.CharField(default="local", max_length=40),
        ),
        migrations.AddField(
            model_name="run",
            name="namespace",
            field=models.CharField(default="default", max_length=63),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(condition=models.Q(("gone", False)), fields=["cloud"], name="run_not_gone_cloud"),
        ),
        migrations.AddConstraint(
            model_name="kubernetescluster",
            constraint=models.CheckConstraint(
                condition=models.Q(("name__regex", "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")), name="kubernetes_name"
            ),
        ),
        migrations.AddConstraint(
            model_name="kubernetescluster",
            constraint=models.CheckConstraint(
                condition=models.Q(("name", "local"), _negated=True), name="kubernetes_not_local"
            ),
        ),
        migrations.AddConstraint(
            model_name="kubernetescluster",
            constraint=models.CheckConstraint(
                condition=models.Q(("enabled", True), ("is_default", False), _connector="OR"),
                name="kubernetes_default_enabled",
            ),
        ),
        migrations.AddConstraint(
            model_name="kubernetescluster",
            constraint=models.UniqueConstraint(
                condition=models.Q(("is_default", True)), fields=("is_default",), name="kubernetes_one_default"
            ),
        ),
        migrations.AddField(
            model_name="placement",
            name="cluster",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="placements",
                to="clusters.kubernetescluster",
            ),
        ),
        migrations.AddField(
            model_name="placement",
            name="org_node",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.CASCADE, related_name="placement", to="portal.orgnode"
            ),
        ),
        migrations.RunPython(fill_namespaces, migrations.RunPython.noop),
    ]
