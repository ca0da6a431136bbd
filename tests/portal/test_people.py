"""People and the organisation: accounts that administrators create, one-time passwords, business lines."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from django.http import Http404
from django.test import Client

from portal.actions import appcodes, org, tokens
from portal.actions import people as people_actions
from portal.errors import Conflict, Invalid
from portal.models import Event, OrgNode, User

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nobody_has_tried_before() -> None:
    """Resets the sign-in limit per minute and address: all tests sign in from one address."""
    cache.clear()


def sign_in(client: Client, name: str, password: str) -> Any:
    return client.post("/accounts/login/", {"login": name, "password": password})


def test_a_one_time_password_opens_only_the_choice_of_another(client: Client, people: Any) -> None:
    client.force_login(people.root)
    page = client.post("/admin/people/new", {"username": "carol", "email": "carol@example.com", "name": "Carol Wu"})
    password = page.context["password"]
    assert password in page.content.decode()
    assert "no-store" in page["Cache-Control"]
    carol = Client()
    assert sign_in(carol, "carol", password).status_code == 302
    for path in ("/appcodes", "/profile", "/admin/people"):
        assert carol.get(path)["Location"] == "/accounts/password/change/"
    new = {"oldpassword": password, "password1": "her-own-secret-77", "password2": "her-own-secret-77"}
    again = new | {"password1": password, "password2": password}
    assert "current password" in carol.post("/accounts/password/change/", again).content.decode()
    assert User.objects.get(username="carol").must_change_password
    assert carol.post("/accounts/password/change/", new)["Location"] == "/profile"
    assert carol.get("/appcodes").status_code == 200
    assert not User.objects.get(username="carol").must_change_password
    assert password not in "".join(f"{event.message}{event.data}" for event in Event.objects.all())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"username": ""}, "username"),
        ({"username": "alice"}, "username"),
        ({"username": "Alice"}, "username"),
        ({"username": "two words"}, "username"),
        ({"username": "x" * 151}, "username"),
        ({"email": ""}, "email"),
        ({"email": "nothing"}, "email"),
        ({"email": "ALICE@example.com"}, "email"),
        ({"name": "n" * 200}, "name"),
        ({"name": "a\0b"}, "name"),
    ],
)
def test_a_person_that_cannot_be(client: Client, people: Any, changes: dict[str, str], field: str) -> None:
    client.force_login(people.root)
    answer = client.post("/admin/people/new", {"username": "carol", "email": "carol@example.com", "name": ""} | changes)
    assert list(answer.context["form"].errors) == [field]
    assert User.objects.count() == 5


def test_a_deactivated_person_is_out_at_once(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    _, token = tokens.make_token("laptop", 10, acting_user=people.alice)
    assert client.get("/appcodes").status_code == 200
    assert people_actions.set_person_active(people.alice, False, acting_user=people.root) == ["ops-demo"]
    assert client.get("/appcodes")["Location"].startswith("/accounts/login/")
    assert Client().get("/api/v1/me", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    stranger = Client()
    sign_in(stranger, "alice", "alice-password")
    assert "_auth_user_id" not in stranger.session
    people_actions.set_person_active(people.alice, True, acting_user=people.root)
    assert client.get("/appcodes").status_code == 302, "a session that has ended does not come back"
    client.force_login(User.objects.get(username="alice"))
    assert client.get("/appcodes").status_code == 200


def test_a_new_password_ends_the_sessions(client: Client, people: Any) -> None:
    client.force_login(people.bob)
    _, token = tokens.make_token("laptop", 10, acting_user=people.bob)
    password = people_actions.reset_password(people.bob, acting_user=people.root)
    assert client.get("/appcodes").status_code == 302
    assert bearer(token).status_code == 401
    sign_in(client, "bob", password)
    assert client.get("/appcodes")["Location"] == "/accounts/password/change/"


def bearer(token: str) -> Any:
    return Client().get("/api/v1/me", headers={"Authorization": f"Bearer {token}"})


def test_with_a_one_time_password_the_api_is_closed_like_the_pages(client: Client, people: Any) -> None:
    people_actions.reset_password(people.bob, acting_user=people.root)
    bob = User.objects.get(username="bob")
    _, token = tokens.make_token("made by a script meanwhile", 10, acting_user=bob)
    client.force_login(bob)
    for answer in (bearer(token), client.get("/api/v1/me")):
        assert answer.status_code == 403
        assert answer.json()["type"] == "urn:problem-type:portal:password-to-choose"
        assert "choose one of your own" in answer.json()["detail"]


@pytest.mark.parametrize(("box", "after"), [({"end_tokens": "on"}, 401), ({}, 200)])
def test_who_changes_the_password_says_what_becomes_of_tokens(
    client: Client, people: Any, box: dict[str, str], after: int
) -> None:
    _, token = tokens.make_token("laptop", 10, acting_user=people.bob)
    client.force_login(people.bob)
    form = client.get("/accounts/password/change/").context["form"]
    assert form["end_tokens"].value() is True
    new = {"oldpassword": "bob-password", "password1": "his-own-secret-77", "password2": "his-own-secret-77"}
    assert client.post("/accounts/password/change/", new | box).status_code == 302
    assert bearer(token).status_code == after
    assert Event.objects.filter(verb="token.revoked").exists() == bool(box)


def test_without_tokens_nobody_is_asked_about_them(client: Client, people: Any) -> None:
    client.force_login(people.bob)
    assert "API token" not in client.get("/accounts/password/change/").context["form"].as_p()


def test_nobody_locks_themselves_out(people: Any) -> None:
    with pytest.raises(Conflict):
        people_actions.set_person_active(people.root, False, acting_user=people.root)
    with pytest.raises(Conflict):
        people_actions.set_administrator(people.root, False, acting_user=people.root)


def test_rights_are_given_and_taken(client: Client, people: Any) -> None:
    people_actions.set_administrator(people.alice, True, acting_user=people.root)
    client.force_login(User.objects.get(username="alice"))
    assert client.get("/admin/audit").status_code == 200
    people_actions.set_administrator(people.alice, False, acting_user=people.root)
    assert client.get("/admin/audit").status_code == 404


@pytest.mark.parametrize("name", ["alice", "mallory"])
def test_only_administrators_change_people(people: Any, name: str) -> None:
    user = getattr(people, name)
    for act in (
        lambda: people_actions.create_person(username="x", email="x@example.com", acting_user=user),
        lambda: people_actions.set_person_active(people.bob, False, acting_user=user),
        lambda: people_actions.set_administrator(user, True, acting_user=user),
        lambda: people_actions.reset_password(people.bob, acting_user=user),
        lambda: org.save_org_node(OrgNode(path="mine"), acting_user=user),
        lambda: appcodes.disable_appcode(people.ops, "mine", acting_user=user),
    ):
        with pytest.raises(Http404):
            act()


def test_one_time_passwords_are_long_and_differ() -> None:
    made = {people_actions.one_time_password() for _ in range(50)}
    assert len(made) == 50
    assert all(len(password.replace("-", "")) == 20 for password in made)


# The organisation


def test_the_tree_grows_and_shrinks(people: Any) -> None:
    node = org.save_org_node(OrgNode(path="qunarcorp.hotel", title="Hotel", namespace="hotel"), acting_user=people.root)
    assert OrgNode.objects.get(pk=node.pk).namespace == "hotel"
    node.namespace = None
    org.save_org_node(node, acting_user=people.root)
    org.delete_org_node(node, acting_user=people.root)
    assert not OrgNode.objects.filter(path="qunarcorp.hotel").exists()
    assert set(Event.objects.values_list("verb", flat=True)) == {"org.created", "org.changed", "org.deleted"}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"path": "Ops"}, "path"),
        ({"path": ""}, "path"),
        ({"path": "qunarcorp.ops"}, "path"),
        ({"path": "a" * 201}, "path"),
        ({"path": "new", "namespace": "ops"}, "namespace"),
        ({"path": "new", "namespace": "-x"}, "namespace"),
        ({"path": "new", "title": "t" * 101}, "title"),
        ({"path": "new", "title": "=1+1"}, "title"),
        ({"path": "new", "title": "one\ntwo"}, "title"),
    ],
)
def test_a_node_that_cannot_be(people: Any, fields: dict[str, str], path: str) -> None:
    with pytest.raises(Invalid) as caught:
        org.save_org_node(OrgNode(**fields), acting_user=people.root)
    assert {error.path for error in caught.value.errors} == {(path,)}


def test_a_namespace_in_use_stays(people: Any) -> None:
    node = people.ops.org_node
    node.namespace = "elsewhere"
    with pytest.raises(Invalid, match="cannot be changed any more"):
        org.save_org_node(node, acting_user=people.root)
