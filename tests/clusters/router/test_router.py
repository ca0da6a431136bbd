"""The router as a process, with real replicas and the real database: access, routing and counters."""

from __future__ import annotations

import datetime as dt
import socket
import threading
from collections import Counter

import pytest
from django.db.models import Sum
from django.utils import timezone

from clusters.router.histograms import BUCKETS
from clusters.runs.models import Cluster
from clusters.services.models import Replica, Revision, Service, ServiceMinute, ServiceToken
from clusters.services.models import Router as Row
from tests.clusters.router.routers import SPEC, Answered, Router, World

pytestmark = pytest.mark.timeout(120)


def led(router: Router, world: World, count: int = 1) -> list[Answered]:
    return [router.ask("/v2/models/digits/infer", b"[1]", token=world.token) for _ in range(count)]


@pytest.fixture
def one(world: World, router: Router) -> Replica:
    """One replica that gets all requests; the router knows it."""
    with world.route():
        found = world.replica(world.revision(1, weight=100), 1)
    router.until(lambda: router.ask(token=world.token).status == 200)
    return found


def test_who_may_not_ask_hears_no_more_than_that(world: World, router: Router, one: Replica) -> None:
    other = world.new_service("faces")
    theirs = world.new_token("theirs", other)
    old = world.new_token("old", expires_at=timezone.now() - dt.timedelta(seconds=1))
    router.until(lambda: router.ask(host="faces-ops-demo.serve.localhost:8000").status == 401)
    refused = [router.ask(), *(router.ask(token=each) for each in (theirs, old, "gps_guessed", "é"))]
    refused += [router.ask(Authorization="Basic Z3Bz"), router.ask(f"/?token={world.token}")]
    assert {each.status for each in refused} == {401}
    assert len({each.body for each in refused}) == 1
    assert refused[0].headers["WWW-Authenticate"] == "Bearer"
    assert "send one of its tokens" in refused[0].error
    for host in (
        "nobody-here.serve.localhost:8000",
        "serve.localhost:8000",
        "digits-ops-demo.apps.localhost:8000",
        "127.0.0.1",
    ):
        unknown = router.ask(host=host, token=world.token)
        assert (unknown.status, unknown.error) == (404, "There is nothing here that you may open.")
    assert router.ask("/.portal/ticket", token=world.token).status == 404
    assert router.ask(token=world.token, host="digits-ops-demo.serve.localhost:9").status == 404


def test_a_replica_sees_who_asks_and_not_with_what(world: World, router: Router, one: Replica) -> None:
    said = router.ask(
        "/v2/models/digits/infer?a=%2F&b", b"x" * 100_000, token=world.token, X_Portal_Caller="root", X_Own="1",
        Connection="keep-alive, X-Named", X_Named="gone", TE="trailers", Content_Type="application/json",
    )  # fmt: skip
    headers = {name.lower(): value for name, value in said.json["headers"].items()}
    assert (said.json["path"], said.json["size"], said.json["method"]) == (
        "/v2/models/digits/infer?a=%2F&b",
        100_000,
        "POST",
    )
    assert headers == {
        "host": "digits-ops-demo.serve.localhost:8000", "accept-encoding": "identity", "x-own": "1",
        "content-type": "application/json", "content-length": "100000", "x-portal-caller": "checkout",
        "x-portal-gateway": Cluster.objects.get().proof,
    }  # fmt: skip
    assert (said.headers["X-Portal-Revision"], said.headers["X-Own"], said.headers["Server"]) == (
        "1",
        "yes",
        "gpu-cloud",
    )
    assert "X-Portal-Secret" not in said.headers
    assert router.ask(token=world.token, X_PORTAL_CALLER="root").json["headers"]["X-Portal-Caller"] == "checkout"
    assert router.ask("/v2?status=418", token=world.token).status == 418
    head = router.ask(token=world.token, method="HEAD")
    assert (head.status, head.body, int(head.headers["Content-Length"]) > 100) == (200, b"", True)


def test_bodies_have_a_limit_and_long_answers_come_as_they_are_made(world: World, router: Router, one: Replica) -> None:
    assert router.ask(body=b"x" * 16_000_000, token=world.token).json["size"] == 16_000_000
    too_large = router.ask(body=b"x" * 16_000_001, token=world.token)
    assert (too_large.status, too_large.error) == (413, "A request has at most 16 MB.")
    head = f"POST /v2 HTTP/1.1\r\nHost: digits-ops-demo.serve.localhost:8000\r\nAuthorization: Bearer {world.token}\r\n"
    with socket.create_connection(("127.0.0.1", router.port)) as client:
        client.sendall(f"{head}Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 413"), "it is not read first"
    with socket.create_connection(("127.0.0.1", router.port)) as client:
        client.sendall(f"{head}Content-Length: 5\r\nExpect: 100-continue\r\n\r\n".encode())
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"12345")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    with socket.create_connection(("127.0.0.1", router.port)) as client:
        client.sendall(f"{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode())
        assert client.recv(1000).split()[1] == b"400"
    for wrong in (f"Authorization: Bearer {world.token}\0", f"Bearer {world.token}", f"X: {world.token * 400}"):
        with socket.create_connection(("127.0.0.1", router.port)) as client:
            client.sendall(f"GET /v2 HTTP/1.1\r\n{wrong}\r\n\r\n".encode())
            said = client.makefile("rb").read()
        assert (said.split()[1], b"gps_" in said, b"This is no request of HTTP" in said) == (b"400", False, True)
    answer = router.ask("/long", token=world.token)
    assert answer.body == b"".join(bytes([n]) * 65536 for n in range(64))


def test_limits_of_a_token_are_its_own(world: World, router: Router, one: Replica) -> None:
    slow, two = world.new_token("slow", per_second=2), world.new_token("two", at_once=2)
    router.until(lambda: router.ask(token=two).status == 200)
    router.until(lambda: router.ask(token=slow).status == 200)
    said = [router.ask(token=slow) for _ in range(6)]
    over = [each for each in said if each.status == 429]
    assert over
    assert (over[0].error, over[0].headers["Retry-After"]) == ("This token may send 2 requests a second.", "1")

    def slow_one() -> None:
        while router.ask("/slow", b"", token=two).status == 429:
            pass  # an earlier request of this test still held the place

    threads = [threading.Thread(target=slow_one) for _ in range(2)]
    for thread in threads:
        thread.start()
    router.until(lambda: router.ask(token=two).status == 429)
    assert router.ask(token=two).error == "This token may have 2 requests in flight at one time."
    assert router.ask(token=world.token).status == 200
    (world.folder / "go").touch()
    for thread in threads:
        thread.join()
    assert router.ask(token=two).status == 200


def test_of_every_hundred_requests_each_revision_has_its_share_and_a_shadow_has_copies(
    world: World, router: Router
) -> None:
    with world.route():
        old = world.revision(1, weight=90)
        replicas = [world.replica(old, 1), world.replica(old, 2)]
        canary, shadow = world.revision(2, weight=10), world.revision(3, mirrored=True)
        replicas += [world.replica(canary, 3), world.replica(shadow, 4)]
    router.until(lambda: Row.objects.filter(services__has_key=str(world.service.pk)).exists())
    router.until(lambda: router.ask(token=world.token).status == 200)
    said = Counter(each.json["who"] for each in led(router, world, 100))
    assert said["replica-3"] == 10
    assert {said["replica-1"], said["replica-2"]} <= {44, 45, 46}

    router.until(lambda: sum(ServiceMinute.objects.filter(mirrored=True).values_list("requests", flat=True)) == 101)
    counted = Counter[tuple[int, bool]]()
    for row in ServiceMinute.objects.select_related("revision"):
        counted[row.revision.number, row.mirrored] += row.requests
        assert (row.errors, row.refused, sum(row.latency), len(row.latency)) == (0, 0, row.requests, BUCKETS)
        assert row.busy_ms < 60_000
        assert row.bytes_in >= row.requests * 100
        assert row.bytes_out >= row.requests * 100
    assert counted[3, True] == sum(count for (_, copy), count in counted.items() if not copy) == 101
    assert counted[2, False] in (10, 11)


def test_a_dead_shadow_changes_nothing(world: World, router: Router, one: Replica) -> None:
    with world.route():
        world.replica(world.revision(2, mirrored=True), 2)
    world.kill(2)
    assert {each.status for each in led(router, world, 20)} == {200}


def test_what_was_counted_is_written_with_the_words_of_the_model(world: World, router: Router, one: Replica) -> None:
    for path in (
        "/v2?status=400",
        "/v2?status=500",
        "/v2?status=503",
        "/v2?rows=12",
        "/v2?rows=-7",
        "/v2?rows=123456789",
    ):
        router.ask(path, token=world.token)
    router.until(lambda: sum(ServiceMinute.objects.values_list("errors", flat=True)) == 2)
    assert sum(ServiceMinute.objects.values_list("refused", flat=True)) == 1
    # Each request counts one row, except the one with twelve rows and the two with an invalid number.
    counted = lambda: ServiceMinute.objects.aggregate(rows=Sum("rows"), requests=Sum("requests"))  # noqa: E731
    router.until(lambda: counted()["rows"] == counted()["requests"] - 3 + 12)
    router.until(lambda: ServiceToken.objects.get(name="checkout").used_at is not None)


def test_a_revision_that_is_deleted_takes_its_numbers_and_no_others(world: World, router: Router, one: Replica) -> None:
    led(router, world, 3)
    with world.route():
        again = world.revision(2, weight=100)
        world.replica(again, 2)
        Replica.objects.filter(pk=one.pk).delete()
        Revision.objects.filter(number=1).delete()
    router.until(lambda: led(router, world)[0].headers["X-Portal-Revision"] == "2")
    router.until(lambda: ServiceMinute.objects.filter(revision=again).exists())
    assert set(ServiceMinute.objects.values_list("revision", flat=True)) == {again.pk}


def test_a_disabled_service_says_so_and_a_deleted_one_was_never_there(
    world: World, router: Router, one: Replica
) -> None:
    with world.route():
        Service.objects.update(desired="ended")
    router.until(lambda: router.ask(token=world.token).status == 503)
    assert router.ask(token=world.token).error == "This service is stopped."
    with world.route():
        Service.objects.update(deleted_at=timezone.now())
    router.until(lambda: router.ask(token=world.token).status == 404)


def test_one_replica_too_slow_is_a_504(world: World, router: Router, one: Replica) -> None:
    with world.route():
        Service.objects.update(spec=SPEC | {"requestSeconds": 1})
    router.until(lambda: router.ask("/v2?seconds=2.5", token=world.token).status == 504)
    assert router.ask("/v2?seconds=2.5", token=world.token).error == "The replica did not answer within 1 s."


def test_a_router_says_what_it_has_and_says_goodbye(world: World, router: Router, one: Replica) -> None:
    number = str(world.service.pk)
    thread = threading.Thread(target=router.ask, args=("/slow", b""), kwargs={"token": world.token})
    thread.start()

    def said() -> dict[str, object]:
        row = Row.objects.get()
        found: dict[str, object] = row.services.get(number, {})
        return found

    router.until(lambda: said().get("inFlight") == {str(one.pk): 1})
    assert said()["route"] == Service.objects.get().route
    assert said()["waiting"] == 0
    with world.route():
        Replica.objects.update(state="draining")
        Service.objects.update(route=41)
    router.until(lambda: said()["route"] == 42)
    assert said()["inFlight"] == {str(one.pk): 1}, "it is led nobody new, and has one yet"
    (world.folder / "go").touch()
    thread.join()
    router.until(lambda: said()["inFlight"] == {})
    assert router.stop() == 0
    assert not Row.objects.exists()
