-- What was seen is never rewritten: a correction is another sighting. Usage is in whole seconds.
-- Needs portal/sql/rules.sql.

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_observation
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();

-- A sighting that was not understood may be resolved later, or refused for another reason.
CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OF id, digest, cloud, raw, seen_at ON billing_quarantined
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();

ALTER TABLE billing_usagesegment ADD CONSTRAINT segment_whole_seconds
    CHECK (extract(microsecond FROM started)::integer % 1000000 = 0
        AND coalesce(extract(microsecond FROM ended), 0)::integer % 1000000 = 0);

-- TRUNCATE passes triggers of rows: whatever those keep refuses it, also when it comes by CASCADE.
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_observation FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_quarantined FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_usagesegment FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
