"""The secret key changes: what was stored opens with the new one, and people stay signed in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.apps import apps
from django.contrib.auth.tokens import default_token_generator
from django.core import signing
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from encrypted_fields.fields import EncryptedFieldMixin

from portal.installation.rotation import rotate

pytestmark = pytest.mark.django_db
FIRST, SECOND = "the first key " * 4, "the second key " * 4

Keys = Callable[..., None]


def encrypted() -> list[tuple[type, Any]]:
    return [
        (model, field)
        for model in apps.get_models()
        for field in model._meta.concrete_fields
        if isinstance(field, EncryptedFieldMixin)
    ]


def forget() -> None:
    """Fields keep the keys that they derived, as a process does until it ends."""
    for _, field in encrypted():
        for name in ("keys", "f"):
            field.__dict__.pop(name, None)


@pytest.fixture
def keys(settings: Any) -> Iterator[Keys]:
    """keys(secret, *older): as in a process that was started with these, without PORTAL_SALT_KEYS."""

    def use(secret: str, *older: str, salts: list[str] | None = None) -> None:
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = secret, [*older]
        settings.SALT_KEY = salts or [secret, *older]
        forget()

    yield use
    forget()


@pytest.fixture
def secrets(people: Any, keys: Keys) -> dict[str, str]:
    """One of everything that is stored encrypted, by the first key: its label → the value."""
    from clusters.models import AccessToken, Cloud, Cluster, GitToken, PullSecret
    from datastores.models import Datastore
    from portal.models import Webhook

    keys(FIRST)
    cluster = Cluster.objects.create(appcode=people.ops, name="a", spec={"roles": {}})
    rows = [
        Cloud(name="training", kind="kubernetes", title="T", credentials="a kubeconfig", prometheus_token="of Prometheus"),
        GitToken(appcode=people.ops, host="git.example.com", name="x", token="of Git"),
        PullSecret(line=people.ops.org_node, host="registry.example.com", username="x", password="of a registry"),
        AccessToken(cluster=cluster, token="of an application"),
        Datastore(appcode=people.ops, name="data", kind="s3", spec={}, secret="of a bucket"),
        Webhook(
            appcode=people.ops, name="hook", url="https://hooks.example.com/ü", host="hooks.example.com", kinds=["*"],
            secret="signs", old_secret="signed",
        ),
    ]  # fmt: skip
    for row in rows:
        row.save()
    found = {f"{model.__name__}.{field.name}": value_of(model, field.name) for model, field in encrypted()}
    assert None not in found.values(), "a new encrypted field wants a row here"
    return {label: str(value) for label, value in found.items()}


def value_of(model: Any, name: str) -> str | None:
    """What the portal reads, of the only row that has something."""
    return model._base_manager.exclude(**{name: None}).values_list(name, flat=True).first()  # type: ignore[no-any-return]


def read() -> dict[str, str]:
    return {f"{model.__name__}.{field.name}": str(value_of(model, field.name)) for model, field in encrypted()}


def rotated() -> str:
    out = StringIO()
    call_command("rotate_keys", stdout=out)
    return out.getvalue()


def test_what_was_stored_opens_with_the_new_key_and_then_with_it_alone(secrets: dict[str, str], keys: Keys) -> None:
    assert "kubeconfig" in secrets["Cloud.credentials"]
    keys(SECOND)
    assert not set(read().values()) & set(secrets.values()), "another key opens nothing"
    keys(SECOND, FIRST)
    assert read() == secrets
    with pytest.raises(CommandError, match="still need an older key"):
        call_command("rotate_keys", "--check", stdout=StringIO())
    said = rotated()
    assert said.count(" 0 with the present key, 1 with an older one, 1 encrypted anew") == len(secrets)
    call_command("rotate_keys", "--check", stdout=StringIO())
    keys(SECOND)
    assert read() == secrets
    assert rotated().count(" 1 with the present key, 0 with an older one, 0 encrypted anew") == len(secrets)


def test_the_new_key_may_be_listed_before_it_is_used(secrets: dict[str, str], keys: Keys) -> None:
    """Of a rolling restart: servers with the one order and with the other read what either writes."""
    from datastores.models import Datastore

    keys(FIRST, SECOND)
    assert read() == secrets
    keys(SECOND, FIRST)
    Datastore.objects.update(secret="by the new")
    keys(FIRST, SECOND)
    assert value_of(Datastore, "secret") == "by the new"


def test_the_salts_rotate_too(secrets: dict[str, str], keys: Keys) -> None:
    keys(FIRST, salts=["a new salt", FIRST])
    assert read() == secrets
    rotated()
    keys(FIRST, salts=["a new salt"])
    assert read() == secrets


def test_rows_are_gone_through_in_batches(people: Any, keys: Keys, monkeypatch: Any) -> None:
    from datastores.models import Datastore

    monkeypatch.setattr("portal.installation.rotation.BATCH", 2)
    keys(FIRST)
    for number in range(5):
        Datastore.objects.create(
            appcode=people.ops, name=f"data{number}", kind="s3", spec={}, secret=f"secret {number}"
        )
    keys(SECOND, FIRST)
    (found,) = [each for each in rotate() if each.label == "datastores.Datastore.secret"]
    assert (found.present, found.older, found.rotated) == (0, 5, 5)
    keys(SECOND)
    assert [*Datastore.objects.order_by("pk").values_list("secret", flat=True)] == [f"secret {n}" for n in range(5)]


def test_what_no_key_opens_is_named_and_left_as_it_is(secrets: dict[str, str], keys: Keys) -> None:
    from datastores.models import Datastore

    lost = Fernet(Fernet.generate_key()).encrypt(b"x").decode()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE datastores_datastore SET secret = %s", [lost])
    keys(SECOND, FIRST)
    row = Datastore.objects.get()
    with pytest.raises(CommandError, match=rf"No listed key opens datastores.Datastore.secret of row {row.pk}\."):
        rotated()
    assert value_of(Datastore, "secret") == lost
    keys(SECOND)
    assert read() == secrets | {"Datastore.secret": lost}


def test_a_row_that_changes_meanwhile_keeps_its_change(secrets: dict[str, str], keys: Keys, monkeypatch: Any) -> None:
    from datastores.models import Datastore

    keys(SECOND, FIRST)

    def changed_by_somebody(key: Fernet, stored: str) -> bool:
        Datastore.objects.update(secret="changed")
        return False

    monkeypatch.setattr("portal.installation.rotation._opens", changed_by_somebody)
    (found,) = [each for each in rotate() if each.label == "datastores.Datastore.secret"]
    assert (found.older, found.rotated) == (1, 0)
    assert value_of(Datastore, "secret") == "changed"


def test_people_stay_signed_in_with_the_same_session(people: Any, keys: Keys) -> None:
    """Two requests at once: the second still has the cookie of before."""
    keys(FIRST)
    first, second = Client(), Client()
    first.force_login(people.alice)
    second.cookies["sessionid"] = first.cookies["sessionid"].value
    token = default_token_generator.make_token(people.alice)
    signed = signing.dumps({"user": 1}, salt="x")
    keys(SECOND, FIRST)
    # Middleware is chosen when a client makes its first request.
    for client in (first, second, first):
        client.handler._middleware_chain = None
        assert client.get("/appcodes").status_code == 200
    assert first.cookies["sessionid"].value == second.cookies["sessionid"].value
    assert default_token_generator.check_token(people.alice, token)
    assert signing.loads(signed, salt="x") == {"user": 1}
    keys(SECOND)
    first.handler._middleware_chain = None
    assert first.get("/appcodes").status_code == 200, "the session is the new key's by now"
    keys("a third key " * 4)
    assert first.get("/appcodes").status_code == 302


def test_an_application_stays_open(people: Any, keys: Keys) -> None:
    from clusters.gateway.visits import _hash, person_by
    from clusters.models import Cluster, Origin, Visit

    keys(FIRST)
    client = Client()
    client.force_login(people.alice)
    Cluster.objects.create(appcode=people.ops, name="nb", spec={"roles": {}})
    origin = Origin.objects.create(appcode=people.ops, cluster_name="nb", endpoint="lab", label="nb-ops-demo")
    Visit.objects.create(
        origin=origin, user=people.alice, session_key=client.session.session_key, cookie_hash=_hash("cookie", origin.label),
        session_hash=people.alice.get_session_auth_hash(), expires_at=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1),
    )  # fmt: skip
    assert person_by("cookie", origin.label).person == "alice"
    keys(SECOND, FIRST)
    client.handler._middleware_chain = None
    assert client.get("/appcodes").status_code == 200
    assert person_by("cookie", origin.label).person == "alice"
    keys(SECOND)
    assert person_by("cookie", origin.label).person == "", (
        "applications ask who it is once more when the older key is dropped"
    )
