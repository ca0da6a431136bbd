"""Rules of invoices that the database keeps by itself: what is closed is complete, adds up and never changes."""

from django.db import migrations

IMMUTABLE = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_invoice
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_invoiceline
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_invoicecredit
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_creditnote
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
-- A closing may be asked for earlier as long as it has no mark; then it can only be finished.
CREATE FUNCTION billing_closing_kept() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER closing_kept BEFORE UPDATE OR DELETE ON billing_closing
    FOR EACH ROW EXECUTE FUNCTION billing_closing_kept();
"""
NO_IMMUTABLE = """
DROP TRIGGER closing_kept ON billing_closing;
DROP FUNCTION billing_closing_kept();
DROP TRIGGER append_only ON billing_invoice;
DROP TRIGGER append_only ON billing_invoiceline;
DROP TRIGGER append_only ON billing_invoicecredit;
DROP TRIGGER append_only ON billing_creditnote;
"""

# An invoice is there with all its lines when its transaction ends; what is added to it later would not add up any more.
COMPLETE = """
CREATE FUNCTION billing_invoice_sum(invoice bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT (i.line_count, i.subtotal, i.credited) = (
        (SELECT count(*) FROM billing_invoiceline WHERE invoice_id = i.id),
        (SELECT coalesce(sum(amount), 0) FROM billing_invoiceline WHERE invoice_id = i.id),
        (SELECT coalesce(sum(amount), 0) FROM billing_invoicecredit WHERE invoice_id = i.id))
    FROM billing_invoice i WHERE i.id = invoice $$;
CREATE FUNCTION billing_invoice_complete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT billing_invoice_sum(NEW.id) THEN
        RAISE EXCEPTION 'invoice % is not complete', NEW.number USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER complete AFTER INSERT ON billing_invoice
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_invoice_complete();
CREATE FUNCTION billing_invoice_lines_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM (SELECT DISTINCT invoice_id FROM made) m JOIN billing_invoice i ON i.id = m.invoice_id
        WHERE i.line_count <> (SELECT count(*) FROM billing_invoiceline WHERE invoice_id = i.id)
    ) THEN
        RAISE EXCEPTION 'a closed invoice gets no more lines' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER lines_made AFTER INSERT ON billing_invoiceline
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION billing_invoice_lines_made();
CREATE FUNCTION billing_invoice_credits_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM (SELECT DISTINCT invoice_id FROM made) m JOIN billing_invoice i ON i.id = m.invoice_id
        WHERE i.credited <> (SELECT sum(amount) FROM billing_invoicecredit WHERE invoice_id = i.id)
    ) THEN
        RAISE EXCEPTION 'a closed invoice uses no more credits' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER credits_made AFTER INSERT ON billing_invoicecredit
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION billing_invoice_credits_made();
"""
NO_COMPLETE = """
DROP TRIGGER credits_made ON billing_invoicecredit;
DROP FUNCTION billing_invoice_credits_made();
DROP TRIGGER lines_made ON billing_invoiceline;
DROP FUNCTION billing_invoice_lines_made();
DROP TRIGGER complete ON billing_invoice;
DROP FUNCTION billing_invoice_complete();
DROP FUNCTION billing_invoice_sum(bigint);
"""

# Whoever spends takes the row first, so that two cannot spend the same money. 460800000 is rating.UNIT.
SPENT = """
CREATE FUNCTION billing_credit_spent() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    given numeric;
BEGIN
    SELECT amount INTO given FROM billing_credit WHERE id = NEW.credit_id FOR UPDATE;
    IF (SELECT sum(-charge) FROM billing_ledgerentry WHERE credit_id = NEW.credit_id) > given * 460800000 THEN
        RAISE EXCEPTION 'credit % is used up', NEW.credit_id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER credit_spent AFTER INSERT ON billing_ledgerentry
    FOR EACH ROW WHEN (NEW.kind = 'credit') EXECUTE FUNCTION billing_credit_spent();
CREATE FUNCTION billing_credit_note_fits() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    owed numeric;
BEGIN
    SELECT total INTO owed FROM billing_invoice WHERE id = NEW.invoice_id FOR UPDATE;
    IF (SELECT sum(amount) FROM billing_creditnote WHERE invoice_id = NEW.invoice_id) > owed THEN
        RAISE EXCEPTION 'credit notes exceed the invoice' USING ERRCODE = 'check_violation', CONSTRAINT = 'credit_note_fits';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER fits AFTER INSERT ON billing_creditnote
    FOR EACH ROW EXECUTE FUNCTION billing_credit_note_fits();
"""
NO_SPENT = """
DROP TRIGGER fits ON billing_creditnote;
DROP FUNCTION billing_credit_note_fits();
DROP TRIGGER credit_spent ON billing_ledgerentry;
DROP FUNCTION billing_credit_spent();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0006_invoices"), ("portal", "0002_guards")]
    operations = [
        migrations.RunSQL(IMMUTABLE, NO_IMMUTABLE),
        migrations.RunSQL(COMPLETE, NO_COMPLETE),
        migrations.RunSQL(SPENT, NO_SPENT),
    ]
