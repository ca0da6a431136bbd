"""What people gave to a generated example goes with it, and so does the closing of months in which nothing else was used."""

from django.db import migrations

LINE = """
CREATE FUNCTION billing_line_goes(line text) RETURNS boolean LANGUAGE sql STABLE AS $$
    -- Unless anything real was ever priced by it.
    SELECT starts_with(line, 'generated-examples.') AND EXISTS (SELECT 1 FROM billing_generatedappcode WHERE removing)
        AND NOT EXISTS (SELECT 1 FROM billing_ownership WHERE business_line = line AND NOT billing_goes(appcode_id)) $$;
CREATE OR REPLACE TRIGGER price_generated BEFORE DELETE ON billing_price FOR EACH ROW
    WHEN (OLD.valid_from <= now() AND NOT billing_goes(OLD.appcode_id) AND NOT billing_line_goes(OLD.business_line))
    EXECUTE FUNCTION billing_price_charged();
CREATE TRIGGER discount_generated BEFORE DELETE ON billing_discount FOR EACH ROW
    WHEN (OLD.valid_from <= now() AND NOT billing_goes(OLD.appcode_id) AND NOT billing_line_goes(OLD.business_line))
    EXECUTE FUNCTION billing_discount_charged();
CREATE OR REPLACE TRIGGER discount_charged BEFORE UPDATE ON billing_discount
    FOR EACH ROW WHEN (OLD.valid_from <= now()) EXECUTE FUNCTION billing_discount_charged();
"""
NO_LINE = """
CREATE OR REPLACE TRIGGER discount_charged BEFORE UPDATE OR DELETE ON billing_discount
    FOR EACH ROW WHEN (OLD.valid_from <= now()) EXECUTE FUNCTION billing_discount_charged();
DROP TRIGGER discount_generated ON billing_discount;
CREATE OR REPLACE TRIGGER price_generated BEFORE DELETE ON billing_price
    FOR EACH ROW WHEN (OLD.valid_from <= now() AND NOT billing_goes(OLD.appcode_id)) EXECUTE FUNCTION billing_price_charged();
DROP FUNCTION billing_line_goes(text);
"""

# As if the example had never been: months are closed from the first one on in which anything was used.
CLOSING = """
CREATE OR REPLACE FUNCTION billing_closing_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD.closed_at IS NULL AND (OLD.id, OLD.month) = (NEW.id, NEW.month)
           AND (OLD.mark IS NULL OR (OLD.mark, OLD.marked_at) = (NEW.mark, NEW.marked_at)) THEN
            RETURN NEW;
        END IF;
    ELSIF OLD.mark IS NULL{examples} THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the closing of % has begun', OLD.month USING ERRCODE = 'restrict_violation';
END $$;
"""
EXAMPLES = """ OR (
            EXISTS (SELECT 1 FROM billing_generatedappcode WHERE removing)
            AND NOT EXISTS (SELECT 1 FROM billing_invoice WHERE month <= OLD.month)
            AND NOT EXISTS (SELECT 1 FROM billing_monthlyusage WHERE month <= OLD.month)
        )"""

# Nothing real is run in them any more.
DISABLED = """
UPDATE portal_appcode SET state = 'disabled', note = 'Generated example data; nothing of it was ever run.'
    WHERE state = 'active' AND id IN (SELECT appcode_id FROM billing_generatedappcode);
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0017_credits_given_back"), ("portal", "0002_guards")]
    operations = [
        migrations.RunSQL(LINE, NO_LINE),
        migrations.RunSQL(CLOSING.format(examples=EXAMPLES), CLOSING.format(examples="")),
        migrations.RunSQL(DISABLED, migrations.RunSQL.noop),
    ]
