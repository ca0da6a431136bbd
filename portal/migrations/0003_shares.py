"""Borrowing: GPUs beyond the quota, and the weight with which appcodes share what is lent."""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("portal", "0002_rules"),
    ]

    operations = [
        migrations.AddField(
            model_name="appcode",
            name="gpu_borrow",
            field=models.PositiveIntegerField(
                db_default=0,
                default=0,
                help_text="GPUs that its runs may hold beyond the quota, as long as nobody else needs them.",
                validators=[django.core.validators.MaxValueValidator(100000)],
            ),
        ),
        migrations.AddField(
            model_name="appcode",
            name="weight",
            field=models.PositiveIntegerField(
                db_default=1,
                default=1,
                help_text="Its part of the GPUs that are lent, against those of other appcodes.",
                validators=[django.core.validators.MaxValueValidator(1000)],
            ),
        ),
        migrations.AddConstraint(
            model_name="appcode",
            constraint=models.CheckConstraint(
                condition=models.Q(("gpu_borrow__lte", 100000)), name="appcode_gpu_borrow"
            ),
        ),
        migrations.AddConstraint(
            model_name="appcode",
            constraint=models.CheckConstraint(condition=models.Q(("weight__lte", 1000)), name="appcode_weight"),
        ),
    ]
