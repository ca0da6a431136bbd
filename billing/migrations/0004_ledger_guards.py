"""Rules of the ledger that the database keeps by itself: what is append-only, what is due to be posted, who owned what when."""

from django.db import migrations

APPEND_ONLY = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_credit
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
-- A sighting that was not understood may be resolved later, or refused for another reason.
CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OF id, digest, cloud, raw, seen_at ON billing_quarantined
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
-- A line that refers to another row is rare; that row must be there, and a reversal takes back all of it.
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
"""
NO_APPEND_ONLY = """
DROP TRIGGER reference ON billing_ledgerentry;
DROP FUNCTION billing_ledger_reference();
DROP TRIGGER append_only ON billing_ledgerentry;
DROP TRIGGER append_only ON billing_credit;
DROP TRIGGER append_only ON billing_quarantined;
"""

# All months are UTC's. The number is the key of the advisory lock under which the ledger is posted ("post" in ASCII): who
# changes what has been posted by must wait for the portion at work, and keeps the next one waiting for the change.
TIME = """
CREATE FUNCTION billing_month(moment timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT date_trunc('month', moment AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' $$;
CREATE FUNCTION billing_month_end(moment timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (date_trunc('month', moment AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC' $$;
-- What may have been posted with terms or owners that hold no more since `since`: what lasts is posted by whole months only.
CREATE FUNCTION billing_repost(since timestamptz, code bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- As everywhere: first the lock of metering, then that of posting.
    PERFORM pg_advisory_xact_lock(469853562226);
    PERFORM pg_advisory_xact_lock(1886352244);
    INSERT INTO billing_due (segment_id, due_at, appcode_id, posted)
        SELECT id, started, appcode_id, true FROM billing_usagesegment
        WHERE (ended > since OR (ended IS NULL AND started < billing_month(now()))) AND (code IS NULL OR appcode_id = code)
        ORDER BY id
        ON CONFLICT (segment_id) DO UPDATE SET due_at = excluded.due_at WHERE billing_due.posted;
END $$;
ALTER TABLE billing_ledgerentry ADD CONSTRAINT ledger_one_month
    CHECK (kind = 'credit' OR until <= billing_month_end(since));
ALTER TABLE billing_discount ADD CONSTRAINT discount_whole_seconds
    CHECK (extract(microsecond FROM valid_from)::integer % 1000000 = 0
        AND coalesce(extract(microsecond FROM valid_until), 0)::integer % 1000000 = 0);
ALTER TABLE billing_ownership ADD CONSTRAINT ownership_whole_second
    CHECK (extract(microsecond FROM valid_from)::integer % 1000000 = 0);
"""
NO_TIME = """
ALTER TABLE billing_ownership DROP CONSTRAINT ownership_whole_second;
ALTER TABLE billing_discount DROP CONSTRAINT discount_whole_seconds;
ALTER TABLE billing_ledgerentry DROP CONSTRAINT ledger_one_month;
DROP FUNCTION billing_repost(timestamptz, bigint);
DROP FUNCTION billing_month_end(timestamptz);
DROP FUNCTION billing_month(timestamptz);
"""

# What has never been posted is due when it has ended, or when the month of its beginning is over; what was posted and has
# changed is due at once. The row of a segment that is not in the queue was taken away by posting.
DUE = """
CREATE FUNCTION billing_segments_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_due (segment_id, due_at, appcode_id, posted)
        SELECT id, least(ended, billing_month_end(started)), appcode_id, false FROM made;
    RETURN NULL;
END $$;
-- Few rows of a large table each time, whatever the statistics say by now: never by reading all of it. What is in the queue is
-- changed there (posting that has it in its hands is waited for); what is not was taken away by posting.
CREATE FUNCTION billing_segments_changed() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    UPDATE billing_due SET appcode_id = n.appcode_id,
        due_at = CASE WHEN posted THEN n.started ELSE least(n.ended, billing_month_end(n.started)) END
        FROM after n JOIN before o USING (id)
        WHERE segment_id = id AND segment_id = ANY(ARRAY(SELECT id FROM after))
            AND (n.uid, n.appcode_id, n.consumer, n.labels, n.gpus, n.gpu_model, n.cpu_milli, n.memory_mb, n.storage_mb,
                 n.started, n.ended) IS DISTINCT FROM
                (o.uid, o.appcode_id, o.consumer, o.labels, o.gpus, o.gpu_model, o.cpu_milli, o.memory_mb, o.storage_mb,
                 o.started, o.ended);
    INSERT INTO billing_due (segment_id, due_at, appcode_id, posted)
        SELECT id, n.started, n.appcode_id, true
        FROM after n JOIN before o USING (id)
        WHERE (SELECT d.posted FROM billing_due d WHERE d.segment_id = id) IS NULL
            AND (n.uid, n.appcode_id, n.consumer, n.labels, n.gpus, n.gpu_model, n.cpu_milli, n.memory_mb, n.storage_mb,
                 n.started, n.ended) IS DISTINCT FROM
                (o.uid, o.appcode_id, o.consumer, o.labels, o.gpus, o.gpu_model, o.cpu_milli, o.memory_mb, o.storage_mb,
                 o.started, o.ended);
    RETURN NULL;
END $$;
CREATE TRIGGER segments_made AFTER INSERT ON billing_usagesegment
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION billing_segments_made();
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
INSERT INTO billing_due (segment_id, due_at, appcode_id, posted)
    SELECT id, least(ended, billing_month_end(started)), appcode_id, false FROM billing_usagesegment;
"""
NO_DUE = """
DROP TRIGGER segments_gone ON billing_usagesegment;
DROP FUNCTION billing_segments_gone();
DROP TRIGGER segments_changed ON billing_usagesegment;
DROP FUNCTION billing_segments_changed();
DROP TRIGGER segments_made ON billing_usagesegment;
DROP FUNCTION billing_segments_made();
DELETE FROM billing_due;
"""

TERMS = """
CREATE FUNCTION billing_terms_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    since timestamptz := NEW.valid_from;
BEGIN
    -- One branch a case: PL/pgSQL resolves OLD and NEW of a whole expression before it evaluates any part of it.
    IF TG_OP = 'UPDATE' THEN
        IF OLD.valid_from = NEW.valid_from THEN since := least(OLD.valid_until, NEW.valid_until);
        ELSE since := least(OLD.valid_from, NEW.valid_from);
        END IF;
    END IF;
    -- What begins in a minute may hold by the time of the commit.
    IF since <= clock_timestamp() + interval '1 minute' THEN
        PERFORM billing_repost(since, NEW.appcode_id);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER terms_changed AFTER INSERT ON billing_price FOR EACH ROW EXECUTE FUNCTION billing_terms_changed();
CREATE TRIGGER terms_changed AFTER INSERT OR UPDATE ON billing_discount
    FOR EACH ROW EXECUTE FUNCTION billing_terms_changed();
CREATE FUNCTION billing_discount_charged() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF (OLD.id, OLD.appcode_id, OLD.business_line, OLD.sku, OLD.percent, OLD.valid_from) IS NOT DISTINCT FROM
           (NEW.id, NEW.appcode_id, NEW.business_line, NEW.sku, NEW.percent, NEW.valid_from)
           AND coalesce(OLD.valid_until, 'infinity') >= date_trunc('second', now())
           AND coalesce(NEW.valid_until, 'infinity') >= date_trunc('second', now()) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'the discount on % from % has been charged', OLD.sku, OLD.valid_from
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER discount_charged BEFORE UPDATE OR DELETE ON billing_discount
    FOR EACH ROW WHEN (OLD.valid_from <= now()) EXECUTE FUNCTION billing_discount_charged();
"""
NO_TERMS = """
DROP TRIGGER discount_charged ON billing_discount;
DROP FUNCTION billing_discount_charged();
DROP TRIGGER terms_changed ON billing_discount;
DROP TRIGGER terms_changed ON billing_price;
DROP FUNCTION billing_terms_changed();
"""

# Another lock than that of posting: moves of appcodes and of nodes wait for each other, so that each sees the other's.
OWNERS = """
CREATE FUNCTION billing_line_of(node text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((
        SELECT path FROM portal_orgnode
        WHERE namespace IS NOT NULL AND (path = node OR starts_with(node, path || '.')) ORDER BY length(path) DESC LIMIT 1
    ), '') $$;
CREATE FUNCTION billing_note_owners(codes bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    code record;
    begun timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(1886352245);
    FOR code IN
        SELECT appcode.id, billing_line_of(node.path) AS line, held.business_line AS held, held.valid_from
        FROM portal_appcode appcode JOIN portal_orgnode node ON node.id = appcode.org_node_id
        LEFT JOIN LATERAL (
            SELECT business_line, valid_from FROM billing_ownership o
            WHERE o.appcode_id = appcode.id ORDER BY valid_from DESC LIMIT 1
        ) held ON true
        WHERE appcode.id = ANY(codes)
    LOOP
        IF code.held IS NULL THEN
            INSERT INTO billing_ownership (appcode_id, business_line, valid_from)
                VALUES (code.id, code.line, '2000-01-01 00:00:00Z');
        ELSIF code.held <> code.line THEN
            begun := greatest(date_trunc('second', now()), code.valid_from);
            INSERT INTO billing_ownership (appcode_id, business_line, valid_from) VALUES (code.id, code.line, begun)
                ON CONFLICT (appcode_id, valid_from) DO UPDATE SET business_line = excluded.business_line;
        END IF;
    END LOOP;
END $$;
CREATE FUNCTION billing_appcode_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM billing_note_owners(ARRAY[NEW.id]);
    RETURN NULL;
END $$;
CREATE TRIGGER ownership AFTER INSERT OR UPDATE OF org_node_id ON portal_appcode
    FOR EACH ROW EXECUTE FUNCTION billing_appcode_moved();
CREATE FUNCTION billing_line_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed text;
    paths text[];
BEGIN
    IF TG_OP = 'INSERT' THEN paths := ARRAY[NEW.path];
    ELSIF TG_OP = 'DELETE' THEN paths := ARRAY[OLD.path];
    ELSE paths := ARRAY[OLD.path, NEW.path];
    END IF;
    FOREACH changed IN ARRAY paths
    LOOP
        PERFORM billing_note_owners(array_agg(appcode.id ORDER BY appcode.id))
            FROM portal_appcode appcode JOIN portal_orgnode node ON node.id = appcode.org_node_id
            WHERE node.path = changed OR starts_with(node.path, changed || '.')
            HAVING count(*) > 0;
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER ownership AFTER INSERT OR UPDATE OF path, namespace OR DELETE ON portal_orgnode
    FOR EACH ROW EXECUTE FUNCTION billing_line_changed();
CREATE FUNCTION billing_ownership_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Who moves twice within a second was never there in between.
    IF TG_OP = 'UPDATE' THEN
        IF (OLD.id, OLD.appcode_id, OLD.valid_from) = (NEW.id, NEW.appcode_id, NEW.valid_from)
           AND OLD.valid_from >= date_trunc('second', now()) THEN
            RETURN NEW;
        END IF;
    -- An appcode may go as long as it never used anything.
    ELSIF NOT EXISTS (SELECT 1 FROM billing_usagesegment WHERE appcode_id = OLD.appcode_id) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'who owned an appcode has been charged' USING ERRCODE = 'restrict_violation';
END $$;
CREATE FUNCTION billing_owner_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM billing_repost(NEW.valid_from, NEW.appcode_id);
    RETURN NULL;
END $$;
-- A new appcode has nothing to post again.
CREATE TRIGGER owner_changed AFTER INSERT OR UPDATE ON billing_ownership
    FOR EACH ROW WHEN (NEW.valid_from > '2000-01-01 00:00:00Z') EXECUTE FUNCTION billing_owner_changed();
CREATE TRIGGER ownership_kept BEFORE UPDATE OR DELETE ON billing_ownership
    FOR EACH ROW EXECUTE FUNCTION billing_ownership_kept();
INSERT INTO billing_ownership (appcode_id, business_line, valid_from)
    SELECT appcode.id, billing_line_of(node.path), '2000-01-01 00:00:00Z'
    FROM portal_appcode appcode JOIN portal_orgnode node ON node.id = appcode.org_node_id;
"""
NO_OWNERS = """
DROP TRIGGER owner_changed ON billing_ownership;
DROP FUNCTION billing_owner_changed();
DROP TRIGGER ownership_kept ON billing_ownership;
DROP FUNCTION billing_ownership_kept();
DROP TRIGGER ownership ON portal_orgnode;
DROP FUNCTION billing_line_changed();
DROP TRIGGER ownership ON portal_appcode;
DROP FUNCTION billing_appcode_moved();
DROP FUNCTION billing_note_owners(bigint[]);
DROP FUNCTION billing_line_of(text);
DELETE FROM billing_ownership;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0003_ledger"), ("portal", "0002_guards")]
    operations = [
        migrations.RunSQL(APPEND_ONLY, NO_APPEND_ONLY),
        migrations.RunSQL(TIME, NO_TIME),
        migrations.RunSQL(DUE, NO_DUE),
        migrations.RunSQL(TERMS, NO_TERMS),
        migrations.RunSQL(OWNERS, NO_OWNERS),
    ]
