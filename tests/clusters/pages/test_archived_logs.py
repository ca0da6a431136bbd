"""Logs whose pods are gone, as people see them: copied into a real S3 bucket, or lost, on a cluster that is not there now."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.api.client import api_of
from tests.browser import assert_fits, chromium, give_session

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = "".join(f"step {n}: loss {1 / (n + 1):.4f}\n" for n in range(300)) + "Saved the model: ünï\n"
LOST = "Its pod was gone before the log could be copied."
PATH = "/appcodes/ops-demo/clusters/demo/runs/1/tasks"


@pytest.fixture
def run(make_cluster: Any, s3: Any, bucket: str, settings: Any) -> Any:
    """master-0 is in the archive, worker-0 is lost, and worker-1 ended before there was an archive."""
    from clusters.logs.archive import archive, key_of
    from clusters.models import Run, Task

    settings.LOGS_S3 = {
        **settings.LOGS_S3,
        "server": s3.url,
        "bucket": bucket,
        "prefix": "portal",
        "access_key": s3.access_key,
        "secret": s3.secret_key,
    }
    cluster = make_cluster("demo", phase="Succeeded", workers=2)
    Run.objects.filter(pk=cluster.current_run_id).update(cloud="training")
    run = Run.objects.get(pk=cluster.current_run_id)
    data = TEXT.encode()
    store = archive()
    assert store
    store.keep(key_of("training", run.pk, "master", 0, 0), io.BytesIO(data), len(data))
    for role, index, state, size, message in (
        ("master", 0, "kept", len(data), ""),
        ("worker", 0, "lost", None, LOST),
        ("worker", 1, "kept", 0, ""),
    ):
        Task.objects.create(
            run=run, role=role, index=index, uid=f"{role}-{index}", phase="Succeeded", started_at=run.started_at,
            finished_at=run.finished_at, log_state=state, log_size=size, log_message=message,
        )  # fmt: skip
    store.keep(key_of("training", run.pk, "worker", 1, 0), io.BytesIO(b""), 0)
    return run


def test_by_rest(run: Any, people: Any) -> None:
    bob = api_of(people.bob)
    data = TEXT.encode()
    assert bob.get(f"{PATH}/master/0/log")[1].content == data
    status, answer = bob.get(f"{PATH}/master/0/log?tail=2")
    assert answer.content == b"".join(data.splitlines(keepends=True)[-2:])
    assert int(answer.headers["Log-Offset"]) == len(data) - len(answer.content)
    assert bob.get(f"{PATH}/master/0/log?offset=10")[1].content == data[10:]
    assert bob.get(f"{PATH}/master/0/log?offset={10**9}")[1].content == b""
    assert b"".join(bob.get(f"{PATH}/master/0/log?follow=1")[1].streaming_content) == data
    assert bob.get(f"{PATH}/worker/1/log")[1].content == b""
    status, answer = bob.get(f"{PATH}/worker/0/log")
    assert (status, answer["detail"]) == (404, LOST)
    assert api_of(people.mallory).get(f"{PATH}/master/0/log")[0] == 404


def test_an_archive_that_is_away_or_emptied_is_told(run: Any, people: Any, settings: Any, s3: Any, bucket: str) -> None:
    bob = api_of(people.bob)
    for item in s3.client.list_objects_v2(Bucket=bucket)["Contents"]:
        s3.client.delete_object(Bucket=bucket, Key=item["Key"])
    status, answer = bob.get(f"{PATH}/master/0/log")
    assert (status, answer["detail"]) == (404, "Somebody has removed this log from the archive.")
    settings.LOGS_S3 = {**settings.LOGS_S3, "server": "http://127.0.0.1:1"}
    status, answer = bob.get(f"{PATH}/master/0/log")
    assert status == 503
    assert "The archive of logs does not work: Unreachable" in answer["detail"]
    settings.LOGS_S3 = {**settings.LOGS_S3, "server": ""}
    status, answer = bob.get(f"{PATH}/master/0/log")
    assert status == 503
    assert "does not know any more" in answer["detail"]


def test_what_the_page_asks_for(run: Any, people: Any, as_person: Any) -> None:
    client = as_person(people.victor)

    def ask(body: Any) -> dict[str, Any]:
        answer = client.post("/clusters/ops-demo/demo/logs/read", json.dumps(body), content_type="application/json")
        assert answer.json()["error"] == ""
        return {piece["task"]: piece for piece in answer.json()["pieces"]}

    pieces = ask({"master-0": None, "worker-0": None, "worker-1": None})
    assert (pieces["master-0"]["text"], pieces["master-0"]["ended"], pieces["master-0"]["note"]) == (TEXT, True, "")
    assert (pieces["worker-0"]["text"], pieces["worker-0"]["ended"], pieces["worker-0"]["note"]) == ("", True, LOST)
    assert (pieces["worker-1"]["text"], pieces["worker-1"]["ended"], pieces["worker-1"]["note"]) == ("", True, "")
    [piece] = ask({"master-0": {"attempt": 0, "offset": 5, "cursor": "anything"}}).values()
    assert piece["text"] == TEXT[5:]


def test_in_a_browser(run: Any, people: Any, live_server: Any) -> None:
    with chromium() as browser:
        page = browser.new_page(base_url=live_server.url)
        give_session(page.context, live_server.url, "victor")
        page.goto("/clusters/ops-demo/demo/logs")
        log = page.locator("#log")
        expect(log).to_contain_text("Saved the model: ünï")
        expect(log.locator(".note")).to_have_text(f"worker-0  — {LOST} —")
        expect(page.locator("#log-state")).to_have_text("302 lines. The end.")
        assert_fits(page)
        page.goto("/clusters/ops-demo/demo/logs?task=worker-0")
        expect(log).to_contain_text(LOST)
