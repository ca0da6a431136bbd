"""Drift of services: the hourly counts of a revision's replicas, which are real model servers."""

from __future__ import annotations

import datetime as dt
import json
import socket
import socketserver
import threading
from typing import Any

import pytest
from django.utils import timezone

from clusters.model_registry import drift
from clusters.services import drift as drifting
from clusters.services.models import Replica, RevisionDrift
from portal.models import Event
from tests.clusters.frameworks.test_serve import served
from tests.mortal import child

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = dt.timedelta(hours=1)
MODEL = """
class Model:
    inputs = [("x", "FP32", (-1,))]
    outputs = [("y", "FP32", (-1,))]

    def __init__(self, folder):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"] * 2}
"""


@pytest.fixture
def replica(service: Any) -> Any:
    """replica("127.0.0.1:…") → a serving replica of the only revision."""

    def make(address: str) -> Replica:
        slot = Replica.objects.count() + 1
        revision = service.revisions.get()
        return Replica.objects.create(service=service, revision=revision, slot=slot, state="serving", address=address)

    return make


def reading(*seen: int, rows: int | None = None, since: str = "2026-05-03T14:02:00Z", name: str = "x") -> drift.Reading:
    columns = [{"tensor": name, "column": 0, "kind": "input", "edges": [1], "expected": [0.5, 0.5], "seen": seen}]
    return drift.read({"since": since, "rows": sum(seen) if rows is None else rows, "columns": columns})


def hours() -> list[tuple[int, list[Any], bool]]:
    rows = RevisionDrift.objects.order_by("hour")
    return [(row.rows, [each["seen"] for each in row.columns], row.alerted) for row in rows]


def test_what_a_model_server_counts_is_added_up_by_the_hour_and_an_alert_is_said_once(
    replica: Any, tmp_path: Any
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "training-sample.json").write_text(json.dumps({"inputs": {"x": list(range(100))}}))
    now = timezone.now()
    with served(tmp_path, "python", {"instances": [1]}) as server:
        made = replica(f"127.0.0.1:{server.port}")
        # The server's own model name.
        made.revision.model = "m/3"
        made.revision.save()
        drifting.tick(now)
        assert hours() == []  # no request yet
        server.ask("/v1/models/m:predict", {"instances": [5] * 150})
        drifting.tick(now)
        drifting.tick(now)
        assert hours() == [(150, [[150] + [0] * 9], False)]
        assert not Event.objects.filter(verb="service.drift").exists()  # too few rows
        server.ask("/v1/models/m:predict", {"instances": [5] * 150})
        drifting.tick(now)
        drifting.tick(now)
        assert hours() == [(300, [[300] + [0] * 9], True)]
        server.ask("/v1/models/m:predict", {"instances": [5] * 50})
        drifting.tick(now + HOUR)
        server.ask("/v1/models/m:predict", {"instances": [5] * 250})
        drifting.tick(now + HOUR)
    assert [(rows, alerted) for rows, _, alerted in hours()] == [(300, True), (300, True)]
    event = Event.objects.get(verb="service.drift")
    assert event.message.startswith("m/3 is asked or answers something else than its training sample has: input x[0] (")
    assert (event.data["revision"], event.data["columns"]) == (1, 1)


def test_an_alert_that_ended_may_begin_again(replica: Any) -> None:
    made, now = replica("127.0.0.1:1"), timezone.now()
    told = []
    for n, seen in enumerate([(900, 0), (1000, 10), (1500, 510), (5000, 600)]):
        drifting.keep(made.pk, reading(*seen), now + n * HOUR)
        told.append(Event.objects.filter(verb="service.drift").count())
    # Strong drift; too few rows; no drift; strong drift again.
    assert [alerted for _, _, alerted in hours()] == [True, True, False, True]
    assert told == [1, 1, 1, 2]


def test_a_program_that_began_anew_and_a_second_replica_are_added_to_what_was_there(replica: Any) -> None:
    one, two, now = replica("127.0.0.1:1"), replica("127.0.0.1:2"), timezone.now()
    drifting.keep(one.pk, reading(10, 5), now)
    drifting.keep(two.pk, reading(1, 1), now)
    drifting.keep(one.pk, reading(2, 3, since="2026-05-03T15:00:00Z"), now)
    drifting.keep(one.pk, reading(4, 3, since="2026-05-03T15:00:00Z"), now)
    assert hours() == [(24, [[15, 9]], False)]
    Replica.objects.filter(pk=two.pk).update(state="gone")
    drifting.keep(two.pk, reading(100, 1), now)
    assert hours()[0][0] == 24


def test_whoever_dies_while_it_is_written_counts_nothing_twice(replica: Any) -> None:
    made, now = replica("127.0.0.1:1"), timezone.now()
    tries = 0
    while child(tries, lambda: drifting.keep(made.pk, reading(900, 0), now)):
        tries += 1
        assert hours() == []
    assert tries > 5
    drifting.keep(made.pk, reading(900, 0), now)
    assert hours() == [(900, [[900, 0]], True)]
    assert Event.objects.filter(verb="service.drift").count() == 1


def test_whatever_a_program_answers_it_keeps_no_other_from_being_counted(
    replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drifting, "PATIENCE", 2)
    monkeypatch.setattr(drifting, "AT_ONCE", 2)
    monkeypatch.setattr(drift, "MOST_BYTES", 10_000)
    good = reading(150, 50).model_dump_json().encode()
    huge = good.replace(b"200", str(2**53 - 1).encode())
    answers = [
        b"", b"no HTTP", b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 9_000, b"HTTP/1.1 200 OK\r\n\r\n" + good + b" " * 10_000,
        b"HTTP/1.1 500 No\r\n\r\n" + good, b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n" + huge, b"HTTP/1.1 200 OK\r\n\r\n" + good,
    ]  # fmt: skip
    asked, held, others, waited = [], threading.Event(), threading.Event(), []

    class Says(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            number = self.server.server_address[1]
            asked.append(number)
            if len(asked) == len(answers):
                others.set()
            self.request.recv(1000)
            self.request.sendall(said[number])
            if not said[number]:
                waited.append(others.wait(1.5))
                held.wait(10)
            self.request.shutdown(socket.SHUT_WR)

    servers, said, rows = [], {}, []
    for each in answers:
        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Says)
        said[server.server_address[1]] = each
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        rows.append(replica(f"127.0.0.1:{server.server_address[1]}"))
    resting: dict[int, dt.datetime] = {}
    now = timezone.now()
    drifting.tick(now, resting)
    drifting.tick(now, resting)
    held.set()
    for server in servers:
        server.shutdown()
        server.server_close()
    assert waited == [True], "while one says nothing all others are asked"
    # Replicas without a useful answer are not polled again soon.
    assert set(resting) == {each.pk for each in rows[:-2]}
    assert len(asked) == len(answers) + 2
    assert [row[0] for row in hours()] == [2**53 - 1]
