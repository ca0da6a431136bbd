"""Views of results that have a name."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0017_run_colour")]
    # No release has the table of views.
    unused_since = "1.0.0"

    operations = [
        migrations.AddField(
            model_name="resultsview",
            name="name",
            field=models.CharField(blank=True, db_default="", default="", max_length=60),
        ),
        migrations.RemoveConstraint(model_name="resultsview", name="results_view_of_appcode"),
        migrations.AddConstraint(
            model_name="resultsview",
            constraint=models.UniqueConstraint(
                condition=models.Q(("person", None)), fields=("appcode", "name"), name="results_view_named_once"
            ),
        ),
    ]
