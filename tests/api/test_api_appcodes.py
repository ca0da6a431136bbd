"""Appcodes over REST: asking for one, reading it, changing it."""

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
    (appcode(gpuQuota=100), "spec.gpuQuota"),
    (appcode(gpuQuota=-1), "spec.gpuQuota"),
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
