"""Webhooks, and their deliveries, which come to be with the event itself."""

import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import encrypted_fields.fields
from django.conf import settings
from django.db import migrations, models

# In the transaction of the event, so that neither is there without the other: whoever reads events afterwards, by their ids, misses
# those of transactions that began earlier and committed later. Two statements' worth of webhooks, each by its own index.
DELIVERIES = """
CREATE FUNCTION portal_make_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO portal_delivery (uid, webhook_id, event_id, kind)
    SELECT gen_random_uuid(), webhook.id, happened.id, happened.verb
    FROM happened JOIN portal_appcode AS appcode ON appcode.code = happened.appcode
        JOIN portal_webhook AS webhook ON webhook.appcode_id = appcode.id
    WHERE webhook.enabled AND webhook.deleted_at IS NULL
        AND webhook.kinds::text[] && ARRAY['*', happened.verb, split_part(happened.verb, '.', 1) || '.*']::text[]
    UNION ALL
    SELECT gen_random_uuid(), webhook.id, happened.id, happened.verb
    FROM happened JOIN portal_webhook AS webhook ON webhook.appcode_id IS NULL
    WHERE webhook.enabled AND webhook.deleted_at IS NULL
        AND webhook.kinds::text[] && ARRAY['*', happened.verb, split_part(happened.verb, '.', 1) || '.*']::text[];
    RETURN NULL;
END $$;
CREATE TRIGGER make_deliveries AFTER INSERT ON portal_event REFERENCING NEW TABLE AS happened
    FOR EACH STATEMENT EXECUTE FUNCTION portal_make_deliveries();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("portal", "0002_guards"),
    ]

    operations = [
        migrations.CreateModel(
            name="Webhook",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=63)),
                ("url", encrypted_fields.fields.EncryptedTextField()),
                (
                    "host",
                    models.CharField(
                        help_text="Of the URL, with its port: receivers share what they can take.", max_length=260
                    ),
                ),
                (
                    "kinds",
                    django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=60), size=None),
                ),
                ("enabled", models.BooleanField(default=True)),
                (
                    "disabled_reason",
                    models.CharField(blank=True, help_text="Why the portal itself disabled it.", max_length=300),
                ),
                ("secret", encrypted_fields.fields.EncryptedTextField()),
                ("old_secret", encrypted_fields.fields.EncryptedTextField(null=True)),
                ("old_secret_until", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "last_ok_at",
                    models.DateTimeField(help_text="Last delivery that was accepted, to the minute.", null=True),
                ),
                ("deleted_at", models.DateTimeField(null=True)),
                (
                    "appcode",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="webhooks",
                        to="portal.appcode",
                    ),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["appcode__code", "name"],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, unique=True)),
                ("kind", models.CharField(help_text="The event's verb.", max_length=40)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "state",
                    models.CharField(
                        choices=[("waiting", "Waiting"), ("delivered", "Delivered"), ("failed", "Failed")],
                        db_default="waiting",
                        default="waiting",
                        max_length=10,
                    ),
                ),
                ("next_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("attempts", models.PositiveIntegerField(db_default=0, default=0)),
                (
                    "first_at",
                    models.DateTimeField(help_text="First attempt; failing ends some days after it.", null=True),
                ),
                ("claim", models.UUIDField(null=True)),
                ("sent_at", models.DateTimeField(null=True)),
                ("headers", models.JSONField(db_default={}, default=dict)),
                ("status", models.PositiveIntegerField(null=True)),
                ("error", models.CharField(blank=True, db_default="", max_length=300)),
                ("answer", models.TextField(blank=True, db_default="")),
                ("duration_ms", models.PositiveIntegerField(null=True)),
                ("delivered_at", models.DateTimeField(null=True)),
                (
                    "event",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.DO_NOTHING, related_name="+", to="portal.event"
                    ),
                ),
                (
                    "webhook",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="deliveries", to="portal.webhook"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.AddConstraint(
            model_name="webhook",
            constraint=models.UniqueConstraint(
                condition=models.Q(("deleted_at", None)),
                fields=("appcode", "name"),
                name="webhook_name_once",
                nulls_distinct=False,
            ),
        ),
        migrations.AddConstraint(
            model_name="webhook",
            constraint=models.CheckConstraint(condition=models.Q(("kinds__len__gte", 1)), name="webhook_kinds"),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("state", "waiting")), fields=["webhook", "next_at"], name="delivery_waiting"
            ),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(fields=["webhook", "-id"], name="delivery_latest"),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(fields=["created_at"], name="delivery_age"),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.UniqueConstraint(fields=("webhook", "event"), name="delivery_once"),
        ),
        migrations.RunSQL(
            DELIVERIES,
            "DROP TRIGGER make_deliveries ON portal_event; DROP FUNCTION portal_make_deliveries();",
        ),
    ]
