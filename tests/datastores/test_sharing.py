"""Sharing: named readers can read and use a datastore in runs, cannot change it, and lose access when the name is removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from portal.models import Appcode
from tests.api.client import api_of, manifest
from tests.conftest import new_appcode

DATA = "/appcodes/ops-demo/datastores/data"


@pytest.fixture
def carol(people: Any, store: Any) -> Any:
    """mallory as a developer of an appcode in another business line."""
    new_appcode("elsewhere", org="qunarcorp.elsewhere", namespace="elsewhere", owner=people.mallory)
    return api_of(people.mallory)


@pytest.mark.parametrize(
    "readers", [{"appcodes": ["elsewhere"]}, {"lines": ["qunarcorp.elsewhere"]}, {"everybody": True}]
)
def test_who_is_named_reads_and_changes_nothing(carol: Any, people: Any, readers: dict[str, Any]) -> None:
    alice = api_of(people.alice)
    assert carol.get(f"{DATA}/files")[0] == 404
    assert alice.put(f"{DATA}/sharing", readers) == (200, {"appcodes": [], "lines": [], "everybody": False, **readers})
    status, document = carol.get(DATA)
    assert (status, document["spec"]["s3"]["access_key"], document["status"]["usedBy"]) == (200, "", [])
    assert carol.get(f"{DATA}/files")[0] == 200
    for method, path in (("PUT", DATA), ("DELETE", DATA), ("PUT", f"{DATA}/sharing"), ("GET", f"{DATA}/sharing")):
        assert getattr(carol, method.lower())(path, *([{}] if method == "PUT" else []))[0] in (403, 404), (method, path)
    assert carol.post(f"{DATA}/uploads", {"path": "x", "size": 1})[0] == 403
    page = Client()
    page.force_login(people.mallory)
    shown = page.get("/datastores/ops-demo/data").content.decode()
    assert ("shared with you by ops-demo" in shown, "mc alias" in shown, "Upload" in shown) == (True, False, False)
    assert 'title="Their owners let you read it."' in page.get("/datastores").content.decode()
    assert alice.put(f"{DATA}/sharing", {})[0] == 200
    assert carol.get(DATA)[0] == 404


def test_a_run_reads_what_is_shared_and_its_owner_sees_who(carol: Any, people: Any) -> None:
    from clusters.catalog.models import Flavor, Image

    Flavor.objects.create(name="small", title="Small", cpu_milli=1000, memory_mb=1024)
    Image.objects.create(name="tensorflow", title="TensorFlow", environment="/usr", container="example/tensorflow:2")
    alice, roles = api_of(people.alice), {"master": {"flavor": "small"}}
    document = manifest("reads", appcode="elsewhere", input="ops-demo/data", output=None, roles=roles)
    refused = carol.post("/appcodes/elsewhere/clusters", document)
    assert refused[1]["errors"] == [
        {"path": "spec.input", "message": "There is no datastore “ops-demo/data” that elsewhere may read."}
    ]
    alice.put(f"{DATA}/sharing", {"appcodes": ["elsewhere"]})
    status, made = carol.post("/appcodes/elsewhere/clusters", document)
    assert (status, made["spec"]["input"]) == (201, "ops-demo/data")
    assert alice.get(DATA)[1]["status"]["usedBy"] == ["elsewhere/reads"]
    assert alice.delete(DATA)[0] == 409
    # Only the owning appcode may use it as output.
    other = manifest("writes", appcode="elsewhere", input=None, output="ops-demo/data", roles=roles)
    assert carol.post("/appcodes/elsewhere/clusters", other)[0] == 422


def test_who_asks_for_an_appcode_of_a_business_line_does_not_read_what_is_shared_with_it(
    people: Any, store: Any
) -> None:
    assert api_of(people.alice).put(f"{DATA}/sharing", {"lines": ["qunarcorp.ops"]})[0] == 200
    spec = {"orgNode": "qunarcorp.ops", "owners": ["mallory"], "emails": ["m@example.com"]}
    mallory = api_of(people.mallory)
    status, answer = mallory.post("/appcodes", {"metadata": {"name": "innocent"}, "spec": spec})
    assert status == 201, answer
    assert (mallory.get(DATA)[0], mallory.get(f"{DATA}/files")[0]) == (404, 404)
    Appcode.objects.filter(code="innocent").update(state="active")
    assert mallory.get(f"{DATA}/files")[0] == 200


def test_readers_that_are_not_there_and_what_administrators_give_out_are_refused(
    people: Any, store: Any, folder: Path
) -> None:
    alice = api_of(people.alice)
    status, answer = alice.put(f"{DATA}/sharing", {"appcodes": ["nowhere"], "lines": ["no.where"]})
    assert (status, [each["path"] for each in answer["errors"]]) == (422, ["appcodes", "lines"])
    kinds = {"volume": {"size": "1Gi"}, "local": {"path": str(folder)}}
    for kind, fields in kinds.items():
        made = {"metadata": {"name": kind, "appcode": "ops-demo"}, "spec": {kind: fields}}
        assert alice.post("/appcodes/ops-demo/datastores", made)[0] == 201
        said = str(alice.put(f"/appcodes/ops-demo/datastores/{kind}/sharing", {"everybody": True}))
        assert "Only what lies in S3 can be shared" in said
    assert alice.put(f"{DATA}/sharing", {"everybody": True})[0] == 200
    for kind, fields in kinds.items():
        status, answer = alice.put(DATA, {"spec": {kind: fields}})
        assert (status, [each["path"] for each in answer["errors"]]) == (422, [f"spec.{kind}"])
