"""What was seen or charged is never rewritten; a correction is another row. Everything is billed in whole seconds."""

from django.db import migrations

OBSERVATIONS = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_observation
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
"""

# A price of the future may be taken back; one that holds or held has been charged.
PRICES = """
CREATE FUNCTION billing_price_charged() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the price of % from % has been charged', OLD.sku, OLD.valid_from
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER price_charged BEFORE UPDATE OR DELETE ON billing_price
    FOR EACH ROW WHEN (OLD.valid_from <= now()) EXECUTE FUNCTION billing_price_charged();
"""

WHOLE_SECONDS = """
ALTER TABLE billing_price ADD CONSTRAINT price_whole_second
    CHECK (extract(microsecond FROM valid_from)::integer % 1000000 = 0);
ALTER TABLE billing_usagesegment ADD CONSTRAINT segment_whole_seconds
    CHECK (extract(microsecond FROM started)::integer % 1000000 = 0
        AND coalesce(extract(microsecond FROM ended), 0)::integer % 1000000 = 0);
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial"), ("portal", "0002_guards")]
    operations = [
        migrations.RunSQL(OBSERVATIONS, "DROP TRIGGER append_only ON billing_observation;"),
        migrations.RunSQL(
            PRICES, "DROP TRIGGER price_charged ON billing_price; DROP FUNCTION billing_price_charged();"
        ),
        migrations.RunSQL(
            WHOLE_SECONDS,
            "ALTER TABLE billing_price DROP CONSTRAINT price_whole_second;"
            " ALTER TABLE billing_usagesegment DROP CONSTRAINT segment_whole_seconds;",
        ),
    ]
