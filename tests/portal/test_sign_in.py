"""Sign-in and sessions: sign-in, CSRF, headers of every answer, and API tokens."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any

import allauth.urls
import pytest
from django.core.cache import cache
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import Resolver404, URLResolver, resolve
from django.utils import timezone

from portal.actions import tokens as tokens_actions
from portal.errors import Conflict, Invalid
from portal.models import ApiToken, Event

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nobody_has_tried_before() -> None:
    """Resets the sign-in limit per minute and address: all tests sign in from one address."""
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


def test_the_audit_tells_who_signed_in_and_failed_to_from_where_and_not_what_was_typed(
    client: Client, people: Any
) -> None:
    for login, password in (("alice", "alice-password"), ("alice@example.com", "wrong"), ("my-secret-passphrase", "x")):
        client.post("/accounts/login/", {"login": login, "password": password}, REMOTE_ADDR="192.0.2.7")
        client.logout()
    events = Event.objects.filter(verb__startswith="person.sign").order_by("id")
    assert [(each.verb, each.actor_name, each.object, each.message) for each in events] == [
        ("person.signed-in", "alice", "person alice", "signed in from 192.0.2.7"),
        ("person.sign-in-failed", "portal", "person alice", "could not sign in from 192.0.2.7"),
        ("person.sign-in-failed", "portal", "", "somebody unknown tried to sign in from 192.0.2.7"),
    ]
    client.force_login(people.root)
    page = client.get("/admin/audit?kind=person.sign-in-failed")
    assert len(page.context["events"]) == 2
    assert "person.signed-in" in page.context["kinds"]
    assert "alice" in page.context["names"]


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
        assert answer["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "camera=()" in answer["Permissions-Policy"]


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
    token, text = tokens_actions.make_token("old", 1, acting_user=people.alice)
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
            tokens_actions.make_token("x", days, acting_user=people.alice)
    tokens_actions.make_token("x", 365, acting_user=people.alice)
    for expiry in (None, dt.timedelta(days=400)):
        with pytest.raises(IntegrityError), transaction.atomic():
            ApiToken.objects.create(user=people.alice, name="for ever", expiry=expiry)


def test_there_is_an_end_to_the_number_of_tokens(people: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_actions, "MAX_TOKENS", 2)
    for name in ("one", "two"):
        tokens_actions.make_token(name, 1, acting_user=people.alice)
    with pytest.raises(Conflict, match="revoke one"):
        tokens_actions.make_token("three", 1, acting_user=people.alice)


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


def test_an_account_has_one_number_of_attempts_whatever_one_calls_it_or_the_portal(
    client: Client, people: Any, settings: Any
) -> None:
    settings.HOST_PORTS = {*settings.HOST_PORTS, "9000", "9001"}
    ways = [("alice", "localhost:9000"), ("ALICE", "localhost:9001"), ("alice@example.com", "127.0.0.1:9000")]
    for n in range(5):
        login, host = ways[n % 3]
        sign_in = {"login": login, "password": f"guess {n}"}
        answer = client.post("/accounts/login/", sign_in, headers={"Host": host})
        assert "Too many" not in answer.content.decode()
    for login, host in ways:
        right = {"login": login, "password": "alice-password"}
        assert "Too many" in client.post("/accounts/login/", right, headers={"Host": host}).content.decode()
    assert client.post("/accounts/login/", {"login": "bob", "password": "bob-password"}).status_code == 302


def test_an_outsider_cannot_lock_people_out_of_their_own_browsers(people: Any, settings: Any) -> None:
    right, wrong = ({"login": "alice", "password": password} for password in ("alice-password", "guess"))
    known, outsider = Client(), Client()
    assert known.post("/accounts/login/", right).status_code == 302
    known.post("/accounts/logout/")
    # A sign-in of one's own gives no further tries at another's password, and neither does a forged cookie.
    outsider.post("/accounts/login/", {"login": "mallory", "password": "mallory-password"})
    outsider.post("/accounts/logout/")
    assert ["Too many" in outsider.post("/accounts/login/", wrong).content.decode() for _ in range(7)] == [
        False
    ] * 5 + [True] * 2
    outsider.cookies[settings.BROWSER_COOKIE_NAME] = "e30:1:forged"
    assert "Too many" in outsider.post("/accounts/login/", right).content.decode()
    assert ["Too many" in known.post("/accounts/login/", wrong).content.decode() for _ in range(6)] == [False] * 5 + [
        True
    ]
    cookie = known.cookies[settings.BROWSER_COOKIE_NAME]
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")


def test_people_sign_in_from_their_browsers_while_others_guess(people: Any) -> None:
    known, right = Client(), {"login": "alice", "password": "alice-password"}
    known.post("/accounts/login/", right)
    known.post("/accounts/logout/")
    for n in range(6):
        Client().post("/accounts/login/", {"login": "alice@example.com", "password": f"guess {n}"})
    assert known.post("/accounts/login/", right).status_code == 302


def test_who_shares_this_machine_s_address_is_not_locked_out_by_the_others(people: Any, settings: Any) -> None:
    settings.ALLAUTH_TRUSTED_PROXY_COUNT = 1

    def tried(address: str, n: int) -> str:
        headers = {"X-Forwarded-For": address}
        form = {"login": f"somebody {n}", "password": "wrong"}
        return Client().post("/accounts/login/", form, headers=headers).content.decode()

    for address in ("127.0.0.1", "::1"):
        assert not any("Too many" in tried(address, n) for n in range(12))
    said = ["Too many" in tried("192.0.2.7", n) for n in range(12)]
    assert said == [False] * 10 + [True] * 2


@pytest.mark.parametrize("path", ["/accounts/login/", "/api/v1/me", "/static/portal/portal.css"])
def test_what_does_not_come_through_the_gateway_is_refused(client: Client, db: None, settings: Any, path: str) -> None:
    settings.GATEWAY_SECRET = "through-the-gateway"
    for proof in ({}, {"X-Portal-Gateway": ""}, {"X-Portal-Gateway": "through-the-gatewaY"}):
        answer = client.get(path, headers=proof)
        assert (answer.status_code, answer["Content-Type"]) == (403, "text/plain; charset=utf-8")
        assert "http://portal.localhost:8000" in answer.content.decode()
    assert client.get("/readyz").status_code == 200, "probes ask the web server itself"
    answer = client.get("/accounts/login/", headers={"X-Portal-Gateway": "through-the-gateway"})
    assert answer.status_code == 200
    assert "HTTP_X_PORTAL_GATEWAY" not in answer.wsgi_request.META


@pytest.mark.parametrize("host", ["localhost:20001", "evil.example", "portal.localhost:8001", "", "a b", "[::1"])
def test_another_host_or_port_is_refused_in_a_sentence(
    client: Client, db: None, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.get("/accounts/login/", headers={"Host": host})
    assert answer.status_code == 421
    assert "Its address is http://portal.localhost:8000" in answer.content.decode()
    assert not [record for record in caplog.records if record.exc_info], "a traceback for each of them"
    assert client.get("/accounts/login/", headers={"Host": "portal.localhost:8000"}).status_code == 200


def test_a_forgotten_password_is_renewed_by_mail(client: Client, people: Any, mailoutbox: list[Any]) -> None:
    tokens_actions.make_token("laptop", 10, acting_user=people.alice)
    client.post("/accounts/password/reset/", {"email": "alice@example.com"})
    (mail,) = mailoutbox
    (link,) = [line for line in mail.body.splitlines() if "http" in line]
    origin = "http://portal.localhost:8000"
    assert link.startswith(f"{origin}/accounts/password/reset/key/"), "not what the request called the portal"
    assert "testserver" not in mail.subject + mail.body
    page = client.get(link.removeprefix(origin), follow=True)
    assert page.context["form"]["end_tokens"].value() is True
    form = page.redirect_chain[-1][0]
    for password, word in (("alice-password", "current password"), ("her-own-secret-77", "")):
        new = {"password1": password, "password2": password, "end_tokens": "on"}
        answer = client.post(form, new)
        assert word in answer.content.decode()
    assert answer["Location"] == "/accounts/password/reset/key/done/"
    assert not ApiToken.objects.filter(user=people.alice).exists()
    assert client.post("/accounts/login/", {"login": "alice", "password": "her-own-secret-77"}).status_code == 302


def test_an_address_that_nobody_has_gets_no_mail_and_the_same_answer(
    client: Client, people: Any, mailoutbox: list[Any]
) -> None:
    people.bob.set_unusable_password()
    people.bob.save()
    answers = [
        client.post("/accounts/password/reset/", {"email": email}, follow=True)
        for email in ("nobody@example.com", "bob@example.com", "alice@example.com")
    ]
    assert [mail.to for mail in mailoutbox] == [["alice@example.com"]], "bob's password is the identity provider's"
    hide = [answer.content.decode().replace(answer["X-Request-ID"], "") for answer in answers]
    assert hide[0] == hide[1] == hide[2]


def test_where_no_mail_is_sent_the_page_says_whom_to_ask(client: Client, people: Any, settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
    for answer in (
        client.get("/accounts/password/reset/"),
        client.post("/accounts/password/reset/", {"email": "alice@example.com"}),
    ):
        assert answer.status_code == 200
        assert "Ask an administrator" in answer.content.decode()


def test_of_allauth_s_addresses_only_those_of_sign_in_and_passwords_are_there(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    absent = [path for path in addresses(allauth.urls.urlpatterns) if not there(f"/accounts/{path}")]
    assert sorted(absent) == [
        "3rdparty/", "confirm-email/", "confirm-email/x/", "email/", "login/code/confirm/", "password/set/",
        "reauthenticate/", "social/connections/", "social/login/cancelled/", "social/login/error/", "social/signup/",
    ]  # fmt: skip
    for path in absent:
        assert client.get(f"/accounts/{path}").status_code == 404


def addresses(patterns: list[Any], before: str = "") -> Iterator[str]:
    for each in patterns:
        route = before + re.sub(r"[\^$]|\\Z", "", re.sub(r"\(\?P<\w+>(\[[^]]*\]|\.)\+\)", "x", str(each.pattern)))
        if isinstance(each, URLResolver):
            yield from addresses(each.url_patterns, route)
        else:
            yield route


def there(path: str) -> bool:
    try:
        return bool(resolve(path))
    except Resolver404:
        return False


def test_who_has_no_password_here_is_told_where_it_is_changed(client: Client, people: Any) -> None:
    people.alice.set_unusable_password()
    people.alice.save()
    client.force_login(people.alice)
    assert "identity provider" in client.get("/accounts/password/change/").content.decode()
    assert "Change password" not in client.get("/profile").content.decode()


# Caches


@pytest.mark.parametrize("path", ["/appcodes", "/api/v1/me", "/api/v1/appcodes", "/nothing", "/invoices", "/"])
def test_nothing_keeps_what_is_for_one_person(client: Client, people: Any, path: str) -> None:
    client.force_login(people.alice)
    assert client.get(path)["Cache-Control"] == "private, no-store"
