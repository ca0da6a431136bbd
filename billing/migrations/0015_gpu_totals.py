"""The GPU-seconds of all months by appcode, business line and GPU model, for a scrape that costs the same after years."""

import django.db.models.deletion
from django.db import migrations, models

# As with the sums without clusters: whatever writes those writes these too, and adds the difference. Usage without GPUs changes
# nothing.
ADD = """
    INSERT INTO billing_gputotal AS held (appcode_id, business_line, gpu_model, gpu_seconds)
    SELECT appcode_id, business_line, gpu_model, sum(gpu_seconds * sign)::bigint
    FROM ({rows}) changed GROUP BY 1, 2, 3 HAVING sum(gpu_seconds * sign) <> 0 ORDER BY 1, 2, 3
    ON CONFLICT (appcode_id, business_line, gpu_model) DO UPDATE SET gpu_seconds = held.gpu_seconds + excluded.gpu_seconds;
"""
FUNCTION = """
CREATE FUNCTION billing_gpu_total_{name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
{add}
    RETURN NULL;
END $$;
"""
ROWS = {
    "made": "SELECT *, 1 AS sign FROM made",
    "changed": "SELECT *, 1 AS sign FROM after UNION ALL SELECT *, -1 FROM before",
    "gone": "SELECT *, -1 AS sign FROM gone",
}
# The triggers first: they wait for whoever posts, and from then on nobody posts until this is done.
TOTALS = (
    "".join(FUNCTION.format(name=name, add=ADD.format(rows=rows)) for name, rows in ROWS.items())  # noqa: S608  parts of this file only
    + """
CREATE TRIGGER gpu_total_made AFTER INSERT ON billing_monthlyspending
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION billing_gpu_total_made();
CREATE TRIGGER gpu_total_changed AFTER UPDATE ON billing_monthlyspending
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION billing_gpu_total_changed();
CREATE TRIGGER gpu_total_gone AFTER DELETE ON billing_monthlyspending
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION billing_gpu_total_gone();
"""
    + ADD.format(rows="SELECT *, 1 AS sign FROM billing_monthlyspending")
)
NO_TOTALS = """
DROP TRIGGER gpu_total_gone ON billing_monthlyspending;
DROP TRIGGER gpu_total_changed ON billing_monthlyspending;
DROP TRIGGER gpu_total_made ON billing_monthlyspending;
DROP FUNCTION billing_gpu_total_gone();
DROP FUNCTION billing_gpu_total_changed();
DROP FUNCTION billing_gpu_total_made();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0014_changed_segments"), ("portal", "0002_guards")]
    operations = [
        migrations.CreateModel(
            name="GpuTotal",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "appcode",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="portal.appcode",
                    ),
                ),
                ("business_line", models.CharField(max_length=200)),
                ("gpu_model", models.CharField(max_length=60)),
                ("gpu_seconds", models.BigIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("appcode", "business_line", "gpu_model"), name="gpu_total_once")
                ],
            },
        ),
        migrations.RunSQL(TOTALS, NO_TOTALS),
    ]
