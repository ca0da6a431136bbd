"""Redis only wakes the loop: without it requests are answered as quickly as ever, and nothing is lost."""

import contextlib
import json
import os
import signal
import time

import kombu.pools
import psutil
import pytest

from billing.wakeups import wake_mail
from clusters.cluster import actions
from clusters.runs.models import Run
from clusters.wakeups import wake_logs
from portal import wakeups
from portal.actions.tokens import make_token
from portal.network.breaker import Breaker
from portal.up import servers, services

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def own_broker(tmp_path, settings, monkeypatch):
    """A separate broker for this test's cache and queue; yields its process."""
    from portal.celery import app

    sockets = services.socket_folder(tmp_path)
    valkey = servers.valkey(tmp_path / "valkey", sockets)
    with services.running([valkey], tmp_path, os.environ):
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": valkey.url}}
        broker = valkey.url.replace("unix:", "redis+socket:").replace("?db=", "?virtual_host=")
        monkeypatch.setattr(app.conf, "broker_url", broker)
        assert app.conf.broker_write_url == broker
        monkeypatch.setattr(wakeups, "_broker", Breaker(wakeups._broker._answered, rest=wakeups.QUIET))
        forget(app)
        [process] = [
            each for each in psutil.Process().children(recursive=True) if any(str(sockets) in w for w in each.cmdline())
        ]
        yield process
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
    forget(app)


def forget(app):
    """Drops the app's connections to its broker."""
    kombu.pools.reset()
    app.amqp._producer_pool = app._pool = None


def timed(call):
    began = time.monotonic()
    return call(), time.monotonic() - began


def asked(caplog):
    """Number of failed attempts to reach the broker."""
    return caplog.text.count("the broker is out of reach")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_without_redis_people_are_answered(catalogue, people, manifest, client, own_broker, how, caplog, monkeypatch):
    # Longer than this test takes on any machine.
    monkeypatch.setattr(wakeups._broker, "rest", 600.0)
    client.force_login(people.bob)
    _, text = make_token("script", 1, acting_user=people.bob)
    actions.create_cluster(manifest("before"), acting_user=people.bob)
    # Excludes what a process loads for its first page from the measurement.
    assert client.get("/profile").status_code == 200
    own_broker.send_signal(how)
    if how == signal.SIGKILL:
        psutil.wait_procs([own_broker], 60)
    first = actions.create_cluster(manifest("first"), acting_user=people.bob)
    assert Run.objects.filter(cluster=first).exists()
    assert asked(caplog) == 1
    for n in range(3):
        actions.create_cluster(manifest(f"next-{n}"), acting_user=people.bob)
    assert asked(caplog) == 1
    body = json.dumps(manifest("rest").model_dump(mode="json", by_alias=True))
    answer, seconds = timed(
        lambda: client.post(
            "/api/v1/appcodes/ops-demo/clusters",
            body,
            content_type="application/json",
            headers={"Authorization": f"Bearer {text}"},
        )
    )
    assert answer.status_code == 201, answer.content
    page, more = timed(lambda: client.get("/profile"))
    assert page.status_code == 200
    print(f"{how.name}: POST {seconds:.2f} s, page {more:.2f} s")
    assert asked(caplog) == 1
    # A cache that does not answer costs one second per call; the rest allows for a busy machine.
    assert seconds < (5 if how == signal.SIGKILL else 10)


def test_only_the_first_wake_up_of_all_waits_for_a_broker_that_does_not_answer(own_broker, caplog, monkeypatch):
    monkeypatch.setattr(wakeups._broker, "rest", 600.0)
    wakeups.wake_webhooks()
    own_broker.send_signal(signal.SIGSTOP)
    _, first = timed(wake_logs)
    assert first > 1, "it was asked"
    assert asked(caplog) == 1
    wake_mail()
    wakeups.wake_webhooks()
    assert asked(caplog) == 1
