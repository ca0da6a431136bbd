"""TRUNCATE passes triggers of rows; the Event log refuses it, too."""

from django.db import migrations

KEPT = """
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON portal_event FOR EACH STATEMENT EXECUTE FUNCTION portal_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("portal", "0005_old_servers_write")]
    operations = [migrations.RunSQL(KEPT, "DROP TRIGGER no_truncate ON portal_event;")]
