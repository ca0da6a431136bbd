"""Texts of named views: reports."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0018_named_views")]

    operations = [
        migrations.AddField(
            model_name="resultsview",
            name="text",
            field=models.TextField(blank=True, db_default="", default="", help_text="Markdown."),
        ),
    ]
