"""Functions and triggers that enforce rules in the database. A file of FILES may use what the files before it define."""

from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parents[1] / "sql"
FILES = ("metering", "ledger", "prices", "sums", "invoices")


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_tables"), ("portal", "0002_rules")]
    operations = [migrations.RunSQL((SQL / f"{name}.sql").read_text()) for name in FILES]
