"""What was seen is never rewritten; a correction is another row."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial"), ("portal", "0002_guards")]
    operations = [
        migrations.RunSQL(
            "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_observation"
            " FOR EACH ROW EXECUTE FUNCTION portal_append_only();",
            "DROP TRIGGER append_only ON billing_observation;",
        )
    ]
