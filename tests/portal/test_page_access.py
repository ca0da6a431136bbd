"""Who may open what: every page of the portal app, by every kind of person. What is not yours does not exist."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import get_resolver

from portal.models import Appcode, Event, Membership, OrgNode, User
from portal.webhooks.routes import urlpatterns as webhook_pages

pytestmark = pytest.mark.django_db
EVERYBODY = ("anonymous", "alice", "bob", "victor", "mallory", "root")

# What each gets: 200 the page, 302 done (or, for anonymous, to sign-in), 403 seen but not theirs to do, 404 not there.
IN, OPS, OWNERS, ADMINISTRATORS = (
    dict(zip(EVERYBODY, answers, strict=True))
    for answers in (
        (302, 200, 200, 200, 200, 200),
        (302, 200, 200, 200, 404, 200),
        (302, 200, 403, 403, 404, 200),
        (302, 404, 404, 404, 404, 200),
    )
)
PAGES = {
    "/frame/gpus": IN,
    "/frame/appcodes": IN,
    "/search?q=ops": IN,
    "/appcodes": IN,
    "/appcodes/new": IN,
    "/appcodes/ops-demo": OPS,
    "/appcodes/ops-demo/change": OWNERS,
    "/profile": IN,
    "/accounts/password/change/": IN,
    "/admin/appcodes": ADMINISTRATORS,
    "/admin/orgs": ADMINISTRATORS,
    "/admin/orgs/new": ADMINISTRATORS,
    "/admin/orgs/{org}": ADMINISTRATORS,
    "/admin/people": ADMINISTRATORS,
    "/admin/people/new": ADMINISTRATORS,
    "/admin/people/alice": ADMINISTRATORS,
    "/admin/audit": ADMINISTRATORS,
}
MANAGE, ADMINISTER = (
    dict(zip(EVERYBODY, answers, strict=True))
    for answers in ((302, 302, 403, 403, 404, 302), (302, 404, 404, 404, 404, 302))
)
ACTIONS: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, int]] = {
    ("/appcodes/ops-demo/members", (("username", "mallory"), ("role", "viewer"))): MANAGE,
    ("/appcodes/ops-demo/disable", (("note", "over"),)): ADMINISTER,
    ("/appcodes/ops-demo/quota", (("gpu_quota", "3"),)): ADMINISTER,
    ("/appcodes/ops-demo/approve", ()): ADMINISTER,
    ("/appcodes/ops-demo/refuse", (("note", "no"),)): ADMINISTER,
    ("/admin/orgs/{org}/delete", ()): ADMINISTER,
    ("/admin/people/bob/deactivate", ()): ADMINISTER,
    ("/admin/people/bob/activate", ()): ADMINISTER,
    ("/admin/people/bob/administrator", ()): ADMINISTER,
    ("/admin/people/bob/member", ()): ADMINISTER,
}


def signed_in(client: Client, people: Any, name: str) -> Client:
    if name != "anonymous":
        client.force_login(getattr(people, name))
    return client


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("name", EVERYBODY)
def test_a_page_opens_for_those_it_is_for(client: Client, people: Any, name: str, path: str) -> None:
    path = path.format(org=people.ops.org_node_id)
    answer = signed_in(client, people, name).get(path)
    assert (
        answer.status_code
        == {key.format(org=people.ops.org_node_id): value for key, value in PAGES.items()}[path][name]
    )
    if name == "anonymous":
        assert answer["Location"].startswith("/accounts/login/?next=")


@pytest.mark.parametrize(("path", "fields"), ACTIONS)
@pytest.mark.parametrize("name", EVERYBODY)
def test_an_action_is_done_only_for_those_who_may(
    client: Client, people: Any, name: str, path: str, fields: tuple[tuple[str, str], ...]
) -> None:
    before = Event.objects.count()
    answer = signed_in(client, people, name).post(path.format(org=people.ops.org_node_id), dict(fields))
    expected = ACTIONS[path, fields][name]
    assert answer.status_code == expected
    if name == "anonymous" or expected != 302:
        assert Event.objects.count() == before
        assert list(people.ops.memberships.order_by("user__username").values_list("user__username", "role")) == [
            ("alice", "owner"),
            ("bob", "developer"),
            ("victor", "viewer"),
        ]


def test_what_is_not_mine_and_what_does_not_exist_look_the_same(client: Client, people: Any) -> None:
    client.force_login(people.mallory)
    theirs, nothing = client.get("/appcodes/ops-demo"), client.get("/appcodes/xps-demo")
    hide = [("ops-demo", "CODE"), ("xps-demo", "CODE"), (theirs["X-Request-ID"], "ID"), (nothing["X-Request-ID"], "ID")]
    bodies = [theirs.content.decode(), nothing.content.decode()]
    for old, new in hide:
        bodies = [body.replace(old, new) for body in bodies]
    assert theirs.status_code == nothing.status_code == 404
    assert bodies[0] == bodies[1]


def test_lists_menus_and_search_show_only_what_one_is_in(client: Client, people: Any) -> None:
    client.force_login(people.mallory)
    for path in ("/appcodes", "/frame/appcodes", "/search?q=demo"):
        text = client.get(path).content.decode()
        assert "flight-demo" in text
        assert "ops-demo" not in text
    assert "alice" not in client.get("/search?q=ali").content.decode().replace('value="ali"', "")


def test_people_are_found_by_those_who_share_an_appcode_with_them(client: Client, people: Any) -> None:
    client.force_login(people.bob)
    assert "mailto:alice@example.com" in client.get("/search?q=alic").content.decode()
    assert "mallory@" not in client.get("/search?q=mall").content.decode()


def test_the_switcher_refuses_an_appcode_that_is_not_mine(client: Client, people: Any) -> None:
    client.force_login(people.mallory)
    assert client.post("/frame/appcode", {"appcode": "ops-demo"}).status_code == 404
    assert client.post("/frame/appcode?next=/appcodes", {"appcode": "flight-demo"}).status_code == 302
    assert client.session["appcode"] == "flight-demo"
    assert client.post("/frame/appcode?next=//evil.example", {"appcode": ""})["Location"] == "/"


def test_an_owner_who_leaves_lands_on_the_list(client: Client, people: Any) -> None:
    Membership.objects.create(user=people.bob, appcode=people.flight, role="owner")
    client.force_login(people.bob)
    answer = client.post("/appcodes/flight-demo/members", {"username": "bob", "role": ""})
    assert answer["Location"] == "/appcodes"
    assert client.get("/appcodes/flight-demo").status_code == 404


def test_tokens_of_others_cannot_be_revoked(client: Client, people: Any) -> None:
    from portal import actions

    token, _ = actions.make_token("laptop", 10, acting_user=people.alice)
    client.force_login(people.mallory)
    assert client.post(f"/profile/tokens/{token.token_key}/revoke").status_code == 404
    assert people.alice.auth_token_set.count() == 1


def test_every_page_of_ours_is_in_the_matrix() -> None:
    ours = {pattern.name for pattern in _patterns(get_resolver()) if pattern.callback.__module__.startswith("portal.")}
    ours -= {"api-schema", "api-docs", None}
    # Those have a matrix of their own: test_webhooks.py.
    ours -= {pattern.name for pattern in webhook_pages}
    seen = {
        get_resolver().resolve(path.format(org=1).partition("?")[0]).url_name
        for path in [*PAGES, *(p for p, _ in ACTIONS)]
    }
    elsewhere = {"account_reset_password", "openid_connect_login", "socialaccount_signup"}  # for everybody
    elsewhere |= {"switch_appcode", "set_theme", "revoke_token", "reset_person_password"}
    assert ours - elsewhere == seen


def _patterns(resolver: Any) -> Any:
    for pattern in resolver.url_patterns:
        yield from _patterns(pattern) if hasattr(pattern, "url_patterns") else [pattern]


def test_an_administrators_password_reset_is_theirs_alone(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    assert client.post("/admin/people/bob/password").status_code == 404
    assert User.objects.get(username="bob").check_password("bob-password")


def test_deleting_a_node_in_use_is_refused_with_a_sentence(client: Client, people: Any) -> None:
    client.force_login(people.root)
    answer = client.post(f"/admin/orgs/{people.ops.org_node_id}/delete", follow=True)
    assert "owns 1 appcodes" in answer.content.decode()
    assert OrgNode.objects.filter(pk=people.ops.org_node_id).exists()
    assert Appcode.objects.filter(code="ops-demo").exists()
