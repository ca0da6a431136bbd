"""When a run last saved, as its stored output says."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0007_forecasts")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="checkpoint_at",
            field=models.DateTimeField(
                help_text="When the newest file of its output was stored, beside logs; NULL if unknown.", null=True
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="checkpoint_seen_at",
            field=models.DateTimeField(help_text="When its output was last listed for that.", null=True),
        ),
    ]
