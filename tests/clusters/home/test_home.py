"""The first page: everything that lives in one order, whatever its kind; what each user sees; and what a page costs."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
from typing import Any

import pytest
from django.core.cache import cache
from django.db import transaction
from django.utils import timezone

from clusters.home import pages
from clusters.pipelines.models import Pipeline, PipelineRun
from clusters.runs.models import Cluster, Run
from clusters.services.models import Service
from clusters.sweeps.models import Sweep
from portal.events import record
from tests.access.world import SAVED, pipeline, service, sweep

NAME = re.compile(r'class="lead name-cell">.*?<b>([^<]+)</b>', re.DOTALL)


def names(answer: Any) -> list[str]:
    return NAME.findall(answer.content.decode())


@pytest.fixture
def make(page_catalogue: None, people: Any) -> Any:
    """make("sweep", "lr", "Running", minutes=5) → an object of this kind that was active so many minutes ago."""

    def made(kind: str, name: str, phase: str, minutes: int = 0, appcode: Any = None) -> Any:
        appcode, by, at = appcode or people.ops, people.alice, timezone.now() - dt.timedelta(minutes=minutes)
        over = at if phase in ("Succeeded", "Failed", "Stopped") else None
        own = {"appcode": appcode, "name": name, "created_by": by}
        if kind == "sweep":
            row = Sweep.objects.create(spec=sweep(name)["spec"], phase=phase, finished_at=over, **own)
            Sweep.objects.filter(pk=row.pk).update(created_at=at)
            return row
        if kind == "service":
            return Service.objects.create(
                spec=service(name)["spec"], phase=phase, label=f"{name}-{appcode.code}", phase_since=at, **own
            )
        if kind == "pipeline":
            row = Pipeline.objects.create(spec=pipeline(name)["spec"], **own)
            run = PipelineRun.objects.create(
                pipeline=row, number=1, spec=row.spec, phase=phase, created_by=by, finished_at=over
            )
            PipelineRun.objects.filter(pk=run.pk).update(created_at=at)
            run.stages.create(stage="train", phase="Failed" if over else "Running")
            Pipeline.objects.filter(pk=row.pk).update(current_run=run)
            return row
        spec = {**SAVED, **({"framework": "jupyter"} if kind == "application" else {})}
        cluster = Cluster.objects.create(spec=spec, **own)
        run = Run.objects.create(
            cluster=cluster, number=1, spec=spec, resources={}, gpus=0, phase=phase, created_by=by, finished_at=over,
            gone=bool(over),
        )  # fmt: skip
        Run.objects.filter(pk=run.pk).update(created_at=at)
        Cluster.objects.filter(pk=cluster.pk).update(current_run=run)
        return cluster

    return made


@pytest.fixture
def several(make: Any, people: Any) -> list[str]:
    """One of each kind, in their order."""
    make("cluster", "done", "Succeeded", 1)
    make("sweep", "searched", "Succeeded", 2)
    make("application", "lab", "Stopped", 3)
    make("pipeline", "nightly", "Failed", 4)
    make("service", "answers", "Degraded", 50)
    make("sweep", "rests", "Paused", 60)
    make("cluster", "trains", "Running", 70)
    make("pipeline", "chain", "Running", 80)
    part = make("cluster", "lr-1", "Running")
    Cluster.objects.filter(pk=part.pk).update(part_of="sweeps/searched")
    make("service", "theirs", "Running", 0, people.flight)
    return ["answers", "rests", "trains", "chain", "done", "searched", "lab", "nightly"]


def test_all_kinds_are_in_one_order_and_everybody_sees_their_own(several: Any, people: Any, as_person: Any) -> None:
    assert names(as_person(people.alice).get("/")) == several
    assert names(as_person(people.victor).get("/home/rows")) == several
    assert names(as_person(people.mallory).get("/")) == ["theirs"]
    assert names(as_person(people.root).get("/")) == ["theirs", *several]


def test_who_has_run_nothing_is_led_to_the_first_hour(make: Any, people: Any, as_person: Any) -> None:
    def is_led(user: Any) -> bool:
        return "have not run anything yet" in as_person(user).get("/").content.decode()

    assert not is_led(people.bob), "the empty list says it better"
    make("cluster", "done", "Succeeded", 1)
    Run.objects.update(created_by=people.alice)
    assert [is_led(user) for user in (people.alice, people.bob, people.victor, people.root)] == [
        False,
        True,
        False,
        False,
    ]


def test_ended_runs_stand_by_their_start_here_and_on_clusters(make: Any, people: Any, as_person: Any) -> None:
    make("cluster", "short", "Succeeded", 30)
    long = make("cluster", "long", "Succeeded", 60)
    Run.objects.filter(cluster=long).update(finished_at=timezone.now())
    client = as_person(people.alice)
    assert names(client.get("/")) == names(client.get("/clusters")) == ["short", "long"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("search=AR", ["searched"]),
        ("search=ops+lab", ["lab"]),
        ("owner=bob", []),
        ("phase=running", ["answers", "rests", "trains", "chain"]),
        ("phase=Failed,stopped", ["lab", "nightly"]),
        ("phase=Lost", []),
        ("appcode=flight-demo", []),
        ("cursor=x", None),
        ("cursor=True~2026-01-01~sweep~99999999999999999999999", None),
        ("cursor=a~b~c~d", None),
        ("search=l%00ab", ["lab"]),
        ("sort=name", ["answers", "chain", "done", "lab", "nightly", "rests", "searched", "trains"]),
        ("sort=-name&phase=running", ["trains", "rests", "chain", "answers"]),
        ("sort=state", ["answers", "rests", "trains", "chain", "done", "searched", "nightly", "lab"]),
        ("sort=started", ["chain", "trains", "rests", "nightly", "lab", "searched", "done", "answers"]),
        ("sort=cost", None),
    ],
)
def test_search_and_filters(query: str, found: Any, several: list[str], people: Any, as_person: Any) -> None:
    assert names(as_person(people.alice).get(f"/?{query}")) == (several if found is None else found)


def test_chips_count_what_their_filter_shows(several: Any, people: Any, as_person: Any) -> None:
    context = as_person(people.alice).get("/?phase=Running").context
    assert [(title, count) for title, _, count in context["kinds"]] == [
        ("Clusters", 1), ("Applications", 0), ("Services", 1), ("Sweeps", 1), ("Pipelines", 1),
    ]  # fmt: skip
    assert dict(context["counts"]) == {
        "Queued": 0, "Starting": 0, "Running": 4, "Succeeded": 2, "Failed": 1, "Stopped": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("size", "sort"), [(1, ""), (3, ""), (1, "-state"), (2, "name"), (3, "-started")])
def test_pages_follow_each_other_without_gaps(
    size: int, sort: str, several: list[str], people: Any, as_person: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of one moment: the kind and the primary key decide.
    Sweep.objects.filter(name="searched").update(finished_at=Run.objects.get(cluster__name="done").finished_at)
    client, seen, address = as_person(people.alice), [], f"/?sort={sort}"
    whole = names(client.get(address))
    monkeypatch.setattr(pages, "ROWS", size)
    while address:
        page = client.get(address)
        seen += names(page)
        more = re.search(r'rel="next" href="([^"]+)"', page.content.decode())
        address = "/" + html.unescape(more[1]) if more else ""
    assert seen == whole
    assert sorted(seen) == sorted(several)


def test_what_rows_say(several: Any, people: Any, as_person: Any) -> None:
    page = as_person(people.alice).get("/").content.decode()
    rows = {NAME.findall(row)[0]: " ".join(row.split()) for row in page.split("<tr")[2:]}
    assert "0 of 3 trials" in rows["searched"]
    assert "all trials" in rows["searched"]
    assert 'href="/services/ops-demo/answers"' in rows["answers"]
    assert "this month" in rows["answers"]
    assert "1 of 1 stages" in rows["nightly"]
    assert "0 of 1 stages" in rows["chain"]
    assert "last run" in rows["trains"]
    assert 'href="/applications/ops-demo/lab"' in rows["lab"]
    assert all('data-label="Data" class="flow"></td>' in rows[name] for name in ("searched", "answers", "nightly"))


def test_cost_leads_to_clusters_sorted_by_it_with_the_same_filters(several: Any, people: Any, as_person: Any) -> None:
    client = as_person(people.alice)
    page = client.get("/?phase=Running&owner=alice").content.decode()
    for column in ("hours", "cost"):
        link = re.search(rf'href="(/clusters\?sort=-{column}[^"]*)"', page)
        assert link
        assert names(client.get(html.unescape(link[1]))) == ["trains"]
        assert f'href="/clusters?sort=-{column}"' in client.get("/").content.decode()


def test_a_page_takes_the_same_queries_however_many_there_are(
    several: Any, make: Any, people: Any, as_person: Any, django_assert_max_num_queries: Any
) -> None:
    for n in range(10):
        for kind in ("cluster", "application", "service", "sweep", "pipeline"):
            make(kind, f"{kind[:3]}-{n}", "Running", n)
    client = as_person(people.alice)
    client.get("/")
    with django_assert_max_num_queries(20):
        client.get("/home/rows")


def test_what_has_no_row_of_a_kind_asks_nothing_about_it(
    make: Any, people: Any, as_person: Any, django_assert_max_num_queries: Any
) -> None:
    make("cluster", "trains", "Running")
    client = as_person(people.alice)
    client.get("/")
    with django_assert_max_num_queries(7):
        assert client.get("/home/rows")["ETag"]


def test_nothing_changed_answers_304_and_a_change_does_not(several: Any, people: Any, as_person: Any) -> None:
    client = as_person(people.alice)
    etag = client.get("/home/rows")["ETag"]
    assert client.get("/home/rows", headers={"If-None-Match": etag}).status_code == 304
    Sweep.objects.filter(name="rests").update(phase="Running")
    assert client.get("/home/rows", headers={"If-None-Match": etag}).status_code == 200
    assert as_person(people.victor).get("/home/rows", headers={"If-None-Match": etag}).status_code == 200


def test_while_nothing_lives_a_poll_asks_only_whether_anything_happened(
    make: Any, people: Any, as_person: Any, django_assert_num_queries: Any, monkeypatch: Any
) -> None:
    for kind in ("cluster", "sweep", "pipeline"):
        make(kind, f"{kind}-over", "Failed")
    client = as_person(people.alice)

    def poll(**etag: str) -> Any:
        return client.get("/home/rows", headers={"If-None-Match": etag.get("etag", "")})

    known = poll()["ETag"]
    with django_assert_num_queries(2):  # the user, and the newest event
        assert poll(etag=known).status_code == 304
    with transaction.atomic():
        record("cluster.deleted", actor=people.bob, appcode="ops-demo", message="just now")
    assert poll(etag=known).status_code == 304
    with monkeypatch.context() as patch:
        # It is settled now, and the rows are as before: that holds until the next event.
        patch.setattr(pages, "SETTLED", dt.timedelta(0))
        cache.clear()  # of the counts
        assert poll(etag=known).status_code == 304
        with django_assert_num_queries(2):
            assert poll(etag=known).status_code == 304
    with transaction.atomic():
        record("cluster.deleted", actor=people.bob, appcode="ops-demo", message="just now")
    # It is too young to tell whether an older one is still to come.
    make("cluster", "new", "Running")
    answer = poll(etag=known)
    assert (answer.status_code, names(answer)[0]) == (200, "new")


def test_the_morning_line_and_a_new_appcode(several: Any, make_cluster: Any, people: Any, as_person: Any) -> None:
    make_cluster("waits", phase="Queued")
    make_cluster("held", phase="Running", by=people.bob, run={"gpu_rate": 3})
    client = as_person(people.alice)
    page = " ".join(client.get("/").content.decode().split())
    assert "<dt>Running GPUs</dt><dd>3 <small>0 mine</small>" in page
    assert "<dt>Waiting</dt><dd>1 <small>mine</small>" in page
    # An appcode alone is no filter: without clusters the page says what one is, and counts that appcode's money.
    page = client.get("/?appcode=ops-new").content.decode()
    assert "No clusters in ops-new yet" in page
    assert 'hx-get="/clusters/spent?appcode=ops-new"' in page


def test_clusters_are_stopped_in_place(several: Any, people: Any, as_person: Any) -> None:
    sent = {"cluster": ["ops-demo/trains"], "confirmed": "yes", "next": "/"}
    answer = as_person(people.alice).post("/clusters/disable-several", sent, headers={"HX-Request": "true"})
    assert json.loads(answer["HX-Trigger"])["said"] == [["success", "trains is stopping."]]
