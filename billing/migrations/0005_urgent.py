"""Prices of urgent GPUs: one may end for everybody, since that of the same GPU applies then."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    # No program needs a constraint, and the new one allows all that the old one did.
    unused_since = "1.0.0"
    dependencies = [("billing", "0004_decayed_use")]

    operations = [
        migrations.RemoveConstraint(model_name="price", name="price_ends_special_only"),
        migrations.AddConstraint(
            model_name="price",
            constraint=models.CheckConstraint(
                condition=Q(("per_hour__isnull", False))
                | Q(("appcode__isnull", False))
                | ~Q(("business_line", ""))
                | Q(("sku__startswith", "gpu:"))
                | Q(("sku__startswith", "spare-gpu"))
                | Q(("sku__startswith", "urgent-gpu")),
                name="price_ends_special_only",
            ),
        ),
    ]
