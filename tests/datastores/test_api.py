"""Datastores over REST: manifests in and out, never a secret, and each error at its field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.client import Api, api_of
from tests.datastores.conftest import body

PATH = "/appcodes/ops-demo/datastores"


@pytest.fixture
def api(people: Any) -> dict[str, Api]:
    return {name: api_of(getattr(people, name)) for name in ("alice", "bob", "victor", "mallory", "root")}


def test_a_datastore_from_its_making_to_its_end(api: dict[str, Api], s3: Any, s3_spec: Any, bucket: str) -> None:
    bob = api["bob"]
    status, made = bob.post(PATH, body("data", s3_spec()))
    assert status == 201, made
    assert bob.last["Location"].endswith(f"{PATH}/data")
    shown = {"server": s3.url, "access_key": s3.access_key, "bucket": bucket, "prefix": "", "region": "us-east-1"}
    assert made == {
        "kind": "datastore",
        "metadata": {"name": "data", "appcode": "ops-demo"},
        "spec": {"s3": shown},
        "status": {"tested": None, "ok": None, "message": "", "usedBy": [], "volume": None},
    }
    assert bob.get(f"{PATH}/data") == (200, made)
    status, tested = bob.post(f"{PATH}/data/test")
    assert (status, tested["ok"], tested["path"]) == (200, True, "")
    status, read = api["victor"].get(f"{PATH}/data")
    assert (read["status"]["ok"], read["status"]["message"]) == (True, tested["message"])
    read["spec"]["s3"]["prefix"] = "team"
    status, changed = bob.put(f"{PATH}/data", read)
    assert (status, changed["spec"]["s3"]["prefix"], changed["status"]["ok"]) == (200, "team", None)
    assert bob.post(f"{PATH}/data/test")[1]["ok"], "the secret was kept"
    assert bob.delete(f"{PATH}/data")[0] == 204
    assert bob.get(f"{PATH}/data")[0] == 404


def test_what_was_read_can_be_sent_back_unchanged(api: dict[str, Api], store: Any, folder: Any) -> None:
    api["bob"].post(PATH, body("here", {"local": {"path": str(folder)}}))
    api["bob"].post(PATH, body("nfs", {"nfs": {"server": "10.0.0.7", "path": "/data"}}))
    for name in ("data", "here", "nfs"):
        status, read = api["alice"].get(f"{PATH}/{name}")
        assert (status, api["alice"].put(f"{PATH}/{name}", read)) == (200, (200, read))


def test_a_secret_is_in_no_answer(api: dict[str, Api], s3: Any, store: Any, s3_spec: Any) -> None:
    alice = api["alice"]
    asked = [
        alice.get(f"{PATH}/data"),
        alice.get(PATH),
        alice.put(f"{PATH}/data", body("data", s3_spec(prefix="x"))),
        alice.post(PATH, body("data", s3_spec())),
        alice.post(PATH, body("Wrong", s3_spec(bucket="x", server=7))),
        alice.post(PATH, body("other", s3_spec(secret_key=s3.secret_key + " "))),
        alice.post(f"{PATH}/data/test"),
    ]
    assert not [answer for answer in asked if s3.secret_key in str(answer)]


def test_pages_and_search(api: dict[str, Api]) -> None:
    for n in range(5):
        api["bob"].post(PATH, body(f"data-{n}", {"nfs": {"server": "10.0.0.7", "path": f"/{n}"}}))
    alice = api["alice"]
    status, first = alice.get(f"{PATH}?limit=2")
    assert (status, [item["metadata"]["name"] for item in first["items"]]) == (200, ["data-0", "data-1"])
    assert first["next"]
    status, second = alice.get(first["next"].split("/api/v1", 1)[1])
    assert [item["metadata"]["name"] for item in second["items"]] == ["data-2", "data-3"]
    assert [item["metadata"]["name"] for item in alice.get(f"{PATH}?search=A-4")[1]["items"]] == ["data-4"]
    assert alice.get(f"{PATH}?cursor=nonsense!")[0] == 422


def test_what_is_not_mine_looks_like_what_does_not_exist(api: dict[str, Api], store: Any, s3_spec: Any) -> None:
    mallory = api["mallory"]
    for method, path, sent in (
        ("GET", PATH, None),
        ("POST", PATH, body("mine", s3_spec())),
        ("GET", f"{PATH}/data", None),
        ("PUT", f"{PATH}/data", body("data", s3_spec())),
        ("DELETE", f"{PATH}/data", None),
        ("POST", f"{PATH}/data/test", None),
    ):
        status, foreign = mallory(method, path, sent)
        assert status == 404
        status, absent = mallory(method, path.replace("ops-demo", "no-such"), sent)
        assert foreign["title"] == absent["title"]
        assert foreign["detail"].replace("ops-demo", "no-such") == absent["detail"]


def test_a_viewer_reads_and_changes_nothing(api: dict[str, Api], store: Any, s3_spec: Any) -> None:
    victor = api["victor"]
    assert victor.get(PATH)[0] == 200
    assert victor.post(PATH, body("mine", s3_spec()))[0] == 403
    assert victor.put(f"{PATH}/data", body("data", s3_spec()))[0] == 403
    assert victor.delete(f"{PATH}/data")[0] == 403
    assert victor.post(f"{PATH}/data/test")[0] == 403


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda b: b["metadata"].update(name="Not_A_Label"), "metadata.name"),
        (lambda b: b["metadata"].update(appcode="flight-demo"), "metadata.appcode"),
        (lambda b: b["spec"].pop("s3"), "spec"),
        (lambda b: b["spec"].update(nfs={"server": "h", "path": "/x"}), "spec"),
        (lambda b: b["spec"]["s3"].pop("secret_key"), "spec.s3.secret_key"),
        (lambda b: b["spec"]["s3"].pop("bucket"), "spec.s3.bucket"),
        (lambda b: b["spec"]["s3"].update(server="http://169.254.169.254"), "spec.s3.server"),
        (lambda b: b["spec"].update(s3=[]), "spec.s3"),
        (lambda b: b.update(spec={"local": {"path": "/etc"}}), "spec.local.path"),
        (lambda b: b.update(kind="cluster"), "kind"),
        (lambda b: b.update(more=1), "more"),
    ],
)
def test_bad_input_is_refused_at_its_field(api: dict[str, Api], s3_spec: Any, change: Any, path: str) -> None:
    wish = body("data", s3_spec())
    change(wish)
    status, problem = api["bob"].post(PATH, wish)
    assert status == 422
    assert path in [error["path"] for error in problem["errors"]]
    assert api["bob"].get(PATH)[1]["items"] == []


@pytest.mark.parametrize("wish", [None, [], "text", 7, {"metadata": []}, {"metadata": {"name": None}}])
def test_no_body_is_an_accident(api: dict[str, Api], wish: Any) -> None:
    assert api["bob"].post(PATH, wish)[0] in (400, 422)


def test_a_failed_test_names_the_field(api: dict[str, Api], s3_spec: Any) -> None:
    api["bob"].post(PATH, body("data", s3_spec(bucket="no-such-bucket")))
    status, tested = api["bob"].post(f"{PATH}/data/test")
    assert (status, tested["ok"], tested["path"]) == (200, False, "spec.s3.bucket")
    assert "no such bucket" in tested["message"]


def test_a_used_datastore_is_a_conflict(api: dict[str, Api], store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from datastores import extension_points
    from portal.extension_points import ExtensionPoint

    finder = lambda stores: {each.pk: [extension_points.Use("show1", "/x")] for each in stores}  # noqa: E731
    monkeypatch.setattr(extension_points, "finders", ExtensionPoint(finder))
    assert api["bob"].get(f"{PATH}/data")[1]["status"]["usedBy"] == ["show1"]
    status, problem = api["bob"].delete(f"{PATH}/data")
    assert (status, "show1" in problem["detail"]) == (409, True)
