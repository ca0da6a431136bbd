"""Rate and stream limits, and a portal with one of its parts missing."""

from __future__ import annotations

import logging
import runpy
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from django.http import StreamingHttpResponse
from django.test import Client

from clusters.clouds.drivers.base import LogChunk
from clusters.logs.read import LogStream
from portal.api.problems import Unavailable
from portal.web import limits
from portal.web.limits import Room
from tests.api.client import Api, appcode, manifest

CLUSTERS = "/appcodes/ops-demo/clusters"


@pytest.fixture
def no_cache(settings: Any) -> None:
    """Configures a cache whose server does not exist."""
    backend = settings.CACHES["default"]["BACKEND"]
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": "redis://127.0.0.1:9/0"}}


def test_a_loop_that_ran_away_is_told_when_to_come_back(
    as_alice: Api, as_bob: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.web.limits.REQUESTS_PER_WINDOW", 3)
    # If a minute ends while we count, up to twice as many requests pass.
    let_through = 0
    while (told := as_alice.get("/me"))[0] == 200:
        let_through += 1
        assert let_through <= 6
    assert let_through >= 3
    status, answer = told
    assert (status, answer["type"]) == (429, "urn:problem-type:portal:throttled")
    assert 1 <= int(as_alice.last.headers["Retry-After"]) <= 61
    assert as_bob.get("/me")[0] == 200


def test_a_page_that_sends_for_ever_is_told_when_to_come_back(people: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portal.web.limits.REQUESTS_PER_WINDOW", 3)
    browser = Client()
    browser.force_login(people.alice)
    let_through = 0
    while (told := browser.post("/frame/theme", {"theme": "dark"})).status_code < 400:
        let_through += 1
        # A minute may end while we count.
        assert let_through <= 6
    assert told.status_code == 429
    assert 1 <= int(told.headers["Retry-After"]) <= 61
    assert b"Nothing was changed." in told.content
    assert browser.get("/").status_code == 200


@pytest.mark.parametrize("address", [f"/api/v1{CLUSTERS}", "/accounts/login/"])
def test_a_body_that_does_not_say_how_long_it_is_is_not_taken_for_none(address: str) -> None:
    told = Client().post(address, b"", content_type="application/json", headers={"Transfer-Encoding": "chunked"})
    assert told.status_code == 411
    assert told.json()["detail"] == "Say how long the body is: send Content-Length, and not Transfer-Encoding."


def test_without_the_cache_the_api_works(as_alice: Api, no_cache: None) -> None:
    assert as_alice.get("/me")[0] == 200
    assert as_alice.post(CLUSTERS, manifest())[0] == 201


def datastore(name: str) -> dict[str, Any]:
    spec = {"s3": {"server": "http://127.0.0.1:1", "access_key": "KEY", "secret_key": "secret", "bucket": "data"}}
    return {"kind": "datastore", "metadata": {"name": name, "appcode": "ops-demo"}, "spec": spec}


@pytest.mark.parametrize(
    ("setting", "address", "body", "field"),
    [
        ("REQUESTS_PER_PERSON", "/appcodes", appcode, "metadata.name"),
        ("DATASTORES_PER_APPCODE", "/appcodes/ops-demo/datastores", datastore, "metadata.appcode"),
        ("CLUSTERS_PER_APPCODE", CLUSTERS, manifest, "metadata.appcode"),
    ],
)
def test_nobody_makes_things_without_end(
    as_alice: Api, settings: Any, setting: str, address: str, body: Any, field: str
) -> None:
    setattr(settings, setting, 1)
    assert as_alice.post(address, body("first"))[0] == 201
    status, answer = as_alice.post(address, body("second"))
    assert (status, [error["path"] for error in answer["errors"]]) == (422, [field])
    if setting == "CLUSTERS_PER_APPCODE":
        assert as_alice.delete(f"{CLUSTERS}/first")[0] < 300
        assert as_alice.post(address, body("second"))[0] == 201


def test_places_are_few_for_one_and_limited_for_all() -> None:
    room = Room(lambda: 3, 2, yours="yours", full="full")
    taken = [room.enter(901), room.enter(901)]
    with pytest.raises(Unavailable, match="yours"):
        room.enter(901)
    taken.append(room.enter(902))
    for person in (902, 903):
        with pytest.raises(Unavailable, match="full"):
            room.enter(person)
    place = taken.pop()
    for _ in range(2):
        place.release()
    with room.enter(903), pytest.raises(Unavailable, match="full"):
        room.enter(902)
    room.enter(902)


def test_pages_are_served_when_every_place_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTAL_WEB_PORT", "1")
    threads = runpy.run_path("portal/gunicorn.conf.py")["threads"]
    assert sum(room.size() for room in (limits.STREAMS, limits.TRANSFERS, limits.LOOKS)) < threads


def test_a_stream_that_nobody_read_gives_its_place_back(settings: Any, db: None) -> None:
    """For a HEAD request, or a client that left before the first byte, only `close` is called."""
    settings.MAX_LOG_STREAMS = 1
    for _ in range(3):
        StreamingHttpResponse(stream(place=limits.STREAMS.enter(904))).close()


@pytest.mark.timeout(30)
def test_who_follows_a_silent_log_and_hangs_up_is_noticed(rf: Any) -> None:
    """Without the check of the socket, this log would be followed until its task ends, which never happens here."""
    theirs, ours = socket.socketpair()
    request = rf.get("/", **{"gunicorn.socket": ours})
    followed: list[int] = []

    class Silent:
        def follow(self, last: LogChunk) -> Iterator[LogChunk]:
            while True:
                followed.append(last.offset)
                if len(followed) == 3:
                    theirs.close()
                yield LogChunk(b"", 0, False)

    with ours:
        place = limits.STREAMS.enter(905)
        assert list(stream(Silent(), place=place, is_gone=lambda: limits.is_gone(request))) == []
        place.release()
    assert len(followed) == 3


def stream(source: Any = None, **more: Any) -> LogStream:
    given = {"follow": True, "is_over": lambda: False, "is_gone": lambda: False, **more}
    return LogStream(source, LogChunk(b"", 0, False), **given)


def test_a_mistake_of_ours_gives_nothing_away_but_an_id_that_is_in_the_log(
    as_alice: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("clusters.cluster.actions.create_cluster", fail)
    with caplog.at_level(logging.ERROR):
        status, answer = as_alice.post(CLUSTERS, manifest())
    assert (status, answer["type"]) == (500, "urn:problem-type:portal:internal-error")
    assert "secret" not in as_alice.last.content.decode()
    assert answer["id"] in answer["detail"]
    assert as_alice.last.headers["X-Request-ID"] == answer["id"]
    record = next(record for record in caplog.records if answer["id"] in record.getMessage())
    assert "secret detail" in str(record.exc_info)


def test_a_database_that_is_away_is_told_as_such(as_alice: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError

    def away(*args: Any, **more: Any) -> None:
        raise OperationalError("connection refused at 10.1.2.3")

    monkeypatch.setattr("clusters.cluster.actions.create_cluster", away)
    status, answer = as_alice.post(CLUSTERS, manifest())
    assert (status, answer["type"]) == (503, "urn:problem-type:portal:unavailable")
    assert as_alice.last.headers["Retry-After"] == "5"
    assert "10.1.2.3" not in as_alice.last.content.decode()
