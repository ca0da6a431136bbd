"""Places of runs on nodes. A run that was started before has none: its tasks stay where its cloud put them."""

from django.db import migrations, models

from portal.tables import at_once


class Migration(migrations.Migration):
    dependencies = [("clusters", "0001_tables")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="placed_at",
            field=models.DateTimeField(
                help_text="Since when it has places on the nodes in `layout`; where the portal places its tasks.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="layout",
            field=models.JSONField(
                db_default={},
                default=dict,
                help_text='The most tasks by role and node: {"worker": {"node-1": 4}}. Kept for it until it is given back or '
                "gone.",
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="whole_at",
            field=models.DateTimeField(
                help_text="When all tasks that need each other first had a node; a placed run is billed from then on.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="lacks_since",
            field=models.DateTimeField(help_text="Since when tasks of a placed run have had no node.", null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="given_back_at",
            field=models.DateTimeField(
                help_text="It loses its places, and waits for new ones once it is gone.", null=True
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="avoided",
            field=models.JSONField(
                db_default=[],
                default=list,
                help_text="Nodes on which its tasks did not start when it had places there last.",
            ),
        ),
        migrations.AddField(
            model_name="run", name="times_given_back", field=models.PositiveIntegerField(db_default=0, default=0)
        ),
    ]
    operations = at_once(operations)
