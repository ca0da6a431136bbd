"""Rules that span rows: one to four owners per active appcode, and an Event log that nobody rewrites."""

from django.db import migrations

OWNERS = """
CREATE FUNCTION portal_check_owners() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    code_id bigint;
    code_ids bigint[];
    owners integer;
BEGIN
    -- One branch a case: PL/pgSQL resolves OLD and NEW of a whole expression before it evaluates any part of it.
    IF TG_TABLE_NAME = 'portal_appcode' THEN code_ids := ARRAY[NEW.id];
    ELSIF TG_OP = 'INSERT' THEN code_ids := ARRAY[NEW.appcode_id];
    ELSIF TG_OP = 'DELETE' THEN code_ids := ARRAY[OLD.appcode_id];
    ELSE code_ids := ARRAY[OLD.appcode_id, NEW.appcode_id];
    END IF;
    FOREACH code_id IN ARRAY code_ids
    LOOP
        IF EXISTS (SELECT 1 FROM portal_appcode WHERE id = code_id) THEN
            SELECT count(*) INTO owners FROM portal_membership WHERE appcode_id = code_id AND role = 'owner';
            IF owners < 1 OR owners > 4 THEN
                RAISE EXCEPTION 'an appcode has 1 to 4 owners, not %', owners
                    USING ERRCODE = 'check_violation', CONSTRAINT = 'appcode_owners_1_4';
            END IF;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER appcode_owners_1_4 AFTER INSERT OR UPDATE OR DELETE ON portal_membership
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION portal_check_owners();
CREATE CONSTRAINT TRIGGER appcode_owners_1_4 AFTER INSERT ON portal_appcode
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION portal_check_owners();
"""

APPEND_ONLY = """
CREATE FUNCTION portal_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON portal_event
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("portal", "0001_initial")]
    operations = [
        migrations.RunSQL(
            OWNERS,
            "DROP TRIGGER appcode_owners_1_4 ON portal_appcode; DROP TRIGGER appcode_owners_1_4 ON portal_membership;"
            " DROP FUNCTION portal_check_owners();",
        ),
        migrations.RunSQL(APPEND_ONLY, "DROP TRIGGER append_only ON portal_event; DROP FUNCTION portal_append_only();"),
    ]
