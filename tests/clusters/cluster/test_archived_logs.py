"""Logs whose pods are gone, as users see them: copied into a real S3 bucket, or lost, on a cluster that no longer exists."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from playwright.sync_api import expect

from clusters.clouds.drivers import marks
from tests.api.client import api_of
from tests.browser import assert_fits, chromium, give_session

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = "".join(f"step {n}: loss {1 / (n + 1):.4f}\n" for n in range(300)) + "Saved the model: ünï\n"
# 2026-03-01T12:00:00Z; one line per second.
BEGAN = 1_772_366_400_000_000
LOST = "Its pod was gone before the log could be copied."
PATH = "/appcodes/ops-demo/clusters/demo/runs/1/tasks"


@pytest.fixture
def run(make_cluster: Any, s3: Any, bucket: str, settings: Any) -> Any:
    """master-0 is archived, worker-0 is lost, and worker-1 ended before there was an archive."""
    from clusters.logs.archive import archive, key_of
    from clusters.runs.models import Run, Task

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
    marker = marks.Marker()
    times = b"".join(marker.add(line, BEGAN + n * 1_000_000) for n, line in enumerate(data.splitlines(keepends=True)))
    store.keep(key_of("training", run.pk, "master", 0, 0), io.BytesIO(data), len(data), io.BytesIO(times), len(times))
    for role, index, state, size, message in (
        ("master", 0, "kept", len(data), ""),
        ("worker", 0, "lost", None, LOST),
        ("worker", 1, "kept", 0, ""),
    ):
        Task.objects.create(
            run=run, role=role, index=index, uid=f"{role}-{index}", phase="Succeeded", started_at=run.started_at,
            finished_at=run.finished_at, log_state=state, log_size=size, log_message=message,
        )  # fmt: skip
    store.keep(key_of("training", run.pk, "worker", 1, 0), io.BytesIO(b""), 0, io.BytesIO(b""), 0)
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
    late = bob.get(f"{PATH}/master/0/log?since=2026-03-01T12:04:59Z&timestamps=1")[1].content.decode()
    assert (
        late == "2026-03-01T12:04:59.000000Z step 299: loss 0.0033\n2026-03-01T12:05:00.000000Z Saved the model: ünï\n"
    )
    found = bob.get(f"{PATH}/master/0/log?search=SAVED")[1]
    assert found.content.decode() == "Saved the model: ünï\n"
    together = bob.get(f"{PATH.removesuffix('/tasks')}/log?merged=1&search=step 29&since=2026-03-01T12:01:00Z")[1]
    lines = b"".join(together.streaming_content).decode().splitlines()
    assert [line for line in lines if "step" in line] == [
        f"master-0  step {n}: loss {1 / (n + 1):.4f}" for n in range(290, 300)
    ]
    assert f"worker-0  [{LOST}]" in lines
    for wrong, where in (
        ("since=tomorrow", "since"),
        ("since=2026-03-01&tail=3", "tail"),
        ("search=" + "x" * 999, "search"),
    ):
        status, answer = bob.get(f"{PATH}/master/0/log?{wrong}")
        assert (status, answer["errors"][0]["path"]) == (422, where)
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
        expect(page.locator("#log-state")).to_have_text("302 lines · finished")
        expect(page.get_by_label("follow")).to_be_hidden()
        page.get_by_label("Lines").select_option("Errors")
        expect(log.get_by_text("Saved the model: ünï")).to_be_hidden()
        expect(page.locator("#log-none")).to_contain_text("No line matches.")
        page.get_by_label("Lines").select_option("Only matches")
        expect(page.locator("#log-none")).to_contain_text("No line matches: the search is empty.")
        page.get_by_label("Search the whole log").fill("saved")
        expect(log.get_by_text("Saved the model: ünï")).to_be_visible()
        expect(page.locator("#log-none")).to_be_hidden()
        page.get_by_label("Search the whole log").fill("nowhere")
        page.get_by_role("button", name="Show all lines").click()
        expect(page.get_by_label("Lines")).to_have_value("")
        page.get_by_label("Search the whole log").fill("")
        expect(log.get_by_text("Saved the model: ünï")).to_be_visible()
        assert_fits(page)
        page.set_viewport_size({"width": 390, "height": 800})
        for lives in (False, True):
            page.evaluate("lives => document.getElementById('log-follow').parentElement.hidden = !lives", lives)
            middles = page.locator(".log-bar > *:visible").evaluate_all(
                "all => all.map(each => each.getBoundingClientRect()).filter(b => b.width).map(b => b.top + b.height / 2)"
            )
            assert len({round(middle / 20) for middle in middles}) == 3, "the tools take three rows on a phone"
        page.goto("/clusters/ops-demo/demo/logs?task=worker-0")
        expect(log).to_contain_text(LOST)


def test_a_long_log_in_a_browser(run: Any, people: Any, live_server: Any) -> None:
    """The page holds the ends of two interleaved logs. It marks each gap, loads missing lines on request, and finds them by
    search. Lines are in the order of their times, also after a reload."""
    from clusters.logs.archive import archive, key_of
    from clusters.runs.models import Task

    store, count, long = archive(), 8_000, " and so on" * 20
    assert store
    for role, index, late in (("master", 0, 0), ("worker", 1, 500)):
        marker, data, times = marks.Marker(), b"", b""
        lines = [f"{role} wrote line {n}{' Error: odd' if n == 4321 else ''}{long}\n" for n in range(count)]
        for n, line in enumerate(lines):
            times += marker.add(line.encode(), BEGAN + 2000 * n + late)
        data = "".join(lines).encode()
        key = key_of("training", run.pk, role, index, 0)
        store.keep(key, io.BytesIO(data), len(data), io.BytesIO(times), len(times))
        Task.objects.filter(run=run, role=role, index=index).update(log_size=len(data))
    with chromium() as browser:
        page = browser.new_page(base_url=live_server.url)
        give_session(page.context, live_server.url, "victor")

        def in_order() -> bool:
            """True if the lines that are shown are in the order of their times, none of them twice."""
            found = page.evaluate(
                "[...document.querySelectorAll('#log > div:not(.gap, .note)')].map(d => [d.task.name, d.no])"
            )
            times = [2000 * no + (500 if task == "worker-1" else 0) for task, no in found]
            return bool(times) and times == sorted(set(times))

        for _ in range(2):
            page.goto("/clusters/ops-demo/demo/logs")
            log = page.locator("#log")
            expect(log).to_contain_text(f"worker wrote line {count - 1}")
            expect(log.locator(".gap")).to_have_count(2)
            assert in_order()
        expect(log.locator(".gap").first).to_contain_text("lines of master-0 before this not shown · show")
        page.get_by_label("Lines").select_option("Errors")
        expect(page.locator("#log-none")).to_contain_text("No line shown here matches.")
        expect(log.locator(".gap").first).to_be_visible()
        page.get_by_label("Lines").select_option("All lines")
        page.get_by_label("Search the whole log").fill("WORKER wrote line 300")
        hits = page.locator("#log-hits")
        # Matches 300, and 3000 to 3009.
        expect(hits).to_have_text("1 of 11")
        expect(log.locator(".at mark")).to_have_text("worker wrote line 300")
        assert in_order()
        page.get_by_label("Search the whole log").press("Enter")
        expect(hits).to_have_text("2 of 11")
        expect(log.locator(".at")).to_contain_text("worker wrote line 3000")
        page.get_by_role("button", name="Previous match").click()
        expect(hits).to_have_text("1 of 11")
        assert in_order()


def test_a_search_finds_letters_as_they_are_and_ends_in_time() -> None:
    """`bytes.lower` changes only ASCII letters."""
    import math

    from clusters.clouds.drivers.base import LogChunk
    from clusters.logs.lines import Style
    from clusters.logs.search import search

    line = "GRÜN, Grün"
    log = LogChunk(f"{line}\n".encode(), len(line.encode()) + 1, True)
    assert [hit.text.decode() for hit in search(lambda *_: log, "GRÜN", 5, math.inf).hits] == [line]
    assert Style(search="GRÜN").wanted in log.data.lower()
    late = search(lambda *_: log, "GRÜN", 5, 0)
    assert (late.lines, late.complete) == (0, False)
