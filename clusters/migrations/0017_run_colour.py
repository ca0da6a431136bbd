"""The colour of a run's curves, so that it does not depend on what is drawn beside it. Runs of earlier releases have none."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0016_headline")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="colour",
            field=models.PositiveSmallIntegerField(
                help_text="Of its curves, from 0: the one after that of the run before it in its appcode.", null=True
            ),
        ),
    ]
