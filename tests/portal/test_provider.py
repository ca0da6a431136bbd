"""OpenID Connect sign-in with a local identity provider: new users get in, and no one takes over another's e-mail address."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from django.test import Client

from portal.models import User
from portal.up import services
from portal.up.services import Service, free_port

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Returns the URL of an identity provider that knows carol, and alice under the e-mail address of a portal user."""
    port = free_port()
    argv = (sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port))
    logs = tmp_path_factory.mktemp("provider")
    with services.running([Service("provider", argv, services.http_ready(port))], logs, os.environ):
        address = f"http://127.0.0.1:{port}"
        for name, email in (("carol", "carol@example.com"), ("alyss", "alice@example.com")):
            claims = {"preferred_username": name, "email": email, "name": f"{name.title()} Wu"}
            requests.put(f"{address}/users/{name}", json=claims, timeout=30).raise_for_status()
        yield address


@pytest.fixture
def portal(provider: str, settings: Any) -> None:
    app = {
        "provider_id": "oidc",
        "name": "Company login",
        "client_id": "portal",
        "secret": "s",
        "settings": {"server_url": provider},
    }
    settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"APPS": [app]}}


BUTTON = "/accounts/oidc/oidc/login/?process=login&next=/appcodes"


def sign_in(client: Client, name: str, **more: str) -> Any:
    """Signs in as a browser does: by the button to the provider, where the user authenticates, and back."""
    asked = client.post(BUTTON)
    said = requests.post(asked["Location"], data={"sub": name, **more}, allow_redirects=False, timeout=30)
    back = urlsplit(said.headers["Location"])
    assert back.path == "/accounts/oidc/oidc/login/callback/", back
    return client.get(f"{back.path}?{back.query}", follow=True)


def test_who_is_new_comes_in_and_comes_in_again(people: Any, portal: None) -> None:
    for _ in range(2):
        client = Client()
        page = sign_in(client, "carol")
        assert page.redirect_chain[-1][0] == "/appcodes"
        assert client.get("/api/v1/me").json()["username"] == "carol"
    carol = User.objects.get(username="carol")
    assert (carol.email, carol.get_full_name(), carol.has_usable_password()) == ("carol@example.com", "Carol Wu", False)


def test_an_address_that_somebody_has_is_not_taken(people: Any, portal: None) -> None:
    client = Client()
    page = sign_in(client, "alyss")
    assert page.status_code == 409
    assert "an account here has it already" in page.content.decode()
    assert client.get("/appcodes").status_code == 302
    assert User.objects.count() == 5
    typed = {"username": "alyss", "email": "ceo@example.com"}
    assert client.post("/accounts/3rdparty/signup/", typed).status_code == 409, "nor may another be typed"
    assert User.objects.count() == 5


def test_what_the_provider_does_not_do_is_told(
    people: Any, portal: None, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    assert "did not agree" in client.get("/accounts/3rdparty/login/cancelled/").content.decode()
    # The provider returns the error without the state, so the portal cannot know whose sign-in failed.
    assert "could not be signed in" in sign_in(client, "carol", action="deny").content.decode()
    (app,) = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"]
    away = app | {"settings": {"server_url": f"http://127.0.0.1:{free_port()}"}}
    settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"APPS": [away]}}
    assert "was out of reach" in client.post(BUTTON).content.decode()
    assert "Connection refused" in caplog.text
    assert User.objects.count() == 5
