"""Getting in and staying in: sign-in, sessions, CSRF, what every answer carries, and API tokens."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core.cache import cache
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from portal import actions
from portal.errors import Conflict, Invalid
from portal.models import ApiToken, Event

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nobody_has_tried_before() -> None:
    """Sign-ins of all tests come from one address, of which a minute takes only so many."""
    cache.clear()


def test_signing_in_leads_back_to_where_one_was(client: Client, people: Any) -> None:
    wanted = client.get("/appcodes/ops-demo?x=1")["Location"]
    assert wanted == "/accounts/login/?next=/appcodes/ops-demo%3Fx%3D1"
    page = client.get(wanted)
    assert page.status_code == 200
    answer = client.post(
        "/accounts/login/", {"login": "alice", "password": "alice-password", "next": "/appcodes/ops-demo?x=1"}
    )
    assert answer["Location"] == "/appcodes/ops-demo?x=1"
    assert client.get("/appcodes/ops-demo").status_code == 200


@pytest.mark.parametrize("login", ["alice", "alice@example.com"])
def test_user_name_or_address_will_do(client: Client, people: Any, login: str) -> None:
    assert client.post("/accounts/login/", {"login": login, "password": "alice-password"}).status_code == 302


def test_a_wrong_password_says_so_and_does_not_tell_who_exists(client: Client, people: Any) -> None:
    known = client.post("/accounts/login/", {"login": "alice", "password": "wrong"})
    unknown = client.post("/accounts/login/", {"login": "nobody", "password": "wrong"})
    errors = [str(answer.context["form"].errors) for answer in (known, unknown)]
    assert errors[0] == errors[1] != ""


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "javascript:alert(1)"])
def test_nobody_is_led_away_after_signing_in(client: Client, people: Any, target: str) -> None:
    answer = client.post("/accounts/login/", {"login": "alice", "password": "alice-password", "next": target})
    assert "evil" not in answer["Location"]
    assert not answer["Location"].startswith("javascript")


def test_sign_up_is_closed(client: Client) -> None:
    assert "Sign-up is closed" in client.get("/accounts/signup/").content.decode()


def test_signing_out_ends_the_session(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    client.post("/accounts/logout/")
    assert client.get("/appcodes").status_code == 302


def test_a_fragment_without_session_is_401_and_never_the_sign_in_page(client: Client) -> None:
    answer = client.get("/frame/gpus", headers={"HX-Request": "true"})
    assert answer.status_code == 401


def test_a_form_sent_without_session_leads_back_to_its_page(client: Client) -> None:
    referer = {"Referer": "http://testserver/appcodes/ops-demo?tab=1"}
    answer = client.post("/appcodes/ops-demo/members", {"username": "bob"}, headers=referer)
    assert answer["Location"] == "/accounts/login/?next=/appcodes/ops-demo%3Ftab%3D1"
    answer = client.post("/appcodes/ops-demo/members", headers={"Referer": "https://evil.example/x"})
    assert answer["Location"] == "/accounts/login/?next=/"


def test_a_form_without_its_token_is_refused_with_advice(people: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(people.alice)
    answer = client.post("/appcodes/ops-demo/members", {"username": "mallory", "role": "owner"})
    assert answer.status_code == 403
    assert "too old to be sent" in answer.content.decode()
    assert not people.ops.memberships.filter(user=people.mallory).exists()
    token = client.get("/appcodes/ops-demo").context["csrf_token"]
    answer = client.post(
        "/appcodes/ops-demo/members", {"username": "mallory", "role": "viewer", "csrfmiddlewaretoken": token}
    )
    assert answer.status_code == 302


def test_writing_by_get_is_refused(client: Client, people: Any) -> None:
    client.force_login(people.root)
    for path in (
        "/appcodes/ops-demo/members",
        "/appcodes/ops-demo/disable",
        "/admin/people/bob/deactivate",
        "/frame/appcode",
    ):
        assert client.get(path).status_code == 405


def test_every_answer_carries_the_headers_that_protect_it(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    for path in ("/appcodes", "/accounts/login/", "/nothing-here"):
        answer = client.get(path)
        policy = answer["Content-Security-Policy"]
        assert "script-src 'self'" in policy
        assert "unsafe-eval" not in policy
        assert "script-src 'self' 'unsafe-inline'" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer["X-Frame-Options"] == "DENY"
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["Referrer-Policy"] == "same-origin"
        assert len(answer["X-Request-ID"]) == 8


def test_cookies_stay_here(client: Client, people: Any) -> None:
    answer = client.post("/accounts/login/", {"login": "alice", "password": "alice-password"})
    cookie = answer.cookies["sessionid"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"
    assert cookie["domain"] == ""


# API tokens


def test_a_token_is_shown_once_and_kept_as_a_hash(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    answer = client.post("/profile", {"name": "laptop", "days": "30"})
    text = answer.context["made"]["text"]
    assert text in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    assert text not in client.get("/profile").content.decode()
    token = ApiToken.objects.get(user=people.alice)
    assert text not in (token.digest, token.token_key)
    left = token.expiry - timezone.now()
    assert dt.timedelta(days=29) < left <= dt.timedelta(days=30)
    assert Client().get("/api/v1/me", headers={"Authorization": f"Bearer {text}"}).json()["username"] == "alice"
    client.post(f"/profile/tokens/{token.token_key}/revoke")
    assert Client().get("/api/v1/me", headers={"Authorization": f"Bearer {text}"}).status_code == 401
    assert text not in "".join(f"{event.message}{event.object}{event.data}" for event in Event.objects.all())


def test_an_expired_token_is_listed_and_refused(client: Client, people: Any) -> None:
    token, text = actions.make_token("old", 1, acting_user=people.alice)
    ApiToken.objects.filter(pk=token.pk).update(expiry=timezone.now() - dt.timedelta(seconds=1))
    answer = Client().get("/api/v1/me", headers={"Authorization": f"Bearer {text}"})
    assert answer.status_code == 401
    assert "expired" in answer.content.decode()
    client.force_login(people.alice)
    assert "Expired" in client.get("/profile").content.decode()


@pytest.mark.parametrize(
    ("name", "days", "field"),
    [
        ("", "30", "name"),
        ("x" * 61, "30", "name"),
        ("a", "0", "days"),
        ("a", "366", "days"),
        ("a", "", "days"),
        ("a", "soon", "days"),
        ("a\0", "3", "name"),
    ],
)
def test_a_token_that_cannot_be(client: Client, people: Any, name: str, days: str, field: str) -> None:
    client.force_login(people.alice)
    answer = client.post("/profile", {"name": name, "days": days})
    assert list(answer.context["form"].errors) == [field]
    assert ApiToken.objects.count() == 0


def test_the_limits_of_tokens_in_action_and_database(people: Any) -> None:
    for days in (0, 366, -1):
        with pytest.raises(Invalid):
            actions.make_token("x", days, acting_user=people.alice)
    actions.make_token("x", 365, acting_user=people.alice)
    for expiry in (None, dt.timedelta(days=400)):
        with pytest.raises(IntegrityError), transaction.atomic():
            ApiToken.objects.create(user=people.alice, name="for ever", expiry=expiry)


def test_there_is_an_end_to_the_number_of_tokens(people: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MAX_TOKENS", 2)
    for name in ("one", "two"):
        actions.make_token(name, 1, acting_user=people.alice)
    with pytest.raises(Conflict, match="revoke one"):
        actions.make_token("three", 1, acting_user=people.alice)


def test_an_identity_provider_has_its_button_on_the_sign_in_page(client: Client, settings: object) -> None:
    app = {
        "provider_id": "oidc",
        "name": "Company login",
        "client_id": "x",
        "secret": "y",
        "settings": {"server_url": "https://id.example"},
    }
    settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"APPS": [app]}}  # type: ignore[attr-defined]
    page = client.get("/accounts/login/?next=/appcodes").content.decode()
    assert "Company login" in page
    assert 'action="/accounts/oidc/oidc/login/?process=login' in page.replace("&amp;", "&")


def test_trying_passwords_is_slowed_down_with_a_sentence(client: Client, people: Any) -> None:
    cache.clear()
    answers = [client.post("/accounts/login/", {"login": "alice", "password": f"guess {n}"}) for n in range(12)]
    assert "Too many" in answers[-1].content.decode()
    cache.clear()
