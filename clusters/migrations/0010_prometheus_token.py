"""The token of a cluster's Prometheus, encrypted."""

import encrypted_fields.fields
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0009_fights"),
    ]

    operations = [
        migrations.AddField(
            model_name="kubernetescluster",
            name="prometheus_token",
            field=encrypted_fields.fields.EncryptedTextField(
                help_text="Never shown; goes when the address changes.", null=True
            ),
        ),
    ]
