-- Ledger lines are append-only: a correction reverses a line and adds another. Changes of segments fill the posting queue.
-- Must run before prices.sql, which uses billing_repost.

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_ledgerentry FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();

-- Reversals and credits are rare, so their references are checked: the row must exist, and a reversal must take back all of it.
CREATE FUNCTION billing_ledger_reference() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.kind = 'credit' THEN
        PERFORM FROM billing_credit WHERE id = NEW.credit_id AND appcode_id = NEW.appcode_id;
    ELSE
        PERFORM FROM billing_ledgerentry line
        WHERE line.id = NEW.reverses_id AND line.kind = 'usage'
            AND (line.segment_id, line.uid, line.sku, line.since, line.until, line.quantity, line.price_id, line.per_hour,
                 line.discount, line.charge, line.appcode_id, line.business_line, line.consumer, line.labels)
            IS NOT DISTINCT FROM
                (NEW.segment_id, NEW.uid, NEW.sku, NEW.since, NEW.until, -NEW.quantity, NEW.price_id, NEW.per_hour,
                 NEW.discount, -NEW.charge, NEW.appcode_id, NEW.business_line, NEW.consumer, NEW.labels);
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a % in the ledger refers to nothing that it fits', NEW.kind USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER reference BEFORE INSERT ON billing_ledgerentry
    FOR EACH ROW WHEN (NEW.kind <> 'usage') EXECUTE FUNCTION billing_ledger_reference();

-- All months are UTC.

CREATE FUNCTION billing_month(moment timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT date_trunc('month', moment AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' $$;
CREATE FUNCTION billing_month_end(moment timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (date_trunc('month', moment AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC' $$;

ALTER TABLE billing_ledgerentry ADD CONSTRAINT ledger_one_month
    CHECK (kind = 'credit' OR until <= billing_month_end(since));

-- Queue: an unposted segment is due when it ends or when the month of its start is over; a posted one that changed is due at once.

CREATE FUNCTION billing_segments_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_due (segment_id, due_at, appcode_id, posted)
        SELECT id, least(ended, billing_month_end(started)), appcode_id, false FROM made;
    RETURN NULL;
END $$;
CREATE TRIGGER segments_made AFTER INSERT ON billing_usagesegment
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION billing_segments_made();

-- Its time must depend on the number of changed rows only. It joins nothing, so a plan cached for a call with few rows does no
-- harm. A segment that is not in the queue was posted; if posting is processing it, its row lock is waited for.
CREATE FUNCTION billing_segments_changed() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    INSERT INTO billing_due AS held (segment_id, due_at, appcode_id, posted)
        SELECT id, started, appcode_id, true FROM (
            SELECT id, uid, appcode_id, consumer, labels, gpus, gpu_model, cpu_milli, memory_mb, storage_mb, started, ended
                FROM after
            EXCEPT
            SELECT id, uid, appcode_id, consumer, labels, gpus, gpu_model, cpu_milli, memory_mb, storage_mb, started, ended
                FROM before
        ) changed
        ON CONFLICT (segment_id) DO UPDATE SET appcode_id = excluded.appcode_id, due_at = CASE
            WHEN held.posted THEN excluded.due_at
            ELSE (SELECT least(s.ended, billing_month_end(s.started)) FROM billing_usagesegment s WHERE s.id = held.segment_id)
        END;
    RETURN NULL;
END $$;
CREATE TRIGGER segments_changed AFTER UPDATE ON billing_usagesegment
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION billing_segments_changed();

CREATE FUNCTION billing_segments_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM gone JOIN billing_ledgerentry line ON line.segment_id = gone.id
        WHERE line.kind = 'usage' AND NOT EXISTS (SELECT 1 FROM billing_ledgerentry r WHERE r.reverses_id = line.id)
    ) THEN
        RAISE EXCEPTION 'a segment that has been charged stays' USING ERRCODE = 'restrict_violation';
    END IF;
    DELETE FROM billing_due USING gone WHERE segment_id = gone.id;
    RETURN NULL;
END $$;
CREATE TRIGGER segments_gone AFTER DELETE ON billing_usagesegment
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION billing_segments_gone();

-- Queues every segment that may have been posted with terms or owners outdated since `since`; open segments are posted by whole
-- months only. The locks make the change wait for the running portion, and the next portion wait for the change. Lock numbers are
-- those of portal/db/advisory_lock.py.
CREATE FUNCTION billing_repost(since timestamptz, code bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1); -- METERING
    PERFORM pg_advisory_xact_lock(3); -- POSTING
    INSERT INTO billing_due (segment_id, due_at, appcode_id, posted)
        SELECT id, started, appcode_id, true FROM billing_usagesegment
        WHERE (ended > since OR (ended IS NULL AND started < billing_month(now()))) AND (code IS NULL OR appcode_id = code)
        ORDER BY id
        ON CONFLICT (segment_id) DO UPDATE SET due_at = excluded.due_at WHERE billing_due.posted;
END $$;
