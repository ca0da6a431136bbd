"""TRUNCATE passes triggers of rows: whatever those keep refuses it, also when it comes by CASCADE."""

from django.db import migrations

# Every table of which a trigger lets rows go only under conditions.
TABLES = (
    "billing_observation", "billing_quarantined", "billing_usagesegment", "billing_ledgerentry", "billing_price",
    "billing_discount", "billing_credit", "billing_ownership", "billing_closing", "billing_invoice", "billing_invoiceline",
    "billing_invoicecredit", "billing_creditnote", "billing_capacityrecord", "billing_generatedappcode",
)  # fmt: skip
KEPT = (
    "CREATE TRIGGER no_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();\n"
)
LET_GO = "DROP TRIGGER no_truncate ON {table};\n"


class Migration(migrations.Migration):
    dependencies = [("billing", "0015_gpu_totals"), ("portal", "0002_guards")]
    operations = [
        migrations.RunSQL(
            "".join(KEPT.format(table=table) for table in TABLES),
            "".join(LET_GO.format(table=table) for table in TABLES),
        )
    ]
