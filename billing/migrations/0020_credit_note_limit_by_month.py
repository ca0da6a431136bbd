"""What credit notes take back is limited by what became of the same months of use, never by what became of others."""

from importlib import import_module

from django.db import migrations

# What all credit notes of an invoice may add up to: at most what was to pay in money; and of what it asked for each month, what
# no invoice has taken back: corrections of a month take back what was asked for first, first.
LIMIT = """
CREATE OR REPLACE FUNCTION billing_credit_note_limit(invoice bigint) RETURNS numeric LANGUAGE sql STABLE AS $$
    WITH mine AS (
        SELECT asker.id, asker.month AS asked, line.month, sum(line.amount) AS amount
        FROM billing_invoice i JOIN billing_invoice asker ON asker.appcode_id = i.appcode_id
            JOIN billing_invoiceline line ON line.invoice_id = asker.id
        WHERE i.id = invoice GROUP BY asker.id, line.month
    ), months AS (
        SELECT id, amount,
            coalesce(-sum(least(amount, 0)) OVER (PARTITION BY month), 0) AS taken,
            coalesce(sum(greatest(amount, 0)) OVER (
                PARTITION BY month ORDER BY asked ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ), 0) AS before
        FROM mine
    )
    SELECT greatest(0, least(i.total, (
        SELECT coalesce(sum(greatest(0, amount - greatest(0, taken - before))), 0)
        FROM months WHERE id = invoice AND amount > 0
    ))) FROM billing_invoice i WHERE i.id = invoice $$;
"""
before = import_module("billing.migrations.0019_credit_note_limit").LIMIT
BEFORE = before[: before.index("CREATE OR REPLACE")].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


class Migration(migrations.Migration):
    dependencies = [("billing", "0019_credit_note_limit")]
    operations = [migrations.RunSQL(LIMIT, BEFORE)]
