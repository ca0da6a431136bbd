-- Observations are append-only: a correction is another sighting. Segments are in whole seconds. Needs portal/sql/rules.sql.

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_observation
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();

-- A quarantined sighting may be resolved later, or get another reason.
CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OF id, digest, cloud, raw, seen_at ON billing_quarantined
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();

ALTER TABLE billing_usagesegment ADD CONSTRAINT segment_whole_seconds
    CHECK (extract(microsecond FROM started)::integer % 1000000 = 0
        AND coalesce(extract(microsecond FROM ended), 0)::integer % 1000000 = 0);

-- TRUNCATE bypasses row triggers, so protected tables refuse it, also by CASCADE.
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_observation FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_quarantined FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_usagesegment FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
