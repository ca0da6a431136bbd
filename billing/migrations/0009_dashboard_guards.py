"""Rules of dashboards that the database keeps by itself: the sums without clusters, and what may go with a generated appcode."""

from django.db import migrations

# Whatever writes sums by month, posting or a rebuild of them, writes these too. One function for each of what happens, because
# each has other rows; all add the difference.
ADD = """
    INSERT INTO billing_monthlyspending AS held
        (month, key, appcode_id, business_line, "user", framework, gpu_model, gpu_seconds, charge)
    SELECT month, billing_spending_key(appcode_id, business_line, "user", framework, gpu_model), appcode_id, business_line,
        "user", framework, gpu_model, gpu_seconds, charge
    FROM (
        SELECT month, appcode_id, business_line, "user", framework, gpu_model, sum(gpu_seconds * sign)::bigint AS gpu_seconds,
            sum((gpu_charge + cpu_charge + memory_charge + storage_charge) * sign) AS charge
        FROM ({rows}) changed GROUP BY 1, 2, 3, 4, 5, 6
    ) summed
    ON CONFLICT (month, key) DO UPDATE
        SET gpu_seconds = held.gpu_seconds + excluded.gpu_seconds, charge = held.charge + excluded.charge;
"""
FUNCTION = """
CREATE FUNCTION billing_spending_{name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
{add}
    RETURN NULL;
END $$;
"""
ROWS = {
    "made": "SELECT *, 1 AS sign FROM made",
    "changed": "SELECT *, 1 AS sign FROM after UNION ALL SELECT *, -1 FROM before",
    "gone": "SELECT *, -1 AS sign FROM gone",
}
SPENDING = (
    """
CREATE FUNCTION billing_spending_key(code bigint, line text, person text, framework text, model text) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT md5(jsonb_build_array(code, line, person, framework, model)::text)::uuid $$;
"""  # noqa: S608  parts of this file only
    + "".join(FUNCTION.format(name=name, add=ADD.format(rows=rows)) for name, rows in ROWS.items())
    + """
CREATE TRIGGER spending_made AFTER INSERT ON billing_monthlyusage
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION billing_spending_made();
CREATE TRIGGER spending_changed AFTER UPDATE ON billing_monthlyusage
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION billing_spending_changed();
CREATE TRIGGER spending_gone AFTER DELETE ON billing_monthlyusage
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION billing_spending_gone();
"""
    + ADD.format(rows="SELECT *, 1 AS sign FROM billing_monthlyusage")
)
NO_SPENDING = """
DROP TRIGGER spending_gone ON billing_monthlyusage;
DROP TRIGGER spending_changed ON billing_monthlyusage;
DROP TRIGGER spending_made ON billing_monthlyusage;
DROP FUNCTION billing_spending_gone();
DROP FUNCTION billing_spending_changed();
DROP FUNCTION billing_spending_made();
DROP FUNCTION billing_spending_key(bigint, text, text, text, text);
DELETE FROM billing_monthlyspending;
"""

# An appcode is declared generated before anything was seen of it, and what a real cloud tells is never removed: no cloud can be
# called 'generated example', whose name has a space in it. What may go, goes only while the appcode is being removed.
GENERATED = """
CREATE FUNCTION billing_generated_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF EXISTS (SELECT 1 FROM billing_usagesegment WHERE appcode_id = NEW.appcode_id)
            OR EXISTS (SELECT 1 FROM billing_ledgerentry WHERE appcode_id = NEW.appcode_id)
            OR EXISTS (SELECT 1 FROM billing_observation WHERE appcode_id = NEW.appcode_id) THEN
            RAISE EXCEPTION 'appcode % has been used and is not generated', NEW.appcode_id USING ERRCODE = 'restrict_violation';
        END IF;
    ELSIF (OLD.appcode_id, OLD.created_at) <> (NEW.appcode_id, NEW.created_at) THEN
        RAISE EXCEPTION 'appcode % stays generated', OLD.appcode_id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER generated_kept BEFORE INSERT OR UPDATE ON billing_generatedappcode
    FOR EACH ROW EXECUTE FUNCTION billing_generated_kept();
CREATE FUNCTION billing_goes(code bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM billing_generatedappcode WHERE appcode_id = code AND removing) $$;

CREATE FUNCTION billing_ledger_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF billing_goes(OLD.appcode_id) THEN RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION billing_ledger_kept();
CREATE FUNCTION billing_observation_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.cloud = 'generated example' AND billing_goes(OLD.appcode_id) THEN RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_observation
    FOR EACH ROW EXECUTE FUNCTION billing_observation_kept();
CREATE FUNCTION billing_capacity_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.cloud = 'generated example' AND EXISTS (SELECT 1 FROM billing_generatedappcode WHERE removing) THEN RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_capacityrecord
    FOR EACH ROW EXECUTE FUNCTION billing_capacity_kept();
-- Prices of the example alone go with it.
CREATE TRIGGER price_generated BEFORE DELETE ON billing_price
    FOR EACH ROW WHEN (OLD.valid_from <= now() AND NOT billing_goes(OLD.appcode_id)) EXECUTE FUNCTION billing_price_charged();
DROP TRIGGER price_charged ON billing_price;
CREATE TRIGGER price_charged BEFORE UPDATE ON billing_price
    FOR EACH ROW WHEN (OLD.valid_from <= now()) EXECUTE FUNCTION billing_price_charged();
"""
NO_GENERATED = """
DROP TRIGGER price_generated ON billing_price;
DROP TRIGGER price_charged ON billing_price;
CREATE TRIGGER price_charged BEFORE UPDATE OR DELETE ON billing_price
    FOR EACH ROW WHEN (OLD.valid_from <= now()) EXECUTE FUNCTION billing_price_charged();
DROP TRIGGER append_only ON billing_capacityrecord;
DROP FUNCTION billing_capacity_kept();
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_observation
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
DROP FUNCTION billing_observation_kept();
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
DROP FUNCTION billing_ledger_kept();
DROP FUNCTION billing_goes(bigint);
DROP TRIGGER generated_kept ON billing_generatedappcode;
DROP FUNCTION billing_generated_kept();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0008_dashboards")]
    operations = [
        migrations.RunSQL(SPENDING, NO_SPENDING),
        migrations.RunSQL(GENERATED, NO_GENERATED),
    ]
