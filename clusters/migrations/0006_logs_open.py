from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0005_began_at"),
    ]

    operations = [
        migrations.AlterField(
            model_name="task",
            name="log_state",
            field=models.CharField(
                blank=True,
                choices=[("due", "Due"), ("open", "Open"), ("kept", "Kept"), ("lost", "Lost")],
                default="",
                max_length=10,
            ),
        ),
        migrations.RemoveIndex(model_name="task", name="task_log_due"),
        migrations.AddIndex(
            model_name="task",
            index=models.Index(
                condition=Q(log_state__in=["due", "open"]), fields=["log_claimed_until", "id"], name="task_log_due"
            ),
        ),
    ]
