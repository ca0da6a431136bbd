"""What is decided about a run leaves a line: each step of its life on a real database, its page, REST, and how much is kept. Only
the cloud is not real: it notes what it is told, and tests give its news."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now
from playwright.sync_api import expect

from clusters.admission.codes import Code
from clusters.clouds.drivers.base import Batch, Capacity, RunGone, TaskSeen
from clusters.clouds.drivers.base.errors import CloudError
from clusters.cluster import actions
from clusters.runs import quota, reconcile
from clusters.runs.models import Cluster, Decision, Run
from clusters.runs.placing import places
from clusters.runs.status import history, observe
from clusters.runs.status.phase_update import refresh
from portal.actions.appcodes import disable_appcode
from portal.models import Appcode
from tests.api.client import api_of
from tests.browser import assert_fits, chromium, give_session
from tests.clusters.gangs import Told, create_theirs, gang, nodes

pytestmark = pytest.mark.django_db
position = itertools.count(1)
MINUTE = dt.timedelta(minutes=1)


@pytest.fixture
def cloud(training: Any, monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(reconcile, "cloud_of", lambda run: told)
    return told


def submit(people: Any, name: str, size: int, **spec: Any) -> Run:
    status, answer = api_of(people.bob).post("/appcodes/ops-demo/clusters", gang(size, name, **spec))
    assert status == 201, answer
    run = Run.objects.get(cluster__name=name)
    reconcile.reconcile(run.pk)
    return run


def see(count: int, free: int = 8) -> None:
    observe.save_capacity("training", Capacity(nodes(count, free)))


def tell(*items: Any) -> None:
    observe.apply_batch("training", Batch(f"h.{next(position)}", items))


def get_nodes(run: Run) -> None:
    """All tasks of a run get the nodes of its layout, two seconds after its places."""
    run.refresh_from_db()
    at = run.placed_at + dt.timedelta(seconds=2) if run.placed_at else None
    names = [("master", 0), *(("worker", index) for index in range(run.gpus - 1))]
    where = [node for held in run.layout.values() for node, count in held.items() for _ in range(count)]
    tell(
        *(
            TaskSeen(
                run.pk, role, index, 0, f"{run.pk}-{run.life}-{role}-{index}", "Running", node=node,
                scheduled_at=at, began_at=at, started_at=at,
            )
            for (role, index), node in zip(names, where, strict=True)
        )
    )  # fmt: skip


def read(people: Any, run: Run) -> dict[str, Any]:
    run.refresh_from_db()
    address = f"/appcodes/ops-demo/clusters/{run.cluster.name}/runs/{run.number}"
    status, found = api_of(people.bob).get(f"{address}/admission")
    assert status == 200, found
    told = api_of(people.bob).get(address)[1]["status"]["admission"]
    assert told == ({name: found[name] for name in told} if told else None)
    return found


def codes(people: Any, run: Run) -> list[str]:
    found = [line["code"] for line in reversed(read(people, run)["history"])]
    assert not [one for one, other in itertools.pairwise(found) if one == other]
    return found


def test_every_step_of_a_run_is_a_line_and_what_changes_nothing_is_none(
    cloud: Told, people: Any, as_person: Any
) -> None:
    Appcode.objects.update(gpu_quota=20)
    create_theirs(people, 4, "theirs")
    theirs = Run.objects.get(cluster__name="theirs")
    reconcile.reconcile(theirs.pk)
    first, run = submit(people, "first", 16), submit(people, "gang", 16)
    assert codes(people, run) == ["Quota"]
    quota.admit_waiting(run.cluster.appcode_id)
    assert codes(people, run) == ["Quota"]
    Appcode.objects.update(gpu_quota=1000)
    see(2, 4)
    quota.admit_waiting(run.cluster.appcode_id)
    reconcile.reconcile(run.pk)
    for _ in range(2):
        places.place("training")
    waiting = read(people, run)
    assert codes(people, run) == ["Quota", "Turn", "Gpus"]
    assert (waiting["verdict"], waiting["code"], waiting["sentence"]) == ("waits", "Gpus", run.message)
    assert {name: waiting["values"][name] for name in ("gpus", "needed", "total")} == dict.fromkeys(
        ("gpus", "needed", "total"), 16
    )
    page = as_person(people.bob).get("/clusters/ops-demo/gang").content.decode()
    [shown] = re.findall(r'<details[^>]*id="waited"[^>]*>.*?</details>', page, re.DOTALL)
    assert " open>" in shown
    assert re.findall(r'href="#decision-(\d+)"', shown) == ["1", "2", "3"]
    assert waiting["sentence"] in shown
    see(15)
    places.place("training")
    get_nodes(run)
    assert codes(people, run) == ["Quota", "Turn", "Gpus", "Placed", "Whole"]
    placed, whole = Decision.objects.filter(run=run, number__in=[4, 5])
    assert placed.values == {"names": ", ".join(sorted({node for held in run.layout.values() for node in held}))}
    assert whole.values == {"seconds": 2}
    get_nodes(run)
    page = as_person(people.bob).get("/clusters/ops-demo/gang").content.decode()
    assert 'id="waited"' not in page, "a wait of a moment needs no explanation once it is over"
    Run.objects.filter(pk=run.pk).update(created_at=now() - dt.timedelta(minutes=1))
    page = as_person(people.bob).get("/clusters/ops-demo/gang").content.decode()
    assert 'id="waited">' in page, "it is folded once the run runs"
    # Its places go with their nodes, and it gets others.
    gone = set(placed.values["names"].split(", "))
    run.refresh_from_db()
    tell(
        *(
            TaskSeen(
                run.pk, task.role, task.index, 0, task.uid, "Failed", "Evicted", node=task.node, finished_at=now(),
                exit_code=1, disrupted=True,
            )
            for task in run.tasks.all()
        )
    )  # fmt: skip
    tell(
        *(
            TaskSeen(run.pk, task.role, task.index, 1, f"{task.uid}.1", "Pending", "Unschedulable")
            for task in run.tasks.all()
        )
    )
    observe.save_capacity("training", Capacity(tuple(node for node in nodes(15) if node.name not in gone)))
    for _ in range(2):
        Run.objects.filter(pk=run.pk).update(applied_at=now() - MINUTE)
        Run.objects.filter(pk=run.pk, lacks_since__isnull=False).update(lacks_since=now() - MINUTE)
        places.place("training")
    assert codes(people, run)[5:] == ["GivenBack"]
    assert "lost their nodes" in read(people, run)["sentence"]
    tell(RunGone(run.pk, life=0))
    assert codes(people, run)[5:] == ["GivenBack"], "it waits for the next pass"
    Run.objects.filter(pk=run.pk).update(not_before=None)
    places.place("training")
    get_nodes(run)
    assert codes(people, run)[5:] == ["GivenBack", "Placed", "Whole"]
    # Nothing is told of others.
    assert not {"theirs", "flight"} & set(re.findall(r"\w+", json.dumps(read(people, run)["history"])))
    actions.disable(run.cluster, acting_user=people.bob)
    assert codes(people, run)[5:] == ["GivenBack", "Placed", "Whole"]
    assert codes(people, first)[:1] == ["Turn"]


def test_the_history_is_a_list_of_pages_and_goes_with_the_run(cloud: Told, people: Any) -> None:
    run = submit(people, "gang", 16)
    places.place("training")
    api = api_of(people.bob)
    status, newest = api.get("/appcodes/ops-demo/clusters/gang/runs/1/admission?limit=1")
    assert (status, [line["number"] for line in newest["history"]]) == (200, [2])
    older = api.get(newest["next"].partition("/api/v1")[2])[1]
    assert [line["code"] for line in older["history"]] == ["Turn"]
    assert (older["code"], older["next"]) == ("Placed", None)
    run.cluster.current_run = None
    run.cluster.save()
    Run.objects.filter(pk=run.pk).delete()
    assert not Decision.objects.exists()


def test_a_run_that_waits_for_something_else_says_for_what(cloud: Told, people: Any, monkeypatch: Any) -> None:
    later = submit(people, "later", 1, scheduleAfter="2099-01-31T18:00:00Z")
    expected = {later: Code.NOT_BEFORE}
    Appcode.objects.filter(code="ops-demo").update(gpu_quota=4)
    expected[submit(people, "hooked", 1, hooks=[{"name": "check", "on": "before", "command": "true"}])] = Code.HOOK
    first = submit(people, "first", 3)
    for name in ("second", "third"):
        expected[submit(people, name, 2)] = Code.QUOTA
    Appcode.objects.filter(code="ops-demo").update(gpu_quota=1)
    quota.admit_waiting(first.cluster.appcode_id)
    for run in list(expected):
        if run.cluster.name in ("second", "third"):
            expected[run] = Code.OVER_LIMIT
    for run, code in expected.items():
        found = read(people, run)
        assert (found["code"], found["history"][0]["code"]) == (code, code)
        if code in (Code.NOT_BEFORE, Code.HOOK):
            assert found["sentence"] == run.message
    disable_appcode(people.ops, "no money", acting_user=people.root)
    quota.admit_waiting(first.cluster.appcode_id)
    second = Run.objects.get(cluster__name="second")
    assert codes(people, second) == ["Quota", "OverLimit", "Disabled"]
    assert read(people, second)["sentence"] == second.message


def test_a_cloud_that_cannot_do_it_is_a_line_and_so_is_that_it_can_again(
    cloud: Told, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit(people, "gang", 16)
    places.place("training")

    def away(plan: Any) -> None:
        raise CloudError("no route to host")

    monkeypatch.setattr(cloud, "apply", away)
    reconcile.reconcile(run.pk)
    assert codes(people, run) == ["Turn", "Placed", "Unreachable"]
    assert "no route to host" in read(people, run)["sentence"]
    monkeypatch.undo()
    monkeypatch.setattr(reconcile, "cloud_of", lambda run: cloud)
    Run.objects.update(claimed_until=None)
    reconcile.reconcile(run.pk)
    assert codes(people, run) == ["Turn", "Placed", "Unreachable", "Placed"]
    get_nodes(run)
    # A run that runs waits for nothing while its cloud is away.
    run.refresh_from_db()
    run.wait_reason, run.wait_message = "CloudUnreachable", "It does not answer."
    with transaction.atomic():
        refresh([run], now(), unsaved=["wait_reason", "wait_message"])
    assert codes(people, run)[-1] == "Whole"


def waits(run: Run, free: int, at: dt.datetime, code: Code = Code.GPUS) -> None:
    run.wait_reason, run.wait_message = "WaitingForGPUs", f"{free} are free."
    run.wait_code, run.wait_values = code, {"needed": 8, "free": free, "total": 16}
    with transaction.atomic():
        refresh([run], at, unsaved=["wait_reason", "wait_message"])


def test_other_numbers_are_told_once_a_minute_and_later_more_seldom(cloud: Told, people: Any) -> None:
    run = submit(people, "gang", 8)
    run.refresh_from_db()
    start = run.created_at
    for second in range(0, 3600, 10):
        waits(run, second // 10 % 8, start + dt.timedelta(seconds=second))
        found = history.current(run)
        assert found
        assert (found.values["free"], run.decisions.last().code) == (second // 10 % 8, "Gpus")  # type: ignore[union-attr]
    rows = list(run.decisions.filter(code="Gpus"))
    assert 20 < len(rows) < 60
    assert min(after.at - before.at for before, after in itertools.pairwise(rows)) >= MINUTE
    for day in range(1, 60):
        for hour in range(0, 24, 5):
            waits(run, hour % 8, start + dt.timedelta(days=day, hours=hour))
    rows = list(run.decisions.all())
    assert (rows[0].number, len(rows) < history.MOST) == (1, True), "months of waiting leave the beginning"
    # The same sentence is no news, whatever is beside it.
    waits(run, 6, start + dt.timedelta(days=80))
    rows = list(run.decisions.all())
    run.wait_values = {**run.wait_values, "ahead": 0}
    with transaction.atomic():
        refresh([run], start + dt.timedelta(days=90))
    assert len(rows) == run.decisions.count()


def test_only_the_newest_lines_are_kept_and_the_page_shows_a_few(cloud: Told, people: Any, as_person: Any) -> None:
    run = submit(people, "gang", 8)
    run.refresh_from_db()
    for number in range(history.MOST + 10):
        waits(run, 1, run.created_at + MINUTE * number, Code.GPUS if number % 2 else Code.BEHIND)
    numbers = list(run.decisions.values_list("number", flat=True))
    assert numbers == list(range(12, history.MOST + 12))
    person = as_person(people.bob)
    page = person.get("/clusters/ops-demo/gang").content.decode()
    assert "Show 188 earlier" in page
    assert page.count('id="decision-') == 12
    assert person.get("/clusters/ops-demo/gang?all=1").content.decode().count('id="decision-') == history.MOST


@pytest.mark.parametrize("is_full", [False, True])
def test_a_pass_writes_the_lines_of_many_runs_in_one_statement(cloud: Told, people: Any, is_full: bool) -> None:
    def statements(count: int) -> list[str]:
        runs = [submit(people, f"gang-{count}-{number}", 8) for number in range(count)]
        for run in runs:
            run.refresh_from_db()
            run.wait_code, run.wait_values = Code.BEHIND, {}
            if is_full:
                run.noted = {**run.noted, "number": history.MOST + 3}
        with CaptureQueriesContext(connection) as captured:
            history.note(runs, now())
        assert {run.noted["code"] for run in runs} == {"Behind"}
        return [query["sql"] for query in captured]

    see(1, 0)
    few = statements(2)
    assert [statement.split()[0] for statement in few] == ["INSERT", "DELETE"][: 1 + is_full]
    assert len(statements(12)) == len(few)


def test_a_run_that_never_waited_on_a_cloud_that_places_its_tasks_has_no_line(people: Any, page_catalogue: Any) -> None:
    at = now()
    run = Run(cluster=Cluster(name="one"), phase="Starting", reason="PullingImage", gpus=2)
    run.created_at = run.admitted_at = run.applied_at = at
    history.note([run], now())
    assert run.noted == {}
    found = history.current(run)
    assert found
    assert (found.code, found.sentence) == (Code.PLACING, "Its 2 GPUs are being placed.")
    run.reason, run.message = "WaitingForGPUs", "It needs 2 GPUs; 1 is free."
    assert history.now_of(run) == (Code.GPUS, {"said": run.message})
    run.reason, run.blocked_reason, run.message = "Queue", "Queue", "The queue is stopped."
    run.blocked_message = run.message
    assert history.now_of(run) == (Code.CLOUD, {"said": run.message})
    run.reason, run.started_at = "", at + MINUTE
    assert history.now_of(run) == (Code.STARTED, {"seconds": 60})
    # One of an older version of the portal has only its sentence.
    run.wait_reason, run.wait_message = "QuotaExceeded", "Waiting for quota."
    assert history.now_of(run) == (Code.QUOTA, {"said": "Waiting for quota."})


def test_in_a_browser_lines_have_the_readers_time_and_can_be_linked(cloud: Told, people: Any, live_server: Any) -> None:
    """What only a browser does: the zone, the fold that opens for a link and stays as the reader left it."""
    see(2)
    create_theirs(people, 16, "theirs")
    theirs = Run.objects.get(cluster__name="theirs")
    reconcile.reconcile(theirs.pk)
    places.place("training")
    run = submit(people, "gang", 8)
    Run.objects.filter(pk=run.pk).update(created_at=now() - MINUTE)
    places.place("training")
    Decision.objects.filter(run=run, number=1).update(at=dt.datetime(2026, 1, 31, 18, 0, tzinfo=dt.UTC))
    with chromium() as browser:
        context = browser.new_context(base_url=live_server.url, timezone_id="Asia/Shanghai")
        give_session(context, live_server.url, "bob")
        page = context.new_page()
        page.goto("/clusters/ops-demo/gang")
        waited = page.locator("#waited")
        expect(waited.locator("summary")).to_have_text("Why it waits")
        expect(waited.locator("#decision-1")).to_contain_text("2026-02-01 02:00:00")
        expect(waited.locator("#decision-2")).to_contain_text("It needs 8 GPUs; 0 of 16 are free")
        assert_fits(page, "waits")
        see(3)
        places.place("training")
        get_nodes(run)
        expect(waited.locator("#decision-4")).to_contain_text("2 s after it got its places")
        page.goto("/clusters/ops-demo/gang")
        expect(waited.locator("#decision-4")).to_be_hidden()
        page.goto("/clusters/ops-demo/gang#decision-2")
        expect(waited.locator("#decision-2")).to_be_visible()
        with page.expect_response(lambda response: "/progress" in response.url):
            Run.objects.filter(pk=run.pk).update(roles={"master": {"ready": 0, "count": 1}})
        expect(waited.locator("#decision-2")).to_be_visible()
        assert_fits(page, "waited")
