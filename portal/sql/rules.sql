-- Rules that span rows: one to four owners per active appcode, an Event log that nobody rewrites, and deliveries that come to be with
-- their event.

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

-- For every table, of other apps too, whose rows are never changed or removed.
CREATE FUNCTION portal_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON portal_event
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
-- TRUNCATE passes triggers of rows.
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON portal_event FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();

-- In the transaction of the event, so that neither is there without the other: whoever reads events afterwards, by their ids,
-- misses those of transactions that began earlier and committed later. Two statements' worth of webhooks, each by its own part of one
-- index. Those of a person hear of their own runs only: clusters/runs/telling.py knows these, and makes their deliveries. What
-- something made for itself, a trial or a stage, is told to nobody: a sweep of ten thousand trials would be forty thousand deliveries.
CREATE FUNCTION portal_make_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO portal_delivery (uid, webhook_id, event_id, kind)
    SELECT gen_random_uuid(), webhook.id, happened.id, happened.verb
    FROM happened JOIN portal_appcode AS appcode ON appcode.code = happened.appcode
        JOIN portal_webhook AS webhook ON webhook.appcode_id = appcode.id
    WHERE webhook.enabled AND webhook.deleted_at IS NULL AND NOT happened.data ? 'part_of'
        AND webhook.kinds::text[] && ARRAY['*', happened.verb, split_part(happened.verb, '.', 1) || '.*']::text[]
    UNION ALL
    SELECT gen_random_uuid(), webhook.id, happened.id, happened.verb
    FROM happened JOIN portal_webhook AS webhook ON webhook.appcode_id IS NULL AND webhook.person_id IS NULL
    WHERE webhook.enabled AND webhook.deleted_at IS NULL AND NOT happened.data ? 'part_of'
        AND webhook.kinds::text[] && ARRAY['*', happened.verb, split_part(happened.verb, '.', 1) || '.*']::text[];
    RETURN NULL;
END $$;
CREATE TRIGGER make_deliveries AFTER INSERT ON portal_event REFERENCING NEW TABLE AS happened
    FOR EACH STATEMENT EXECUTE FUNCTION portal_make_deliveries();
