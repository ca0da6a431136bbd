from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0002_several_clouds"),
    ]

    operations = [
        migrations.AddField(
            model_name="task",
            name="log_state",
            field=models.CharField(
                blank=True, choices=[("due", "Due"), ("kept", "Kept"), ("lost", "Lost")], default="", max_length=10
            ),
        ),
        migrations.AddField(
            model_name="task",
            name="log_size",
            field=models.BigIntegerField(help_text="Bytes of the copy.", null=True),
        ),
        migrations.AddField(
            model_name="task",
            name="log_message",
            field=models.TextField(blank=True, default="", help_text="Why there is no copy, or none yet."),
        ),
        migrations.AddField(
            model_name="task",
            name="log_claimed_until",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name="task",
            index=models.Index(condition=Q(log_state="due"), fields=["log_claimed_until", "id"], name="task_log_due"),
        ),
    ]
