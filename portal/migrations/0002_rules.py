"""Functions and triggers that enforce rules in the database: sql/rules.sql."""

from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parents[1] / "sql"
FILES = ("rules",)


class Migration(migrations.Migration):
    dependencies = [("portal", "0001_tables")]
    operations = [migrations.RunSQL((SQL / f"{name}.sql").read_text()) for name in FILES]
