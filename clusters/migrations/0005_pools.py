"""What a flavor demands of nodes: an extended resource, labels, tolerations and further resources."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0004_windows")]

    operations = [
        migrations.AddField(
            model_name="flavor",
            name="resource",
            field=models.CharField(
                db_default="nvidia.com/gpu",
                default="nvidia.com/gpu",
                help_text="The extended resource that `gpus` counts.",
                max_length=317,
            ),
        ),
        migrations.AddField(
            model_name="flavor",
            name="node_labels",
            field=models.JSONField(
                blank=True, db_default={}, default=dict, help_text="Labels of the nodes that its tasks may go to."
            ),
        ),
        migrations.AddField(
            model_name="flavor",
            name="tolerations",
            field=models.JSONField(
                blank=True, db_default=[], default=list, help_text="As in Kubernetes: key, operator, value, effect."
            ),
        ),
        migrations.AddField(
            model_name="flavor",
            name="extra",
            field=models.JSONField(
                blank=True,
                db_default={},
                default=dict,
                help_text='Further extended resources of one task: {"rdma/hca": 1, "hugepages-2Mi": "1Gi"}.',
            ),
        ),
    ]
