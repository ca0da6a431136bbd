"""What pages reveal to whom. Access rights per page are in tests/access/pages.txt."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from portal.models import Appcode, Membership, OrgNode

pytestmark = pytest.mark.django_db


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
    from portal.actions import tokens

    token, _ = tokens.make_token("laptop", 10, acting_user=people.alice)
    client.force_login(people.mallory)
    assert client.post(f"/profile/tokens/{token.token_key}/revoke").status_code == 404
    assert people.alice.auth_token_set.count() == 1


def test_deleting_a_node_in_use_is_refused_with_a_sentence(client: Client, people: Any) -> None:
    client.force_login(people.root)
    answer = client.post(f"/admin/orgs/{people.ops.org_node_id}/delete", follow=True)
    assert "owns 1 appcodes" in answer.content.decode()
    assert OrgNode.objects.filter(pk=people.ops.org_node_id).exists()
    assert Appcode.objects.filter(code="ops-demo").exists()
