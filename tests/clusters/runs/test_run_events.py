"""Events of runs on the real loop: from these alone, a listener can compute GPU-seconds and cost."""

import datetime as dt
import json

import pytest

from billing.models import Price
from clusters.cluster import actions
from portal.models import Delivery, Event
from portal.webhooks import actions as webhooks
from portal.webhooks import sending, specs
from portal.webhooks.specs import WebhookManifest

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_run_tells_when_it_starts_what_it_holds_and_when_it_ends_what_it_cost(loop, people, manifest):
    Price.objects.create(sku="gpu", per_hour="3600", valid_from=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    spec = {"url": "https://example.com/hook", "events": ["run.*"]}
    listens = WebhookManifest.model_validate({"metadata": {"name": "meter"}, "spec": spec})
    webhooks.create_webhook(listens, appcode=people.ops, acting_user=people.alice)
    command = "until [ -e /tmp/go ]; do sleep 0.1; done; sleep 2"
    cluster = actions.create_cluster(manifest("demo", command, flavor="one-gpu"), acting_user=people.bob)
    loop.touch(loop.until_phase(cluster, "Running"), "/tmp/go")
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert run.phase == "Succeeded"
    told = {event.verb: event.data for event in Event.objects.filter(verb__startswith="run.").order_by("pk")}
    started, ended = told["run.running"], told["run.succeeded"]
    assert (started["run"], started["gpus"]) == (1, run.gpus)
    assert started["started_at"] == ended["started_at"] <= ended["finished_at"]
    assert "cost" not in started
    run.refresh_from_db()
    assert ended["gpu_seconds"] == run.gpu_seconds >= 2 * run.gpus
    assert (ended["cost"], ended["currency"]) == (f"{run.cost.normalize():f}", "USD")
    sent = [json.loads(specs.body(sending.facts(row.event))) for row in Delivery.objects.order_by("event_id")]
    assert [message["type"] for message in sent] == list(told)
    assert sent[-1]["data"]["details"] == ended
