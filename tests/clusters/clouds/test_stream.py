"""Input that programs read over S3 themselves: what is requested from the store, and what is refused without a request."""

from __future__ import annotations

import datetime as dt

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers import stream
from clusters.clouds.drivers.base import Mount, S3Source
from clusters.manifest.input import STREAM_ENV

FOLDER = stream.Folder("http://127.0.0.1:9000", "eu-west-1", "data", "in/train", "A" * 20, "S" * 40)
NAMES = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@given(name=NAMES, ranged=st.booleans(), start=NAMES)
def test_it_signs_as_botocore_does(name: str, ranged: bool, start: str) -> None:
    at = dt.datetime.now(dt.UTC).replace(microsecond=0)
    path, query = stream.quoted(f"/data/{name}", [("list-type", "2"), ("start-after", start)])
    headers = {"range": "bytes=0-1"} if ranged else {}
    ours = stream.signed(FOLDER, "GET", path, query, headers, at)
    request = AWSRequest("GET", f"{FOLDER.url}{path}?{query}", headers={"x-amz-content-sha256": stream.EMPTY})
    request.context["timestamp"] = request.headers["X-Amz-Date"] = at.strftime("%Y%m%dT%H%M%SZ")
    theirs = S3SigV4Auth(Credentials(FOLDER.access_key, FOLDER.secret_key), "s3", FOLDER.region)
    signed = theirs.signature(theirs.string_to_sign(request, theirs.canonical_request(request)), request)
    assert ours["authorization"].endswith(f"Signature={signed}")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/data/in/other/a"),
        ("GET", "/data/in/train"),
        ("GET", "/data/in/training/a"),
        ("GET", "/data/in/train/../other/a"),
        ("GET", "/data/in/train/%2e%2e/other/a"),
        ("GET", "/other/in/train/a"),
        ("GET", "//data/in/train/a"),
        ("GET", "/"),
        ("GET", "/data"),
        ("GET", "/data?list-type=2"),
        ("GET", "/data?list-type=2&prefix="),
        ("GET", "/data?list-type=2&prefix=in/"),
        ("GET", "/data?prefix=in/training/"),
        ("GET", "/data?prefix=in/train&delimiter=/"),
        ("GET", "/data?prefix=in/train/&prefix="),
        ("GET", "/data?prefix=in/train/../other/"),
        ("GET", "/data?acl"),
        ("GET", "/data?uploads&prefix=in/train/"),
        ("GET", "/data?versions&prefix=in/train/"),
        ("GET", "/data/in/train/a?acl"),
        ("GET", "/data/in/train/a?tagging"),
        ("GET", "/data/in/train/a?versionId=1"),
        ("HEAD", "/data?prefix=in/"),
    ],
)
def test_nothing_else_is_asked_for(method: str, target: str) -> None:
    with pytest.raises(stream.Refused) as caught:
        stream.asked(FOLDER, method, target)
    assert (caught.value.status, caught.value.code) == (403, "AccessDenied")


@given(name=NAMES.filter(lambda name: not {".", ".."} & set(name.split("/"))))
def test_what_lies_there_is_asked_for_as_it_is_called(name: str) -> None:
    path, _ = stream.quoted(f"/data/in/train/{name}", [])
    assert stream.asked(FOLDER, "GET", f"{path}?x-id=GetObject") == (f"/data/in/train/{name}", [])
    listed = stream.asked(FOLDER, "GET", "/data?list-type=2&prefix=in/train&max-keys=2")
    assert listed == ("/data", [("list-type", "2"), ("max-keys", "2"), ("prefix", "in/train/")])


def test_nobody_may_set_its_variables() -> None:
    source = S3Source("http://s3", "data", "in", "key", "secret")
    mount = Mount("/elearn/input", True, source, stream_key="0123456789" * 6)
    assert set(mount.stream_variables("http://127.0.0.1:1")) == STREAM_ENV
