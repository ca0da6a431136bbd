"""The branding is on every page, at once, for everybody; and only administrators change it."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from portal.branding import reading
from portal.branding.manifest import MOST_LOGO_BYTES, BrandingManifest
from portal.errors import Invalid
from portal.manifests import parse
from portal.models import Event

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


@pytest.fixture(autouse=True)
def _without_branding_afterwards() -> Iterator[None]:
    """The database forgets by itself what a test sets."""
    yield
    cache.delete(reading.KEY)


def _set(client: Client, **typed: Any) -> Any:
    return client.post("/admin/branding", {"name": "Example AI", **typed})


@pytest.mark.django_db(transaction=True)
def test_name_colour_logo_support_and_banner_are_on_every_page(client: Client, people: Any) -> None:
    client.force_login(people.root)
    logo = SimpleUploadedFile("logo.png", PNG, "image/png")
    sent = _set(
        client, colour="#0A7C8A", logo=logo, support="mailto:gpu@example.com", banner="Rack 7\nis replaced on Friday.",
        level="warning", until="2099-01-01T12:00",
    )  # fmt: skip
    assert sent.status_code == 302
    pages = [client.get("/appcodes").content.decode(), Client().get("/accounts/login/").content.decode()]
    address = reading.shown().logo
    for page in pages:
        assert "Example AI</title>" in page
        assert 'style="--brand: #0a7c8a"' in page
        assert "Rack 7 is replaced on Friday." in page
        assert f'src="{address}"' in page
    assert "mailto:gpu@example.com" in pages[1]
    picture = Client().get(address)
    assert picture.content == PNG
    assert picture["Content-Type"] == "image/png"
    assert "sandbox" in picture["Content-Security-Policy"]
    assert "script-src" not in picture["Content-Security-Policy"]
    assert Event.objects.get(verb="branding.changed").message.endswith(": Rack 7 is replaced on Friday.")

    _set(client)  # Without a new file the logo stays.
    assert reading.shown() == reading.Shown("Example AI", logo=address)
    _set(client, without_logo="on")
    assert reading.shown() == reading.Shown("Example AI")
    assert client.get(address).status_code == 404


@pytest.mark.django_db(transaction=True)
def test_a_change_while_a_page_reads_the_old_branding_is_not_hidden_by_it(
    client: Client, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(people.root)
    read, reads = reading._read, []

    def slow() -> dict[str, object]:
        old = read()
        if not reads:
            reads.append(old)
            _set(client, banner="New.")
        return old

    monkeypatch.setattr(reading, "_read", slow)
    cache.delete(reading.KEY)
    reading.shown()
    assert reads
    assert reading.shown().name == "Example AI"


@pytest.mark.django_db(transaction=True)
def test_a_banner_goes_away_by_itself(client: Client, people: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client.force_login(people.root)
    _set(client, banner="Until noon.", until="2099-01-01T12:00")
    assert reading.shown().banner is not None
    noon = dt.datetime(2099, 1, 1, 12, tzinfo=dt.UTC)
    monkeypatch.setattr(timezone, "now", lambda: noon)
    assert reading.shown().banner is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("name", " ", "Fill this in."),
        ("colour", "red", "Give a colour like #3a55c4."),
        ("support", "javascript:alert(1)", "Give an address that begins with https:// or mailto:."),
        ("support", "https://[", "This is no address."),
        ("banner", "x" * 301, "At most 300 characters."),
        ("logo", SimpleUploadedFile("a.html", b"<script>", "text/html"), "Give a PNG, SVG, WebP or JPEG"),
        ("logo", SimpleUploadedFile("a.png", bytes(MOST_LOGO_BYTES + 1), "image/png"), "At most 64 KiB."),
    ],
)
def test_bad_input_is_refused_at_its_field(client: Client, people: Any, field: str, typed: Any, said: str) -> None:
    client.force_login(people.root)
    page = _set(client, **{field: typed})
    assert said in str(page.context["form"].errors[field])
    assert reading.spec().name == "GPU cloud"


@pytest.mark.django_db(transaction=True)
def test_rest_gives_back_what_was_put(client: Client, people: Any) -> None:
    client.force_login(people.root)
    logo = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    spec = {
        "name": "Example AI", "colour": "#0a7c8a", "logo": logo, "support": "https://example.com/help",
        "banner": {"text": "Hello", "level": "warning", "until": None},
    }  # fmt: skip
    put = client.put("/api/v1/branding", {"kind": "branding", "spec": spec}, content_type="application/json")
    assert put.json()["spec"] == client.get("/api/v1/branding").json()["spec"] == spec
    again = client.put("/api/v1/branding", {"kind": "branding", "spec": spec}, content_type="application/json")
    assert again.status_code == 200
    assert Event.objects.filter(verb="branding.changed").count() == 1


@given(st.text(max_size=200))
def test_no_text_is_a_logo_that_cannot_be_shown(text: str) -> None:
    for logo in (text, f"data:image/png;base64,{text}"):
        try:
            spec = parse(BrandingManifest, {"spec": {"logo": logo}}).spec
        except Invalid:
            continue
        assert (spec.logo_file is None) == (not logo)
