"""Appcodes over REST: requesting, reading and changing one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.client import Api, appcode


def test_a_request_waits_for_an_administrator_and_then_works(as_alice: Api, as_root: Api) -> None:
    status, made = as_alice.post("/appcodes", appcode("npe_ix_test_gpu", remark="second try"))
    assert (status, made["status"]["state"]) == (201, "requested")
    assert made["spec"]["name"] == "npe_ix_test_gpu"
    assert as_alice.last.headers["Location"].endswith("/api/v1/appcodes/npe_ix_test_gpu")
    assert as_root.post("/appcodes", appcode("root-made"))[1]["status"]["state"] == "active"
    assert [item["metadata"]["name"] for item in as_alice.get("/appcodes")[1]["items"]] == [
        "npe_ix_test_gpu", "ops-demo", "root-made",
    ]  # fmt: skip
    assert [item["metadata"]["name"] for item in as_alice.get("/appcodes?search=test+NPE")[1]["items"]] == [
        made["metadata"]["name"]
    ]


def test_what_was_read_can_be_sent_back(as_alice: Api) -> None:
    _, read = as_alice.get("/appcodes/ops-demo")
    status, again = as_alice.put("/appcodes/ops-demo", read)
    assert (status, again) == (200, read)


def test_a_change(as_alice: Api) -> None:
    status, changed = as_alice.put(
        "/appcodes/ops-demo", appcode("ops-demo", emails=["a@example.com", "b@example.com"], name="Operations")
    )
    assert (status, changed["spec"]["emails"], changed["spec"]["name"]) == (
        200,
        ["a@example.com", "b@example.com"],
        "Operations",
    )


BAD = [
    (appcode("Ops"), "metadata.name"),
    (appcode("ops-demo"), "metadata.name"),
    (appcode(orgNode="qunarcorp.nowhere"), "spec.orgNode"),
    (appcode(owners=[]), "spec.owners"),
    (appcode(owners=["alice", "nobody"]), "spec.owners"),
    (appcode(owners=["bob"]), "spec.owners"),
    (appcode(owners=["alice"] * 5), "spec.owners"),
    (appcode(emails=[]), "spec.emails"),
    (appcode(emails=["nonsense"]), "spec.emails.0"),
    (appcode(emails=[f"{n}@example.com" for n in range(11)]), "spec.emails"),
    (appcode(remark="x" * 101), "spec.remark"),
    (appcode(quota={"gpus": -1}), "spec.quota.gpus"),
    (appcode(quota={"storage": 1.5}), "spec.quota.storage"),
    (appcode(quota={"budget": 1.5}), "spec.quota.budget"),
    (appcode(quota={"budget": "0"}), "spec.quota.budget"),
    (appcode(quota={"budget": "1.001"}), "spec.quota.budget"),
    (appcode(quota={"cpus": 1}), "spec.quota.cpus"),
    (appcode(expires="2001-01-01"), "spec.expires"),
    (appcode(expires="9999-12-31"), "spec.expires"),
    (appcode(expires="soon"), "spec.expires"),
    (appcode(resourceType="host"), "spec.resourceType"),
    (appcode(money=1), "spec.money"),
    (appcode(name="a\0"), "spec.name"),
    ({"kind": "cluster"}, "kind"),
    ({}, "metadata"),
    ([], ""),
]


@pytest.mark.parametrize(("body", "path"), BAD)
def test_a_bad_request_is_refused_at_its_field(as_alice: Api, body: Any, path: str) -> None:
    from portal.models import Appcode

    before = Appcode.objects.count()
    status, answer = as_alice.post("/appcodes", body)
    assert status == 422, answer
    assert any(error["path"].startswith(path) for error in answer["errors"]), answer
    assert Appcode.objects.count() == before


def test_a_code_stays(as_alice: Api) -> None:
    status, answer = as_alice.put("/appcodes/ops-demo", appcode("ops-new"))
    assert (status, answer["errors"][0]["path"]) == (422, "metadata.name")


def test_more_is_asked_for_changed_and_given(as_alice: Api, as_bob: Api, as_root: Api) -> None:
    _, before = as_alice.get("/appcodes/ops-demo")
    assert (before["spec"]["quota"], before["status"]["request"]) == (
        {"gpus": 8, "storage": 1024, "budget": None},
        None,
    )
    assert as_alice.get("/appcodes/ops-demo/quota-requests") == (200, {"items": [], "next": None})
    asked = {"quota": {"gpus": 32, "budget": "500.00"}, "reason": "Two models."}
    status, sent = as_alice.post("/appcodes/ops-demo/quota-requests", asked)
    assert (status, sent["state"], sent["revision"], sent["askedBy"]) == (201, "waiting", 1, "alice")
    assert sent["quota"] == {"gpus": 32, "storage": 1024, "budget": "500.00"}
    assert as_alice.post("/appcodes/ops-demo/quota-requests", asked)[1] == sent
    assert as_alice.get("/appcodes/ops-demo/quota-requests")[1]["items"] == [sent]
    assert as_alice.get("/appcodes/ops-demo")[1]["spec"] == before["spec"]
    assert [each["metadata"]["name"] for each in as_root.get("/appcodes?request=waiting")[1]["items"]] == ["ops-demo"]
    said = {"revision": 1, "note": "16 are enough."}
    assert as_alice.post("/appcodes/ops-demo/quota-requests/request-changes", said)[0] == 404
    status, handed_back = as_root.post("/appcodes/ops-demo/quota-requests/request-changes", said)
    assert (status, handed_back["status"]["request"]["note"]) == (200, "16 are enough.")
    status, again = as_alice.post("/appcodes/ops-demo/quota-requests", {"quota": {"gpus": 16, "budget": "500.00"}})
    assert (again["state"], again["revision"], again["note"]) == ("waiting", 2, "")
    status, answer = as_root.post("/appcodes/ops-demo/quota-requests/approve", {"revision": 1})
    assert (status, answer["detail"]) == (409, "The request for ops-demo was changed meanwhile; read it again.")
    status, given = as_root.post(
        "/appcodes/ops-demo/quota-requests/approve", {"revision": 2, "quota": {"storage": 2048}}
    )
    assert (status, given["spec"]["quota"]) == (200, {"gpus": 16, "storage": 2048, "budget": "500.00"})
    assert as_root.post("/appcodes/ops-demo/quota-requests/approve", {"revision": 2})[0] == 409
    assert as_alice.post("/appcodes/ops-demo/quota-requests/withdraw")[0] == 409
    [budget] = as_alice.get("/budgets?appcode=ops-demo")[1]["items"]
    assert (budget["amount"], budget["policy"], budget["byAdministrator"]) == ("500.00", "block", True)
    # A manifest that was read can be sent back.
    _, read = as_alice.get("/appcodes/ops-demo")
    assert as_alice.put("/appcodes/ops-demo", read) == (200, read)


def test_an_owner_cannot_give_themselves_more(as_alice: Api) -> None:
    status, answer = as_alice.put("/appcodes/ops-demo", appcode("ops-demo", quota={"gpus": 9}, expires="2030-01-01"))
    assert (status, [each["path"] for each in answer["errors"]]) == (422, ["spec.quota.gpus", "spec.expires"])
    assert answer["errors"][0]["message"] == "An administrator sets it; request it on the page of ops-demo."


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "quota"),
        ({"quota": {"gpus": 8}}, "quota"),
        ({"expires": "2001-01-01"}, "expires"),
        ({"quota": {"gpus": 100_001}}, "quota.gpus"),
        ({"reason": "x" * 301, "quota": {"gpus": 9}}, "reason"),
        ({"gpus": 9}, "gpus"),
    ],
)
def test_a_request_is_refused_at_its_field(as_alice: Api, body: Any, path: str) -> None:
    status, answer = as_alice.post("/appcodes/ops-demo/quota-requests", body)
    assert (status, [each["path"] for each in answer["errors"]]) == (422, [path])


def test_a_new_appcode_is_asked_for_with_what_it_needs(as_alice: Api, as_root: Api) -> None:
    wanted = {"quota": {"gpus": 64, "storage": 10, "budget": "99.50"}, "expires": None}
    _, made = as_alice.post("/appcodes", appcode("npe", **wanted))
    assert (made["spec"]["quota"], made["spec"]["expires"], made["status"]["state"]) == (
        wanted["quota"],
        None,
        "requested",
    )
    assert (
        as_root.post("/appcodes/npe/quota-requests/refuse", {"revision": 1, "note": "Too many."})[1]["status"]["state"]
        == "refused"
    )
    _, read = as_alice.get("/appcodes/npe")
    read["spec"]["quota"]["gpus"] = 4
    _, again = as_alice.put("/appcodes/npe", read)
    assert (again["status"]["state"], again["status"]["request"]["revision"]) == ("requested", 2)
    _, given = as_root.post("/appcodes/npe/quota-requests/approve", {"revision": 2})
    assert (given["spec"]["quota"], given["status"]["state"]) == (wanted["quota"] | {"gpus": 4}, "active")
