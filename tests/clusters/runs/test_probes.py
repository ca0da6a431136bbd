"""Notebooks of another cloud are probed through its gateway: what makes them busy, idle or unknown, and the cost of probing.

The gateway here is a small HTTP server with a given answer for each host; tests/kube/test_ingress.py has a real one.
"""

from __future__ import annotations

import datetime as dt
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from clusters.clouds.drivers.base.activity import QUIET_LOOKS

pytestmark = pytest.mark.django_db(transaction=True)
QUIET = json.dumps({"busy": "", "count": 1}).encode()
BUSY = json.dumps({"busy": "A cell runs.", "count": 2}).encode()
MINUTE, HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)


class Gateway:
    """`answers` maps hosts to status and body; `asked` lists the requests with their headers."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host = self.headers["Host"]
                gateway.asked.append((host, self.path, dict(self.headers.items())))
                status, body = gateway.answers.get(host, (200, QUIET))
                self.send_response(status)
                self.send_header("Location", "http://portal.localhost:8000/open/x")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """No log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    yield gateway
    gateway.server.shutdown()
    gateway.server.server_close()


@pytest.fixture
def notebook(catalogue: None, people: Any, gateway: Gateway) -> Any:
    """notebook("lab") → a notebook that runs on the cloud “far” and is in the routes of its gateway."""
    from clusters.applications.actions import create_application
    from clusters.applications.manifest import ApplicationManifest
    from clusters.clouds.models import Cloud, CloudState
    from clusters.runs.models import Run

    now = dt.datetime.now(dt.UTC)
    led = {"gateway": "traefik", "gateway_namespace": "traefik", "gateway_address": gateway.address}
    Cloud.objects.create(kind="kubernetes", name="far", title="Far", settings=led)
    CloudState.objects.create(name="far", heard_at=now, asked_at=now, position="x")

    def make(name: str = "lab", *, gpus: int = 0) -> Any:
        flavor = "one-gpu" if gpus else "small"
        spec = {"type": "jupyter", "image": "python", "flavor": flavor, "storage": {"size": "1Gi"}}
        body = {"metadata": {"name": name, "appcode": "ops-demo"}, "spec": spec}
        cluster = create_application(ApplicationManifest.model_validate(body), acting_user=people.bob)
        served = {"notebook": {"address": "", "since": now.isoformat(), "routed": True}}
        Run.objects.filter(pk=cluster.current_run_id).update(
            cloud="far", phase="Running", started_at=now - 5 * HOUR, admitted_at=now, applied_at=now, endpoints=served,
            roles={"notebook": {"ready": 1, "count": 1}},
        )  # fmt: skip
        return Run.objects.get(pk=cluster.current_run_id)

    return make


@pytest.fixture
def asker() -> Any:
    from clusters.runs.probes import Asker

    return Asker(threading.Event())


def ask(asker: Any, run: Any, times: int = 1) -> str:
    """Probes the run that many times; returns its activity."""
    from clusters.runs.probes import PARTS

    for _ in range(times):
        asker.ask(run.pk % PARTS)
    run.refresh_from_db()
    return str(run.activity)


def host(run: Any) -> str:
    return f"notebook-{run.cluster.name}-ops-demo.apps.localhost:8000"


def test_it_is_idle_after_some_quiet_looks_and_busy_at_the_first_that_shows_work(
    notebook: Any, asker: Any, gateway: Gateway
) -> None:
    run = notebook()
    assert ask(asker, run) == "unknown"
    began = run.activity_since
    assert ask(asker, run, QUIET_LOOKS - 2) == "unknown"
    assert ask(asker, run) == "idle"
    assert run.activity_since >= began
    assert run.look_at
    gateway.answers[host(run)] = (200, BUSY)
    assert (ask(asker, run), run.activity_why) == ("busy", "A cell runs.")
    told, path, headers = gateway.asked[-1]
    assert (told, path) == (host(run), "/api/portal/activity")
    assert headers["Authorization"].startswith("Portal ")
    gateway.answers.clear()
    # The first quiet probe does not count: work may have started and ended since the probe before.
    assert ask(asker, run, QUIET_LOOKS) == "busy"
    assert ask(asker, run) == "idle"


@pytest.mark.parametrize(
    "answer",
    [
        (502, QUIET),
        (302, b""),
        (401, QUIET),
        (200, b"<html>Sign in</html>"),
        (200, b"[]"),
        (200, b" " * 70_000 + QUIET),
    ],
    ids=["502", "sign-in", "401", "page", "list", "too-long"],
)
def test_any_other_answer_is_unknown_and_the_clock_begins_anew(
    answer: tuple[int, bytes], notebook: Any, asker: Any, gateway: Gateway
) -> None:
    run = notebook()
    assert ask(asker, run, QUIET_LOOKS) == "idle"
    before = run.activity_since
    gateway.answers[host(run)] = answer
    assert (ask(asker, run), run.activity_why) == ("unknown", "It does not say whether it works.")
    assert run.activity_since > before
    gateway.answers.clear()
    assert ask(asker, run, QUIET_LOOKS - 1) == "unknown"
    assert ask(asker, run) == "idle"
    assert run.activity_since > before


@pytest.mark.parametrize("lost", ["gateway", "route", "silent", "settings", "answer", "starting"])
def test_what_nobody_leads_to_is_unknown(
    lost: str, notebook: Any, asker: Any, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusters.clouds.models import Cloud
    from clusters.runs import probes as asking
    from clusters.runs.models import Run

    run = notebook()
    assert ask(asker, run, QUIET_LOOKS) == "idle"
    row = Cloud.objects.get(name="far")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        if lost in ("gateway", "silent"):
            monkeypatch.setattr(asking, "PATIENCE", 0.2)
            row.settings["gateway_address"] = f"http://127.0.0.1:{deaf.getsockname()[1]}"
            row.save()
            if lost == "gateway":
                deaf.close()
        if lost == "settings":
            row.settings = {}
            row.save()
        changed: dict[str, Any] = {
            "route": {"endpoints": {"notebook": {**run.endpoints["notebook"], "routed": False}}},
            "answer": {"endpoints": {}},
            "starting": {"phase": "Starting"},
        }
        Run.objects.filter(pk=run.pk).update(**changed.get(lost, {"phase": "Running"}))
        before, asked = run.activity_since, len(gateway.asked)
        assert ask(asker, run) == "unknown"
        assert run.activity_since > before
        assert len(gateway.asked) == asked


@pytest.mark.parametrize(
    "said",
    [b'{"busy": "\\u0000\\ud800"}', b'{"busy": "", "network_bytes": 1%s}' % (b"0" * 400)],
    ids=["text", "number"],
)
def test_nothing_that_one_says_keeps_the_others_from_being_known(
    notebook: Any, asker: Any, gateway: Gateway, said: bytes
) -> None:
    mine = notebook("mine")
    gateway.answers[host(mine)] = 200, b'{"busy": ""}'
    assert ask(asker, mine) == "unknown"
    gateway.answers[host(mine)] = 200, said
    assert ask(asker, mine) in ("busy", "unknown")


def test_another_attempt_and_another_controller_begin_anew(notebook: Any, asker: Any) -> None:
    from clusters.runs.models import Run
    from clusters.runs.probes import Asker

    run = notebook()
    assert ask(asker, run, QUIET_LOOKS) == "idle"
    later = {"notebook": {**run.endpoints["notebook"], "since": dt.datetime.now(dt.UTC).isoformat()}}
    Run.objects.filter(pk=run.pk).update(endpoints=later)
    assert ask(asker, run) == "unknown"
    assert ask(asker, run, QUIET_LOOKS - 1) == "idle"
    other = Asker(threading.Event())
    assert ask(other, run) == "unknown"
    assert ask(other, run, QUIET_LOOKS - 1) == "idle"


def test_a_gpu_counts_as_it_was_measured_and_unmeasured_as_unknown(notebook: Any, asker: Any) -> None:
    from billing.efficiency.models import MeasuredHour
    from clusters.runs.models import Task

    run = notebook(gpus=1)
    assert (ask(asker, run), run.activity_why) == ("unknown", "Nobody measures its GPUs.")
    Task.objects.create(run=run, role="notebook", index=0, uid="pod", phase="Running")
    now = dt.datetime.now(dt.UTC)
    hour = now.replace(minute=0, second=0, microsecond=0)
    minutes = 1 << now.minute

    def measure(measured_ms: int, busy_ms: int, minutes: int = minutes) -> None:
        said = {
            "minutes": minutes,
            "measured_ms": measured_ms,
            "busy_ms": busy_ms,
            "appcode_id": run.cluster.appcode_id,
        }
        MeasuredHour.objects.update_or_create(uid="pod", hour=hour, defaults=said)

    measure(60_000, 30_000)
    assert (ask(asker, run), run.activity_why) == ("busy", "Its GPUs work.")
    assert ask(asker, run, QUIET_LOOKS) == "idle"
    measure(120_000, 30_100)
    assert ask(asker, run) == "idle"
    measure(180_000, 32_000)
    assert ask(asker, run) == "busy"
    MeasuredHour.objects.update(hour=hour - 9 * HOUR)
    assert (ask(asker, run), run.activity_why) == ("unknown", "Nobody measures its GPUs.")


def test_how_busy_gpus_are_by_sums_of_hours() -> None:
    from billing.efficiency.models import MeasuredHour
    from clusters.runs.probes import gpu_percent

    hour = dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)

    def told(uid: str, at: dt.datetime, last: int, measured: int, busy: int) -> MeasuredHour:
        return MeasuredHour(uid=uid, hour=at, minutes=1 << last, measured_ms=measured, busy_ms=busy)

    first = [told("a", hour, 58, 100, 0), told("b", hour, 58, 100, 90), told("x", hour, 58, 9, 9)]
    percent, sums = gpu_percent(["a", "b"], first, {}, hour + HOUR)
    assert percent == 90
    # The new hour starts at zero: being busy in the last hour does not count.
    now = hour + HOUR + 3 * MINUTE
    second = [*first, told("a", hour + HOUR, 1, 100, 0), told("b", hour + HOUR, 1, 1000, 4)]
    assert gpu_percent(["a", "b"], second, sums, now)[0] == 0
    assert gpu_percent(["a", "b"], second[-2:], sums, now + 2 * MINUTE)[0] == 0
    # Unknown if one of the pods was not measured lately, or never.
    assert gpu_percent(["a", "b"], second[:-1], sums, now + 2 * MINUTE)[0] is None
    assert gpu_percent(["a", "b"], second, sums, now + 9 * MINUTE)[0] is None
    assert gpu_percent(["a", "c"], second, sums, now)[0] is None
    assert gpu_percent([], second, sums, now)[0] is None


def test_queries_do_not_grow_with_notebooks_and_those_that_stay_as_they_are_are_not_written(
    notebook: Any, asker: Any, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusters.runs import probes as asking

    monkeypatch.setattr(asking, "PARTS", 1)
    runs = [notebook(f"lab-{number}", gpus=number % 2) for number in range(6)]
    asker.ask(0)
    # Runs, their cloud's gateway, pods with GPUs. No GPU was ever measured here, so no pod is looked up.
    with django_assert_num_queries(3):
        asker.ask(0)
    assert {each.activity for each in type(runs[0]).objects.all()} == {"unknown"}


def test_what_was_idle_is_not_stopped_once_nobody_asks_any_more(notebook: Any, asker: Any, settings: Any) -> None:
    from clusters.clouds.models import CloudState
    from clusters.runs import idle
    from clusters.runs.models import Run

    run = notebook()
    ask(asker, run, QUIET_LOOKS)
    now = dt.datetime.now(dt.UTC)
    Run.objects.filter(pk=run.pk).update(activity_since=now - 5 * HOUR, look_at=now)
    for asked_at in (None, now - idle.ASKED * dt.timedelta(seconds=settings.ACTIVITY_SECONDS) - MINUTE):
        CloudState.objects.filter(name="far").update(asked_at=asked_at, heard_at=now)
        idle.turn(now)
        run.refresh_from_db()
        assert run.idle_announced_at is None
        Run.objects.filter(pk=run.pk).update(look_at=now)
    CloudState.objects.filter(name="far").update(asked_at=now, heard_at=now)
    idle.turn(now)
    run.refresh_from_db()
    assert run.idle_announced_at


def test_that_all_were_asked_is_noted_only_when_they_were(
    notebook: Any, asker: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusters.clouds.models import CloudState
    from clusters.runs.probes import PARTS

    settings.ACTIVITY_SECONDS = 0.0
    notebook()

    def turns(times: int) -> dt.datetime | None:
        for _ in range(times):
            with suppress(ZeroDivisionError):
                asker.work()
        return CloudState.objects.get(name="far").asked_at

    assert turns(1) is None  # whatever an earlier controller recorded
    began = dt.datetime.now(dt.UTC)
    noted = turns(PARTS)
    assert noted
    assert noted < began
    monkeypatch.setattr("clusters.runs.probes.whom_to_ask", lambda runs: [1 / 0 for _ in runs])
    failing = dt.datetime.now(dt.UTC)
    noted = turns(3 * PARTS)
    assert noted
    assert noted < failing
