"""GPU usage from Prometheus: a real HTTP server that speaks its API, and all ways in which an answer is useless."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clusters.clouds.drivers.base import CloudError, Sample
from clusters.clouds.drivers.kubernetes import prometheus, sampling
from clusters.clouds.drivers.kubernetes.settings import Settings

NOW = dt.datetime(2026, 11, 21, 12, 30, 45, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
LAST = dt.datetime(2026, 11, 21, 12, 29, tzinfo=dt.UTC)

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """A server at `address` that answers with `answer`; `asked` lists the requests."""

    def __init__(self) -> None:
        self.answer: Answer = reply(matrix())
        self.asked: list[tuple[str, dict[str, list[str]], str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                server.asked.append((url.path, parse_qs(url.query), self.headers.get("Authorization", "")))
                try:
                    server.answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.http.shutdown()
    one.http.server_close()


def series(name: str, *values: tuple[dt.datetime, str], **labels: str) -> dict[str, Any]:
    """A series as in Prometheus's answer. Its times are evaluation times, the ends of the minutes."""
    named = labels or {"namespace": "monitoring", "pod": "dcgm-x", "exported_namespace": "ops", "exported_pod": name}
    return {"metric": named, "values": [[(minute + MINUTE).timestamp(), text] for minute, text in values]}


def matrix(*found: dict[str, Any]) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(found)}}).encode()


def reply(body: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_one_question_for_all_pods_and_minutes(server: Server):
    minutes = [LAST - MINUTE, LAST]
    server.answer = reply(
        matrix(
            series("a-0", (LAST - MINUTE, "0.25"), (LAST, "1.004")),
            series("b-0", (LAST, "0.5"), namespace="maps", pod="b-0"),
            # The exporter was replaced within that minute.
            series("c", (LAST, "0.2")), {**series("c", (LAST, "0.4")), "metric": {**series("c")["metric"], "pod": "dcgm-y"}},
            series("odd", (LAST, "NaN"), (LAST, "+Inf"), (LAST, "-3"), (LAST, "97"), (NOW, "0.3")),
        )
    )  # fmt: skip
    found = prometheus.read(f"{server.address}/", "s3cret", minutes)
    assert found == {
        (LAST - MINUTE, ("ops", "a-0")): 0.25,
        (LAST, ("ops", "a-0")): 1.0,
        (LAST, ("maps", "b-0")): 0.5,
        (LAST, ("ops", "c")): pytest.approx(0.3),
    }
    ((path, asked, token),) = server.asked
    assert (path, token) == ("/api/v1/query_range", "Bearer s3cret")
    assert asked["query"] == [prometheus.QUERY]
    assert (asked["start"], asked["end"], asked["step"]) == (
        [f"{LAST.timestamp():.0f}"],
        [f"{LAST.timestamp() + 60:.0f}"],
        ["60"],
    )


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (reply(b"<html>Grafana</html>"), "not its API's"),
        (reply(b'{"status":"error","errorType":"bad_data","error":"x"}'), "not its API's"),
        (reply(b'{"status":"success","data":{"resultType":"vector","result":[]}}'), "not its API's"),
        (reply(b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{}}]}}'), "not its API's"),
        (reply(b'{"status":"success","data":{"resultType":"matrix","result":[7]}}'), "not its API's"),
        (reply(b"[]"), "not its API's"),
        (reply(b""), "not its API's"),
        (reply(b"oops", 503), "HTTP 503"),
        (reply(b"", 401), "does not accept the token"),
        (reply(b"", 302, Location="http://127.0.0.1:1/"), "another address"),
        (lambda handler: handler.connection.close(), "cut off"),
    ],
)
def test_what_is_no_answer_is_said_in_a_sentence(server: Server, answer: Answer, sentence: str):
    server.answer = answer
    with pytest.raises(CloudError, match=sentence) as raised:
        prometheus.read(server.address, "s3cret", [LAST])
    assert "s3cret" not in str(raised.value)
    assert len(server.asked) == 1


def test_nobody_listens():
    with pytest.raises(CloudError, match="nothing listens"):
        prometheus.read("http://127.0.0.1:1", "", [LAST])


def test_an_answer_has_a_size(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prometheus, "MOST_BYTES", 1 << 20)
    server.answer = reply(b" " * (3 << 20))
    with pytest.raises(CloudError, match="more than 1 MiB"):
        prometheus.read(server.address, "", [LAST])


def test_an_answer_that_drips_has_a_time(server: Server, monkeypatch: pytest.MonkeyPatch):
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        for _ in range(100_000):
            handler.wfile.write(b" ")
            time.sleep(0.02)

    monkeypatch.setattr(prometheus, "SECONDS", 0.3)
    server.answer = drip
    began = time.monotonic()
    with pytest.raises(CloudError, match="did not answer within"):
        prometheus.read(server.address, "", [LAST])
    assert time.monotonic() - began < 60  # instead of more than half an hour


def test_minutes_that_are_due():
    assert prometheus.minutes_due("", NOW) == [LAST]
    assert prometheus.minutes_due("", NOW - dt.timedelta(seconds=20)) == [LAST - MINUTE]
    assert prometheus.minutes_due(LAST.isoformat(), NOW) == []
    assert prometheus.minutes_due((LAST - 3 * MINUTE).isoformat(), NOW) == [LAST - 2 * MINUTE, LAST - MINUTE, LAST]
    assert len(prometheus.minutes_due("2020-01-01T00:00:00+00:00", NOW)) == prometheus.MOST_MINUTES
    assert prometheus.minutes_due("2099-01-01T00:00:00+00:00", NOW) == [LAST]
    assert prometheus.minutes_due("2026-11-21T12:00:00", NOW) == [LAST]


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_a_sentence(data: bytes):
    with suppress(CloudError):
        prometheus.parse(data, [LAST])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["metric", "values", "pod"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4))
def test_any_result_is_an_answer_or_a_sentence(result: list[Any]):
    body = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    with suppress(CloudError):
        prometheus.parse(json.dumps(body).encode(), [LAST])


@pytest.mark.parametrize(
    "address",
    [
        "ftp://p",
        "prometheus:9090",
        "http://",
        "http://u:p@p",
        "http://p/?x=1",
        "http://p:99999",
        "http://p p",
        "http://p/#x",
    ],
)
def test_an_address_that_is_none(address: str):
    with pytest.raises(ValidationError, match="Write an address"):
        Settings.read({"prometheus": address})


def test_addresses():
    assert (
        Settings.read({"prometheus": "https://p.example.org/prometheus/"}).prometheus
        == "https://p.example.org/prometheus"
    )
    assert Settings.read({}).prometheus == ""


def test_a_kubelet_tells_what_it_knows_and_what_is_malformed_is_left_out():
    whole = {
        "podRef": {"name": "worker-0", "namespace": "ops", "uid": "a"},
        "cpu": {"time": "2026-11-30T05:36:17Z", "usageCoreNanoSeconds": 2_500_000_000},
        "memory": {"workingSetBytes": 1024},
        "network": {"rxBytes": 7, "txBytes": 8},
    }
    bare = {"podRef": {"uid": "b"}, "cpu": {"time": "2026-11-30T05:36:17Z"}, "memory": None}
    odd = [
        {},
        {"podRef": {"uid": "c"}, "cpu": {"time": "yesterday"}},
        {"podRef": 1},
        "pod",
        whole | {"cpu": {"time": 3}},
    ]
    at = dt.datetime(2026, 11, 30, 5, 36, 17, tzinfo=dt.UTC).timestamp()
    assert list(sampling.of_summary(json.dumps({"pods": [whole, *odd, bare]}).encode())) == [
        Sample("a", at, cpu_seconds=2.5, memory_bytes=1024, received=7, sent=8),
        Sample("b", at),
    ]
    for useless in (b"", b"<html>", b"[]", b'{"pods": 3}', b'{"pods": null}'):
        assert list(sampling.of_summary(useless)) == []
