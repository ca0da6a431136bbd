"""Generated examples leave the ledger: what is append-only has no exceptions."""

from django.db import migrations

TABLES = (
    "billing_observation", "billing_ledgerentry", "billing_capacityrecord", "billing_invoice", "billing_invoiceline",
    "billing_invoicecredit", "billing_creditnote", "billing_credit",
)  # fmt: skip
TRIGGER = """
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION portal_append_only();
"""
NO_EXCEPTIONS = (
    "".join(TRIGGER.format(table=table) for table in TABLES)
    + """
DROP TRIGGER price_generated ON billing_price;
CREATE OR REPLACE TRIGGER price_charged BEFORE UPDATE OR DELETE ON billing_price
    FOR EACH ROW WHEN (OLD.valid_from <= now()) EXECUTE FUNCTION billing_price_charged();
DROP TRIGGER discount_generated ON billing_discount;
CREATE OR REPLACE TRIGGER discount_charged BEFORE UPDATE OR DELETE ON billing_discount
    FOR EACH ROW WHEN (OLD.valid_from <= now()) EXECUTE FUNCTION billing_discount_charged();
CREATE OR REPLACE FUNCTION billing_closing_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD.closed_at IS NULL AND (OLD.id, OLD.month) = (NEW.id, NEW.month)
           AND (OLD.mark IS NULL OR (OLD.mark, OLD.marked_at) = (NEW.mark, NEW.marked_at)) THEN
            RETURN NEW;
        END IF;
    ELSIF OLD.mark IS NULL THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the closing of % has begun', OLD.month USING ERRCODE = 'restrict_violation';
END $$;
DROP FUNCTION billing_invoice_kept();
DROP FUNCTION billing_ledger_kept();
DROP FUNCTION billing_observation_kept();
DROP FUNCTION billing_capacity_kept();
DROP FUNCTION billing_line_goes(text);
DROP FUNCTION billing_goes(bigint);
"""
)


class Migration(migrations.Migration):
    dependencies = [("billing", "0020_credit_note_limit_by_month"), ("portal", "0002_guards")]
    operations = [
        migrations.RunSQL(NO_EXCEPTIONS),
        migrations.DeleteModel(name="GeneratedAppcode"),
        migrations.RunSQL("DROP FUNCTION billing_generated_kept();"),
    ]
