-- Rules that span rows: an appcode has one to four owners, the event log is append-only, and the webhook deliveries of an event are
-- inserted in its transaction.

CREATE FUNCTION portal_check_owners() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    code_id bigint;
    code_ids bigint[];
    owners integer;
BEGIN
    -- One branch per case: PL/pgSQL resolves OLD and NEW in a whole expression before it evaluates any part of it.
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

-- Shared by all append-only tables, also those of other apps.
CREATE FUNCTION portal_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON portal_event
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
-- TRUNCATE does not fire row triggers.
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON portal_event FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();

-- Inserts the deliveries in the transaction of the event, so that neither exists without the other. A job that read events by id
-- afterwards would miss events of transactions that began earlier and committed later. The two halves of the UNION each use their own
-- part of one index: webhooks of the appcode, and webhooks of the whole portal. Webhooks of a person receive only that person's runs;
-- clusters/runs/notifications.py inserts those deliveries. Events of trials and stages (`part_of`) are not delivered: a sweep of 10,000
-- trials would make 40,000 deliveries.
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
