-- Closed invoices are complete, add up and never change.

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_invoice
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_invoiceline
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_invoicecredit
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_creditnote
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();

-- A closing without a mark may be rescheduled or deleted; one with a mark can only be finished.
CREATE FUNCTION billing_closing_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD.closed_at IS NULL AND (OLD.id, OLD.month) = (NEW.id, NEW.month)
           AND (OLD.mark IS NULL OR (OLD.mark, OLD.marked_at) = (NEW.mark, NEW.marked_at)) THEN
            RETURN NEW;
        END IF;
    ELSIF OLD.mark IS NULL THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the closing of % has begun', OLD.month USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER closing_kept BEFORE UPDATE OR DELETE ON billing_closing
    FOR EACH ROW EXECUTE FUNCTION billing_closing_kept();

-- TRUNCATE bypasses row triggers.
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_closing FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_invoice FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_invoiceline FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_invoicecredit FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_creditnote FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();

-- An invoice is committed complete with its lines and credits; anything added later would break its sums.
CREATE FUNCTION billing_invoice_sum(invoice bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT (i.line_count, i.subtotal, i.credited) = (
        (SELECT count(*) FROM billing_invoiceline WHERE invoice_id = i.id),
        (SELECT coalesce(sum(amount), 0) FROM billing_invoiceline WHERE invoice_id = i.id),
        (SELECT coalesce(sum(amount), 0) FROM billing_invoicecredit WHERE invoice_id = i.id))
    FROM billing_invoice i WHERE i.id = invoice $$;
CREATE FUNCTION billing_invoice_complete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT billing_invoice_sum(NEW.id) THEN
        RAISE EXCEPTION 'invoice % is not complete', NEW.number USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER complete AFTER INSERT ON billing_invoice
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_invoice_complete();
CREATE FUNCTION billing_invoice_lines_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM (SELECT DISTINCT invoice_id FROM made) m JOIN billing_invoice i ON i.id = m.invoice_id
        WHERE i.line_count <> (SELECT count(*) FROM billing_invoiceline WHERE invoice_id = i.id)
    ) THEN
        RAISE EXCEPTION 'a closed invoice gets no more lines' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER lines_made AFTER INSERT ON billing_invoiceline
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION billing_invoice_lines_made();
CREATE FUNCTION billing_invoice_credits_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM (SELECT DISTINCT invoice_id FROM made) m JOIN billing_invoice i ON i.id = m.invoice_id
        WHERE i.credited <> (SELECT sum(amount) FROM billing_invoicecredit WHERE invoice_id = i.id)
    ) THEN
        RAISE EXCEPTION 'a closed invoice uses no more credits' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER credits_made AFTER INSERT ON billing_invoicecredit
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION billing_invoice_credits_made();

-- Locks the credit's row first, so that two transactions cannot spend, or give back, the same money. An invoice that takes back
-- more than was used gives credits back, up to what earlier ones used of them. 460800000 is money.UNIT.
CREATE FUNCTION billing_credit_spent() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    given numeric;
    spent numeric;
BEGIN
    SELECT amount INTO given FROM billing_credit WHERE id = NEW.credit_id FOR UPDATE;
    SELECT sum(-charge) INTO spent FROM billing_ledgerentry WHERE credit_id = NEW.credit_id;
    IF spent > given * 460800000 THEN
        RAISE EXCEPTION 'credit % is used up', NEW.credit_id USING ERRCODE = 'check_violation';
    END IF;
    IF spent < 0 THEN
        RAISE EXCEPTION 'less than that was used of credit %', NEW.credit_id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER credit_spent AFTER INSERT ON billing_ledgerentry
    FOR EACH ROW WHEN (NEW.kind = 'credit') EXECUTE FUNCTION billing_credit_spent();

-- The limit for the sum of an invoice's credit notes: its total in money, and for each month at most what it charged and no later
-- invoice took back. Corrections of a month take back the oldest charges first.
CREATE FUNCTION billing_credit_note_limit(invoice bigint) RETURNS numeric LANGUAGE sql STABLE AS $$
    WITH mine AS (
        SELECT asker.id, asker.month AS asked, line.month, sum(line.amount) AS amount
        FROM billing_invoice i JOIN billing_invoice asker ON asker.appcode_id = i.appcode_id
            JOIN billing_invoiceline line ON line.invoice_id = asker.id
        WHERE i.id = invoice GROUP BY asker.id, line.month
    ), months AS (
        SELECT id, amount,
            coalesce(-sum(least(amount, 0)) OVER (PARTITION BY month), 0) AS taken,
            coalesce(sum(greatest(amount, 0)) OVER (
                PARTITION BY month ORDER BY asked ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ), 0) AS before
        FROM mine
    )
    SELECT greatest(0, least(i.total, (
        SELECT coalesce(sum(greatest(0, amount - greatest(0, taken - before))), 0)
        FROM months WHERE id = invoice AND amount > 0
    ))) FROM billing_invoice i WHERE i.id = invoice $$;
CREATE FUNCTION billing_credit_note_fits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- One note of an appcode after the other; in this order, so that no two wait for each other.
    PERFORM FROM billing_invoice WHERE appcode_id = (SELECT appcode_id FROM billing_invoice WHERE id = NEW.invoice_id)
        ORDER BY id FOR UPDATE;
    IF (SELECT sum(amount) FROM billing_creditnote WHERE invoice_id = NEW.invoice_id)
        > billing_credit_note_limit(NEW.invoice_id) THEN
        RAISE EXCEPTION 'credit notes exceed the invoice' USING ERRCODE = 'check_violation', CONSTRAINT = 'credit_note_fits';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER fits AFTER INSERT ON billing_creditnote
    FOR EACH ROW EXECUTE FUNCTION billing_credit_note_fits();
