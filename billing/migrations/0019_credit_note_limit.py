"""A credit note takes back nothing that a correction on a later invoice has taken back."""

from django.db import migrations

# What all credit notes of an invoice may add up to. Of its month later invoices may have taken something back; of what is left
# no more than was to pay in money; and nobody gets back more than all of his invoices asked for.
LIMIT = """
CREATE FUNCTION billing_credit_note_limit(invoice bigint) RETURNS numeric LANGUAGE sql STABLE AS $$
    SELECT greatest(0, least(
        i.total,
        i.subtotal + coalesce((
            SELECT sum(least(corrected, 0)) FROM (
                SELECT sum(line.amount) AS corrected
                FROM billing_invoice later JOIN billing_invoiceline line ON line.invoice_id = later.id
                WHERE later.appcode_id = i.appcode_id AND later.month > i.month AND line.month = i.month GROUP BY later.id
            ) corrections
        ), 0),
        (SELECT sum(total) FROM billing_invoice WHERE appcode_id = i.appcode_id) - coalesce((
            SELECT sum(note.amount) FROM billing_creditnote note JOIN billing_invoice other ON other.id = note.invoice_id
            WHERE other.appcode_id = i.appcode_id AND other.id <> i.id
        ), 0)
    )) FROM billing_invoice i WHERE i.id = invoice $$;
CREATE OR REPLACE FUNCTION billing_credit_note_fits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- One note of an appcode after the other; in this order, so that no two wait for each other.
    PERFORM FROM billing_invoice WHERE appcode_id = (SELECT appcode_id FROM billing_invoice WHERE id = NEW.invoice_id)
        ORDER BY id FOR UPDATE;
    IF (SELECT sum(amount) FROM billing_creditnote WHERE invoice_id = NEW.invoice_id)
        > billing_credit_note_limit(NEW.invoice_id) THEN
        RAISE EXCEPTION 'credit notes exceed the invoice' USING ERRCODE = 'check_violation', CONSTRAINT = 'credit_note_fits';
    END IF;
    RETURN NULL;
END $$;
"""
NO_LIMIT = """
CREATE OR REPLACE FUNCTION billing_credit_note_fits() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    owed numeric;
BEGIN
    SELECT total INTO owed FROM billing_invoice WHERE id = NEW.invoice_id FOR UPDATE;
    IF (SELECT sum(amount) FROM billing_creditnote WHERE invoice_id = NEW.invoice_id) > owed THEN
        RAISE EXCEPTION 'credit notes exceed the invoice' USING ERRCODE = 'check_violation', CONSTRAINT = 'credit_note_fits';
    END IF;
    RETURN NULL;
END $$;
DROP FUNCTION billing_credit_note_limit(bigint);
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0018_examples_go_wholly")]
    operations = [migrations.RunSQL(LIMIT, NO_LIMIT)]
