"""Who issues invoices, with which tax and until when they are due."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0005_urgent")]

    operations = [
        migrations.CreateModel(
            name="Invoicing",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("spec", models.JSONField(default=dict)),
            ],
            options={"constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="invoicing_once")]},
        ),
        migrations.AddField("invoice", "terms", models.JSONField(null=True)),
        migrations.AddField(
            "invoice", "tax", models.DecimalField(db_default=0, decimal_places=2, default=0, max_digits=18)
        ),
        migrations.AddField(
            "creditnote", "tax", models.DecimalField(db_default=0, decimal_places=2, default=0, max_digits=18)
        ),
    ]
