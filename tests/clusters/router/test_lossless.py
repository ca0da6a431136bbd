"""Requests of fifty callers that a router loses: none while routes change, its database is down, or the router itself is stopped;
if a replica is killed, only those in flight there."""

from __future__ import annotations

import json
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from django.db import connection

from clusters.services.models import Replica, Revision, Service
from clusters.services.models import Router as Row
from tests.clusters.router.routers import HOST, Load, Router, Wire, World
from tests.running import eventually

pytestmark = pytest.mark.timeout(120)
# Maximum requests in flight from one router to one replica.
AT_ONCE = 32


def said(world: World) -> dict[str, Any]:
    """The router's own state of the service, from its row."""
    found: dict[str, Any] = Row.objects.get().services.get(str(world.service.pk), {})
    return found


def led(world: World, *slots: int, held: Mapping[int, str] = MappingProxyType({})) -> Revision:
    """A revision that gets all requests, with replicas of which some may be `held`."""
    with world.route():
        found = world.revision(1, weight=100)
        for slot in slots:
            world.replica(found, slot, held=held.get(slot, ""))
    return found


def swap(world: World, old: int, new: int) -> None:
    """As the loop does it: one replica joins the route and another leaves."""
    with world.route():
        world.replica(Revision.objects.get(), new)
        Replica.objects.filter(slot=old).update(state="draining")


def test_replicas_that_are_killed_lose_what_they_were_being_asked_and_the_next_requests_go_elsewhere(
    world: World, router: Router
) -> None:
    led(world, 1, 2, 3, 4, held={2: "handed", 3: "entrance"})
    with Load(router, world.token) as load:
        load.more()
        assert load.done.keys() == {"replica-1", "replica-2", "replica-3", "replica-4"}
        for slot in (1, 2, 3):
            world.kill(slot)
            load.more(300)
    lost = Counter(caller for caller, _ in load.failed)
    assert {text[:4] for _, text in load.failed} <= {"502 "}, load.failed[:3]
    assert len(load.failed) <= 3 * AT_ONCE
    assert max(lost.values()) <= 3, "a caller lost what it was asking, and nothing after it"


def test_who_leaves_the_route_is_asked_nothing_any_more_once_the_router_has_said_so(
    world: World, router: Router
) -> None:
    led(world, 1)
    with Load(router, world.token) as load:
        load.more()
        one = str(Replica.objects.get().pk)
        swap(world, 1, 2)
        route = Service.objects.get().route
        router.until(lambda: said(world)["route"] >= route and one not in said(world)["inFlight"])
        world.kill(1)
        load.more()
    assert load.failed == []
    assert load.done.keys() == {"replica-1", "replica-2"}


@pytest.fixture
def wire(world: World, tmp_path: Path) -> Iterator[tuple[Wire, Router]]:
    """A router whose database connection is a `Wire`."""
    wire = Wire()
    router = Router(tmp_path, wire.address)
    router.until(router.ready)
    yield wire, router
    router.process.kill()
    router.process.wait()
    wire.end()
    assert "Traceback" not in router.log.read_text(), router.log.read_text()[-3000:]


def test_without_its_database_it_goes_on_and_starts_again_with_what_it_knew_and_catches_up_then(
    world: World, wire: tuple[Wire, Router]
) -> None:
    cable, router = wire
    led(world, 1)
    router.until(lambda: router.ask(token=world.token).status == 200)
    with Load(router, world.token) as load:
        load.more()
        cable.cut()
        load.more()
        swap(world, 1, 2)
        load.more()
        assert load.done.keys() == {"replica-1"}, "it has not heard of the other one"
        cable.mend()
        router.until(lambda: "replica-2" in load.done)
        router.until(lambda: said(world)["inFlight"].keys() == {str(Replica.objects.get(slot=2).pk)})
    assert load.failed == []
    cable.cut()
    router.process.kill()
    router.process.wait()
    router.restart()
    router.until(router.ready)
    assert router.ask(token=world.token).json["who"] == "replica-2"


def test_one_that_is_ended_answers_what_it_has_taken_though_its_database_says_nothing(
    world: World, wire: tuple[Wire, Router]
) -> None:
    cable, router = wire
    led(world, 1)
    with Load(router, world.token, path="/v2?seconds=0.3") as load:
        load.more(60)
        cable.hold()
        router.process.send_signal(signal.SIGTERM)
        router.until(lambda: router.ask("/.portal/health").json["state"] == "ending")
        late = router.ask(token=world.token)
        assert (late.status, late.headers["Connection"]) == (200, "close")
        assert router.process.wait(20) == 0
    assert load.failed == []


def asking(router: Router, token: str) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", router.port))
    found.settimeout(30)
    found.sendall(f"GET /v2 HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return found


def answered(line: socket.socket) -> tuple[str, str]:
    """The status, and the name of the replica."""
    with line, line.makefile("rb") as file:
        status = file.readline().split()[1].decode()
        length = 0
        while (header := file.readline().strip().lower()) != b"":
            name, _, value = header.partition(b": ")
            length = int(value) if name == b"content-length" else length
        return status, json.loads(file.read(length)).get("who", "")


def test_a_hundred_wait_for_one_that_sleeps_and_who_hangs_up_makes_room_for_the_next(
    world: World, router: Router
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("LISTEN services_wanted")
    router.until(lambda: router.ask(token="gps_no").status == 401)
    lines = [asking(router, world.token) for _ in range(100)]
    router.until(lambda: said(world).get("waiting") == 100)
    one_more = router.ask(token=world.token)
    assert (one_more.status, one_more.headers["Retry-After"]) == (503, "5")
    assert one_more.error == "Too many requests wait for this service. Try again."
    lines.pop(50).close()
    router.until(lambda: said(world)["waiting"] == 99)
    lines.append(asking(router, world.token))
    router.until(lambda: said(world)["waiting"] == 100)
    assert router.ask(token=world.token).status == 503

    def heard() -> bool:
        connection.connection.poll()
        return str(world.service.pk) in {each.payload for each in connection.connection.notifies}

    assert eventually(heard, 10), "whoever starts replicas is told"
    led(world, 1)
    assert {answered(each) for each in lines} == {("200", "replica-1")}
