"""Datastore manifests: what is accepted, what is refused and at which field, and that secrets stay inside."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from datastores.specs import DatastoreManifest, relative_path, size_bytes

S3 = {"server": "http://10.1.2.3:9000", "access_key": "AKIAEXAMPLE", "secret_key": "wJalrXUtnFEMI", "bucket": "tmp"}


def manifest(spec: Any, **metadata: str) -> DatastoreManifest:
    return DatastoreManifest.model_validate(
        {"kind": "datastore", "metadata": {"name": "data", "appcode": "ops-demo"} | metadata, "spec": spec}
    )


def paths(spec: Any, **metadata: str) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        manifest(spec, **metadata)
    return [".".join(str(part) for part in error["loc"]) for error in caught.value.errors()]


def test_the_manifests_of_the_mission_are_taken_as_they_are() -> None:
    nfs = manifest({"nfs": {"server": "10.0.0.7", "path": "/data/elearn/output"}}, name="demo-nfs-output")
    assert (nfs.spec.kind, nfs.spec.public) == ("nfs", {"server": "10.0.0.7", "path": "/data/elearn/output"})
    s3 = manifest({"s3": S3})
    assert s3.spec.kind == "s3"
    assert s3.spec.secret == "wJalrXUtnFEMI"
    assert s3.spec.public == {
        "server": "http://10.1.2.3:9000",
        "access_key": "AKIAEXAMPLE",
        "bucket": "tmp",
        "prefix": "",
        "region": "us-east-1",
    }


def test_a_volume_has_a_size_and_any_storage_class() -> None:
    spec = manifest({"volume": {"storage_class": "ceph-rbd", "size": "20Gi"}}).spec
    expected = {"storage_class": "ceph-rbd", "size": "20Gi", "access_mode": "ReadWriteOnce"}
    assert (spec.kind, spec.public, spec.secret) == ("volume", expected, "")
    assert manifest({"volume": {"size": "2Ti"}}).spec.public["storage_class"] == ""
    assert [size_bytes(size) for size in ("512Mi", "1Gi", "2Ti")] == [2**29, 2**30, 2**41]


def test_a_secret_never_shows() -> None:
    store = manifest({"s3": S3})
    for text in (repr(store), str(store), str(store.model_dump()), store.model_dump_json(), str(store.spec.public)):
        assert "wJalrXUtnFEMI" not in text


def test_a_refusal_never_repeats_a_secret() -> None:
    for wrong in ("wJalr with a space", "wJalr\nline", ["wJalr"], {"a": "wJalr"}, "wJalr" * 200):
        with pytest.raises(ValidationError) as caught:
            manifest({"s3": S3 | {"secret_key": wrong}})
        assert "wJalr" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("server", "10.1.2.3:9000"),
        ("server", "ftp://10.1.2.3"),
        ("server", "http://"),
        ("server", "http://user:password@host"),
        ("server", "http://host/path"),
        ("server", "http://host?x=1"),
        ("server", "http://host:99999"),
        ("server", "http://ho st"),
        ("server", "http://host#x"),
        ("bucket", "no"),
        ("bucket", "Upper"),
        ("bucket", "a/b"),
        ("access_key", ""),
        ("access_key", "with space"),
        ("secret_key", "line\nbreak"),
        ("prefix", "../other"),
        ("prefix", "a//b"),
        ("prefix", "a\0b"),
        ("region", "US EAST"),
        ("server", 7),
        ("unknown", "x"),
    ],
)
def test_a_wrong_field_of_s3_is_named(field: str, value: Any) -> None:
    assert paths({"s3": S3 | {field: value}}) == [f"spec.s3.{field}"]


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"nfs": {"server": "host", "path": "relative"}}, "spec.nfs.path"),
        ({"nfs": {"server": "host", "path": "/a/../b"}}, "spec.nfs.path"),
        ({"nfs": {"server": "host name", "path": "/a"}}, "spec.nfs.server"),
        ({"nfs": {"server": "host"}}, "spec.nfs.path"),
        ({"local": {"path": "/a/../../etc"}}, "spec.local.path"),
        ({"local": {"path": "//etc"}}, "spec.local.path"),
        ({"volume": {}}, "spec.volume.size"),
        ({"volume": {"size": "20G"}}, "spec.volume.size"),
        ({"volume": {"size": "0Gi"}}, "spec.volume.size"),
        ({"volume": {"size": "101Ti"}}, "spec.volume.size"),
        ({"volume": {"size": 20}}, "spec.volume.size"),
        ({"volume": {"size": "20Gi", "storage_class": "Ceph RBD"}}, "spec.volume.storage_class"),
        ({"volume": {"size": "20Gi", "access_mode": "ReadOnlyMany"}}, "spec.volume.access_mode"),
        ({}, "spec"),
        ({"s3": S3, "local": {"path": "/a"}}, "spec"),
        ({"ceph": {}}, "spec.ceph"),
        ([], "spec"),
        (None, "spec"),
    ],
)
def test_a_wrong_spec_is_named(spec: Any, where: str) -> None:
    assert where in paths(spec)


@pytest.mark.parametrize("name", ["", "Data", "1data", "data-", "-data", "da_ta", "d" * 64, "dat\n", "dätä"])
def test_a_name_is_a_dns_label(name: str) -> None:
    assert paths({"local": {"path": "/a"}}, name=name) == ["metadata.name"]


def test_what_was_read_can_be_sent_back() -> None:
    body = {"metadata": {"name": "data", "appcode": "ops-demo"}, "spec": {"local": {"path": "/a/"}}, "status": {"x": 1}}
    before = copy.deepcopy(body)
    assert DatastoreManifest.model_validate(body).spec.public == {"path": "/a"}
    assert body == before


@given(st.text(max_size=40))
def test_a_relative_path_never_leaves(text: str) -> None:
    try:
        path = relative_path(text)
    except ValueError:
        return
    assert not path.startswith("/")
    assert not {"", ".", ".."} & set(path.split("/")) or path == ""
    assert path.isprintable()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_taken_or_refused_but_never_an_accident(value: Any) -> None:
    for wrapped in (value, {"metadata": value, "spec": value}, {"metadata": {}, "spec": {"s3": value, "nfs": value}}):
        with pytest.raises(ValidationError):
            DatastoreManifest.model_validate(wrapped)
