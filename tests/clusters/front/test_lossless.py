"""What a front loses of the requests of fifty callers: nothing while routes change, databases are away and it is ended itself;
of a replica that is killed, what that was being asked."""

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

from clusters.models import Front as Row
from clusters.models import Replica, Revision, Service
from tests.clusters.front.fronts import HOST, Front, Load, Wire, World
from tests.running import eventually

pytestmark = pytest.mark.timeout(120)
# Requests that one front has in flight at one replica at most.
AT_ONCE = 32


def said(world: World) -> dict[str, Any]:
    """Of the service, by the row of the one front."""
    found: dict[str, Any] = Row.objects.get().services.get(str(world.service.pk), {})
    return found


def led(world: World, *slots: int, held: Mapping[int, str] = MappingProxyType({})) -> Revision:
    """A revision that answers, with replicas, of which some may be `held`."""
    with world.route():
        found = world.revision(1, weight=100)
        for slot in slots:
            world.replica(found, slot, held=held.get(slot, ""))
    return found


def swap(world: World, old: int, new: int) -> None:
    """As the loop does it: one joins the route, and another one leaves it."""
    with world.route():
        world.replica(Revision.objects.get(), new)
        Replica.objects.filter(slot=old).update(state="draining")


def test_replicas_that_are_killed_lose_what_they_were_being_asked_and_the_next_requests_go_elsewhere(
    world: World, front: Front
) -> None:
    led(world, 1, 2, 3, 4, held={2: "handed", 3: "entrance"})
    with Load(front, world.token) as load:
        load.more()
        assert load.done.keys() == {"replica-1", "replica-2", "replica-3", "replica-4"}
        for slot in (1, 2, 3):
            world.kill(slot)
            load.more(300)
    lost = Counter(caller for caller, _ in load.failed)
    assert {text[:4] for _, text in load.failed} <= {"502 "}, load.failed[:3]
    assert len(load.failed) <= 3 * AT_ONCE
    assert max(lost.values()) <= 3, "a caller lost what it was asking, and nothing after it"


def test_who_leaves_the_route_is_asked_nothing_any_more_once_the_front_has_said_so(world: World, front: Front) -> None:
    led(world, 1)
    with Load(front, world.token) as load:
        load.more()
        one = str(Replica.objects.get().pk)
        swap(world, 1, 2)
        route = Service.objects.get().route
        front.until(lambda: said(world)["route"] >= route and one not in said(world)["inFlight"])
        world.kill(1)
        load.more()
    assert load.failed == []
    assert load.done.keys() == {"replica-1", "replica-2"}


@pytest.fixture
def wire(world: World, tmp_path: Path) -> Iterator[tuple[Wire, Front]]:
    """A front with a wire to its database."""
    wire = Wire()
    front = Front(tmp_path, wire.address)
    front.until(front.ready)
    yield wire, front
    front.process.kill()
    front.process.wait()
    wire.end()
    assert "Traceback" not in front.log.read_text(), front.log.read_text()[-3000:]


def test_without_its_database_it_goes_on_and_starts_again_with_what_it_knew_and_catches_up_then(
    world: World, wire: tuple[Wire, Front]
) -> None:
    cable, front = wire
    led(world, 1)
    front.until(lambda: front.ask(token=world.token).status == 200)
    with Load(front, world.token) as load:
        load.more()
        cable.cut()
        load.more()
        swap(world, 1, 2)
        load.more()
        assert load.done.keys() == {"replica-1"}, "it has not heard of the other one"
        cable.mend()
        front.until(lambda: "replica-2" in load.done)
        front.until(lambda: said(world)["inFlight"].keys() == {str(Replica.objects.get(slot=2).pk)})
    assert load.failed == []
    cable.cut()
    front.process.kill()
    front.process.wait()
    front.restart()
    front.until(front.ready)
    assert front.ask(token=world.token).json["who"] == "replica-2"


def test_one_that_is_ended_answers_what_it_has_taken_though_its_database_says_nothing(
    world: World, wire: tuple[Wire, Front]
) -> None:
    cable, front = wire
    led(world, 1)
    with Load(front, world.token, path="/v2?seconds=0.3") as load:
        load.more(60)
        cable.hold()
        front.process.send_signal(signal.SIGTERM)
        front.until(lambda: front.ask("/.portal/health").json["state"] == "ending")
        late = front.ask(token=world.token)
        assert (late.status, late.headers["Connection"]) == (200, "close")
        assert front.process.wait(20) == 0
    assert load.failed == []


def asking(front: Front, token: str) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", front.port))
    found.settimeout(30)
    found.sendall(f"GET /v2 HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return found


def answered(line: socket.socket) -> tuple[str, str]:
    """The status, and who answered."""
    with line, line.makefile("rb") as file:
        status = file.readline().split()[1].decode()
        length = 0
        while (header := file.readline().strip().lower()) != b"":
            name, _, value = header.partition(b": ")
            length = int(value) if name == b"content-length" else length
        return status, json.loads(file.read(length)).get("who", "")


def test_a_hundred_wait_for_one_that_sleeps_and_who_hangs_up_makes_room_for_the_next(
    world: World, front: Front
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("LISTEN services_wanted")
    front.until(lambda: front.ask(token="gps_no").status == 401)
    lines = [asking(front, world.token) for _ in range(100)]
    front.until(lambda: said(world).get("waiting") == 100)
    one_more = front.ask(token=world.token)
    assert (one_more.status, one_more.headers["Retry-After"]) == (503, "5")
    assert one_more.error == "Too many requests wait for this service. Try again."
    lines.pop(50).close()
    front.until(lambda: said(world)["waiting"] == 99)
    lines.append(asking(front, world.token))
    front.until(lambda: said(world)["waiting"] == 100)
    assert front.ask(token=world.token).status == 503

    def heard() -> bool:
        connection.connection.poll()
        return str(world.service.pk) in {each.payload for each in connection.connection.notifies}

    assert eventually(heard, 10), "whoever starts replicas is told"
    led(world, 1)
    assert {answered(each) for each in lines} == {("200", "replica-1")}
