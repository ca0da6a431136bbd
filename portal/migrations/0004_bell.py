"""Until when each person has read what the bell tells: at an upgrade, everything."""

import django.db.models.functions.datetime
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("portal", "0003_shares"),
    ]

    operations = [
        migrations.AddField(
            model_name="user",
            name="told_until",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                default=django.utils.timezone.now,
                help_text="Until when this person has read what the bell tells.",
            ),
        ),
    ]
