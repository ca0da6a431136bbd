"""An invoice that takes back more than was used gives credits back, up to what earlier ones used of them."""

from django.db import migrations, models
from django.db.models import Q

# Whoever spends takes the row first, so that two cannot spend, or give back, the same money. 460800000 is rating.UNIT.
FUNCTION = """
CREATE OR REPLACE FUNCTION billing_credit_spent() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    given numeric;
    spent numeric;
BEGIN
    SELECT amount INTO given FROM billing_credit WHERE id = NEW.credit_id FOR UPDATE;
    SELECT sum(-charge) INTO spent FROM billing_ledgerentry WHERE credit_id = NEW.credit_id;
    IF spent > given * 460800000 THEN
        RAISE EXCEPTION 'credit % is used up', NEW.credit_id USING ERRCODE = 'check_violation';
    END IF;{back}
    RETURN NULL;
END $$;
"""
BACK = """
    IF spent < 0 THEN
        RAISE EXCEPTION 'less than that was used of credit %', NEW.credit_id USING ERRCODE = 'check_violation';
    END IF;"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0016_no_truncate")]
    operations = [
        migrations.RunSQL(FUNCTION.format(back=BACK), FUNCTION.format(back="")),
        migrations.RemoveConstraint(model_name="invoice", name="invoice_credited"),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.CheckConstraint(
                condition=Q(credited=0) | Q(credited__gt=0, total__gte=0) | Q(credited__lt=0, total__lte=0),
                name="invoice_credited",
            ),
        ),
        migrations.RemoveConstraint(model_name="invoicecredit", name="invoice_credit_positive"),
        migrations.AddConstraint(
            model_name="invoicecredit",
            constraint=models.CheckConstraint(condition=~Q(amount=0), name="invoice_credit_some"),
        ),
    ]
