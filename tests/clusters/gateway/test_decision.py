"""Decisions about a request to an application's origin: a pure function, tested by properties."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.gateway.decision import (
    RESERVED,
    Asked,
    Sender,
    back_to,
    decide,
    token_in,
    values_of,
    without,
)

COOKIE = "portal-app"
HERE = "http://notebook-nb-ops.apps.localhost:8000"
GET = Asked(
    "GET",
    "/lab",
    HERE,
    cookies=f"{COOKIE}=secret; theme=dark",
    fetch_site="none",
    fetch_mode="navigate",
    fetch_dest="document",
)
SOCKET = Asked("GET", "/api/events", HERE, origin=HERE, cookies=f"{COOKIE}=secret", socket_key="dGhlIHNhbXBsZQ==")
POST = Asked(
    "POST", "/api/contents", HERE, origin=HERE, cookies=f"{COOKIE}=secret", fetch_site="same-origin", fetch_mode="cors"
)
ALICE, NOBODY, PROGRAM = Sender(person="alice", may_open=True, proof="p"), Sender(), Sender(token=True, proof="p")
OTHERS = ("http://web-x-flight.apps.localhost:8000", "http://portal.localhost:8000", "null", "https://evil.example")

words = st.text(string.ascii_letters + string.digits + "-_.", min_size=1, max_size=12)
asked = st.builds(
    Asked,
    method=st.sampled_from(["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]),
    uri=st.sampled_from(["/", "/lab?x=1", "/api/kernels", "/.portal/ticket?ticket=1", "//evil/", "/a\\b", "nothing"]),
    address=st.just(HERE),
    origin=st.sampled_from(["", HERE, *OTHERS]),
    authorization=st.sampled_from(["", "token abc", "Bearer gpc_1234", "Basic eDp5"]),
    cookies=st.lists(st.tuples(st.sampled_from([COOKIE, f"{COOKIE}-state", "_xsrf", "theme"]), words), max_size=4).map(
        lambda pairs: "; ".join(f"{name}={value}" for name, value in pairs)
    ),
    accept=st.sampled_from(["", "text/html,*/*", "application/json"]),
    socket_key=st.sampled_from(["", "dGhlIHNhbXBsZQ=="]),
    fetch_site=st.sampled_from(["", "none", "same-origin", "same-site", "cross-site"]),
    fetch_mode=st.sampled_from(["", "navigate", "cors", "no-cors", "websocket"]),
    fetch_dest=st.sampled_from(["", "document", "iframe", "object", "empty", "script"]),
)
senders = st.builds(
    Sender, token=st.booleans(), person=st.sampled_from(["", "alice"]), may_open=st.booleans(), proof=st.just("p")
)


@given(asked, senders)
def test_only_who_is_known_and_may_comes_in_and_nothing_of_the_portal_with_them(request: Asked, sender: Sender) -> None:
    answer = decide(request, sender, COOKIE)
    if answer.what != "let_through":
        assert not answer.headers
        return
    assert sender.token or (sender.person and sender.may_open)
    assert not request.path.startswith(RESERVED)
    assert request.uri.startswith("/")
    assert COOKIE not in answer.headers.get("Cookie", "")
    assert "gpc_" not in answer.headers.get("Authorization", "")
    assert set(answer.headers) <= {"Cookie", "Authorization", "X-Portal-User", "X-Portal-Gateway"}
    assert answer.headers["X-Portal-Gateway"] == "p"
    if sender.token:
        assert "Authorization" not in answer.headers
        assert "X-Portal-User" not in answer.headers
    else:
        assert answer.headers["X-Portal-User"] == sender.person
        # A page of another origin can never act for the user.
        assert request.origin in ("", HERE)
        assert request.fetch_mode == "navigate" or request.fetch_site not in ("same-site", "cross-site")
        if request.is_socket or request.method not in ("GET", "HEAD", "OPTIONS"):
            assert request.origin == HERE or request.fetch_site == "same-origin"


@given(asked)
def test_nobody_that_is_known_is_sent_to_the_portal_only_with_eyes_on_it(request: Asked) -> None:
    answer = decide(request, NOBODY, COOKIE)
    assert answer.what in ("to_portal", "refuse")
    if answer.what == "to_portal":
        assert request.method == "GET"
        assert not request.is_socket
        assert request.fetch_dest in ("", "document")


@pytest.mark.parametrize("request_", [GET, SOCKET, POST], ids=["page", "socket", "post"])
def test_who_may_open_it_uses_it_from_its_own_pages(request_: Asked) -> None:
    assert decide(request_, ALICE, COOKIE).what == "let_through"


@pytest.mark.parametrize("origin", OTHERS)
@pytest.mark.parametrize("request_", [SOCKET, POST], ids=["socket", "post"])
def test_pages_of_others_are_refused_even_with_the_cookie(request_: Asked, origin: str) -> None:
    assert decide(replace(request_, origin=origin), ALICE, COOKIE).status == 403


def test_a_socket_without_an_origin_is_no_page_of_ours() -> None:
    assert decide(replace(SOCKET, origin=""), ALICE, COOKIE).status == 403
    assert decide(replace(SOCKET, origin=""), PROGRAM, COOKIE).what == "let_through"


def test_other_origins_show_no_application_in_a_frame() -> None:
    framed = replace(GET, fetch_site="same-site", fetch_dest="iframe")
    assert decide(framed, ALICE, COOKIE).status == 403
    assert decide(replace(framed, fetch_site="same-origin"), ALICE, COOKIE).what == "let_through"
    assert decide(replace(GET, fetch_site="cross-site"), ALICE, COOKIE).what == "let_through"  # a link in a mail


def test_who_may_not_open_it_sees_what_is_not_there() -> None:
    answer = decide(GET, Sender(person="mallory"), COOKIE)
    assert (answer.what, answer.status) == ("refuse", 404)


@given(st.lists(st.tuples(words, words), max_size=6))
def test_cookies_of_the_application_stay_as_they_were(pairs: list[tuple[str, str]]) -> None:
    theirs = "; ".join(f"{name}={value}" for name, value in pairs)
    assert without(f"{COOKIE}=x; {theirs}; {COOKIE}-state=y", COOKIE) == theirs
    assert values_of(f"{theirs}; {COOKIE}=x", COOKIE)[-1:] == ["x"]


def test_where_the_token_stands() -> None:
    program = Asked("GET", "/api?token=b&x=1", HERE)
    assert (
        token_in(replace(program, authorization="token a"))
        == token_in(replace(program, authorization="Bearer a"))
        == "a"
    )
    assert token_in(program) == "b"
    assert token_in(replace(program, accept="text/html")) == ""
    assert back_to(program) == "/api?x=1"
    assert back_to(Asked("GET", "/lab", HERE)) == "/lab"
