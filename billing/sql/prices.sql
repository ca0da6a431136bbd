-- Terms that were charged never change, and a change that reaches into the past queues segments for posting again. Triggers on
-- appcodes and business lines record who owned an appcode when.

-- A future price may be withdrawn; any other has been charged.
CREATE FUNCTION billing_price_charged() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the price of % from % has been charged', OLD.sku, OLD.valid_from
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER price_charged BEFORE UPDATE OR DELETE ON billing_price
    FOR EACH ROW WHEN (OLD.valid_from <= now()) EXECUTE FUNCTION billing_price_charged();

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

ALTER TABLE billing_price ADD CONSTRAINT price_whole_second
    CHECK (extract(microsecond FROM valid_from)::integer % 1000000 = 0);
ALTER TABLE billing_discount ADD CONSTRAINT discount_whole_seconds
    CHECK (extract(microsecond FROM valid_from)::integer % 1000000 = 0
        AND coalesce(extract(microsecond FROM valid_until), 0)::integer % 1000000 = 0);
ALTER TABLE billing_ownership ADD CONSTRAINT ownership_whole_second
    CHECK (extract(microsecond FROM valid_from)::integer % 1000000 = 0);

-- Owners. Moves of appcodes and of nodes take the same lock, so that each sees the other.

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
    PERFORM pg_advisory_xact_lock(5); -- OWNERS
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

-- Credits.

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_credit
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();

-- TRUNCATE bypasses row triggers.
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_price FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_discount FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_credit FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_ownership FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
