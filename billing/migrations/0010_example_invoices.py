"""Invoices and credits of an appcode that is a generated example go with it, and only while it is being removed."""

from django.db import migrations

KEPT = """
CREATE FUNCTION billing_invoice_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- One branch a case: PL/pgSQL resolves the fields of OLD of a whole expression before it evaluates any part of it.
    IF TG_OP = 'DELETE' THEN
        IF TG_TABLE_NAME IN ('billing_invoice', 'billing_credit') THEN
            IF billing_goes(OLD.appcode_id) THEN RETURN OLD;
            END IF;
        ELSIF billing_goes((SELECT appcode_id FROM billing_invoice WHERE id = OLD.invoice_id)) THEN RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
"""
TABLES = ("billing_invoice", "billing_invoiceline", "billing_invoicecredit", "billing_creditnote", "billing_credit")
TRIGGER = """
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}();
"""


def triggers(function: str) -> str:
    return "".join(TRIGGER.format(table=table, function=function) for table in TABLES)


class Migration(migrations.Migration):
    dependencies = [("billing", "0009_dashboard_guards")]
    operations = [
        migrations.RunSQL(
            KEPT + triggers("billing_invoice_kept"),
            triggers("portal_append_only") + "DROP FUNCTION billing_invoice_kept();",
        )
    ]
