"""What is due when segments change, in time that grows with their number alone.

The former function joined the rows before with those after; PL/pgSQL keeps the plan of its first call, which had a handful of
rows, and so compared each with each from then on. Here nothing is joined: there is no plan to choose.
"""

from django.db import migrations

# What has never been posted is due when it has ended, or when the month of its beginning is over; what was posted and has
# changed is due at once. The row of a segment that is not in the queue was taken away by posting; posting that has it in its
# hands is waited for.
CHANGED = """
CREATE OR REPLACE FUNCTION billing_segments_changed() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
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
"""
FORMER = """
CREATE OR REPLACE FUNCTION billing_segments_changed() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
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
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0013_measured")]
    operations = [migrations.RunSQL(CHANGED, FORMER)]
