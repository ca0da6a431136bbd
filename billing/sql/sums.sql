-- Sums derived from other sums: posting or a rebuild of those updates these in the same transaction. INSERT, UPDATE and DELETE each
-- have a function, because their transition tables differ; all add the difference.

-- MonthlySpending: the sums by month without the clusters.

CREATE FUNCTION billing_spending_key(code bigint, line text, person text, framework text, model text) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT md5(jsonb_build_array(code, line, person, framework, model)::text)::uuid $$;

CREATE FUNCTION billing_spending_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_monthlyspending AS held
        (month, key, appcode_id, business_line, "user", framework, gpu_model, gpu_seconds, charge)
    SELECT month, billing_spending_key(appcode_id, business_line, "user", framework, gpu_model), appcode_id, business_line,
        "user", framework, gpu_model, gpu_seconds, charge
    FROM (
        SELECT month, appcode_id, business_line, "user", framework, gpu_model, sum(gpu_seconds * sign)::bigint AS gpu_seconds,
            sum((gpu_charge + cpu_charge + memory_charge + storage_charge) * sign) AS charge
        FROM (SELECT *, 1 AS sign FROM made) changed GROUP BY 1, 2, 3, 4, 5, 6
    ) summed
    ON CONFLICT (month, key) DO UPDATE
        SET gpu_seconds = held.gpu_seconds + excluded.gpu_seconds, charge = held.charge + excluded.charge;
    RETURN NULL;
END $$;
CREATE FUNCTION billing_spending_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_monthlyspending AS held
        (month, key, appcode_id, business_line, "user", framework, gpu_model, gpu_seconds, charge)
    SELECT month, billing_spending_key(appcode_id, business_line, "user", framework, gpu_model), appcode_id, business_line,
        "user", framework, gpu_model, gpu_seconds, charge
    FROM (
        SELECT month, appcode_id, business_line, "user", framework, gpu_model, sum(gpu_seconds * sign)::bigint AS gpu_seconds,
            sum((gpu_charge + cpu_charge + memory_charge + storage_charge) * sign) AS charge
        FROM (SELECT *, 1 AS sign FROM after UNION ALL SELECT *, -1 FROM before) changed GROUP BY 1, 2, 3, 4, 5, 6
    ) summed
    ON CONFLICT (month, key) DO UPDATE
        SET gpu_seconds = held.gpu_seconds + excluded.gpu_seconds, charge = held.charge + excluded.charge;
    RETURN NULL;
END $$;
CREATE FUNCTION billing_spending_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_monthlyspending AS held
        (month, key, appcode_id, business_line, "user", framework, gpu_model, gpu_seconds, charge)
    SELECT month, billing_spending_key(appcode_id, business_line, "user", framework, gpu_model), appcode_id, business_line,
        "user", framework, gpu_model, gpu_seconds, charge
    FROM (
        SELECT month, appcode_id, business_line, "user", framework, gpu_model, sum(gpu_seconds * sign)::bigint AS gpu_seconds,
            sum((gpu_charge + cpu_charge + memory_charge + storage_charge) * sign) AS charge
        FROM (SELECT *, -1 AS sign FROM gone) changed GROUP BY 1, 2, 3, 4, 5, 6
    ) summed
    ON CONFLICT (month, key) DO UPDATE
        SET gpu_seconds = held.gpu_seconds + excluded.gpu_seconds, charge = held.charge + excluded.charge;
    RETURN NULL;
END $$;

CREATE TRIGGER spending_made AFTER INSERT ON billing_monthlyusage
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION billing_spending_made();
CREATE TRIGGER spending_changed AFTER UPDATE ON billing_monthlyusage
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION billing_spending_changed();
CREATE TRIGGER spending_gone AFTER DELETE ON billing_monthlyusage
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION billing_spending_gone();

-- GpuTotal: the GPU-seconds of all months, so that a metrics scrape stays cheap over years. Usage without GPUs changes nothing.

CREATE FUNCTION billing_gpu_total_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_gputotal AS held (appcode_id, business_line, gpu_model, gpu_seconds)
    SELECT appcode_id, business_line, gpu_model, sum(gpu_seconds * sign)::bigint
    FROM (SELECT *, 1 AS sign FROM made) changed
    GROUP BY 1, 2, 3 HAVING sum(gpu_seconds * sign) <> 0 ORDER BY 1, 2, 3
    ON CONFLICT (appcode_id, business_line, gpu_model) DO UPDATE SET gpu_seconds = held.gpu_seconds + excluded.gpu_seconds;
    RETURN NULL;
END $$;
CREATE FUNCTION billing_gpu_total_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_gputotal AS held (appcode_id, business_line, gpu_model, gpu_seconds)
    SELECT appcode_id, business_line, gpu_model, sum(gpu_seconds * sign)::bigint
    FROM (SELECT *, 1 AS sign FROM after UNION ALL SELECT *, -1 FROM before) changed
    GROUP BY 1, 2, 3 HAVING sum(gpu_seconds * sign) <> 0 ORDER BY 1, 2, 3
    ON CONFLICT (appcode_id, business_line, gpu_model) DO UPDATE SET gpu_seconds = held.gpu_seconds + excluded.gpu_seconds;
    RETURN NULL;
END $$;
CREATE FUNCTION billing_gpu_total_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_gputotal AS held (appcode_id, business_line, gpu_model, gpu_seconds)
    SELECT appcode_id, business_line, gpu_model, sum(gpu_seconds * sign)::bigint
    FROM (SELECT *, -1 AS sign FROM gone) changed
    GROUP BY 1, 2, 3 HAVING sum(gpu_seconds * sign) <> 0 ORDER BY 1, 2, 3
    ON CONFLICT (appcode_id, business_line, gpu_model) DO UPDATE SET gpu_seconds = held.gpu_seconds + excluded.gpu_seconds;
    RETURN NULL;
END $$;

CREATE TRIGGER gpu_total_made AFTER INSERT ON billing_monthlyspending
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION billing_gpu_total_made();
CREATE TRIGGER gpu_total_changed AFTER UPDATE ON billing_monthlyspending
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION billing_gpu_total_changed();
CREATE TRIGGER gpu_total_gone AFTER DELETE ON billing_monthlyspending
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION billing_gpu_total_gone();

-- Capacity records.
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_capacityrecord
    FOR EACH ROW EXECUTE FUNCTION portal_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON billing_capacityrecord FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
