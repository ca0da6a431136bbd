"""By which right a run holds its GPUs, as its people read it: inside the quota, borrowed or spare, from when on others may have
them, and what they are told when that happens."""

from __future__ import annotations

import datetime as dt
import html
import re
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from clusters.cluster.form.data import fields_of
from clusters.manifest.cluster import ClusterManifest
from clusters.runs.models import Cluster, Run, Task
from clusters.runs.placing import places
from portal.models import Appcode, Delivery, Event, Webhook
from portal.profile.notifications import Notifications, set_notifications
from tests.api.client import api_of
from tests.clusters.gangs import Told, gang, nodes
from tests.clusters.runs.placing import gone, older, place, pods, see, started, submit, tell, told_by

pytestmark = pytest.mark.django_db
LONG = dt.timedelta(minutes=11)


@pytest.fixture
def cloud(training: Any, monkeypatch: pytest.MonkeyPatch) -> Told:
    """16 GPUs on two nodes; each of the appcodes has a quota of 8 and may borrow 8."""
    see(*nodes(2))
    Appcode.objects.update(gpu_quota=8, gpu_borrow=8)
    return told_by(monkeypatch)


def running(people: Any, name: str, size: int, since: dt.timedelta = LONG, **spec: Any) -> Run:
    run = started(people, name, size, **spec)
    where = [node for held in run.layout.values() for node, count in held.items() for _ in range(count)][:size]
    tell(run, *pods(run, *where))
    older(run, since)
    Run.objects.filter(pk=run.pk).update(gpu_rate=size)
    run.refresh_from_db()
    return run


def text_of(user: Any, address: str) -> str:
    """What a reader sees of a page."""
    client = Client()
    client.force_login(user)
    answer = client.get(address)
    assert answer.status_code == 200
    return seen(answer.content.decode())


def seen(page: str) -> str:
    text = " ".join(html.unescape(re.sub(r"<(?!/?(?:a|b|code|time|small)\b)[^>]*>", " ", page)).split())
    return re.sub(r"<[^>]*>", "", text)


def test_page_lists_and_rest_say_by_which_right_and_from_when_on_others_may_have_it(
    cloud: Told, stores: None, people: Any
) -> None:
    running(people, "inside", 8)
    young = running(people, "young", 4, dt.timedelta(minutes=2))
    running(people, "spare", 2, priorityClass="spare", output="results")
    assert young.whole_at
    until = young.whole_at + dt.timedelta(minutes=10)
    said = {
        "inside": ("Inside the quota of ops-demo: no other appcode can take its GPUs", "Inside the quota"),
        "young": (f"from {until:%H:%M} UTC on, for a run that is inside its own quota", f"from {until:%H:%M} UTC on"),
        "spare": ("may be taken back at any time, for any run that is not spare.", "Spare, may be taken back at any time"),
    }  # fmt: skip
    queue = text_of(people.victor, "/queue").split("Holding GPUs")[1]
    listed = text_of(people.victor, "/")
    for name, (sentence, short) in said.items():
        assert sentence in text_of(people.victor, f"/clusters/ops-demo/{name}")
        assert short in queue
        assert (short in listed) == (name != "inside"), "what nobody can take says nothing in the list"
    assert "so all that it wrote is lost" in text_of(people.bob, "/clusters/ops-demo/young")
    assert "Files in /elearn/output stay" in text_of(people.bob, "/clusters/ops-demo/spare")

    api = api_of(people.victor)
    [queue] = [each for each in api.get("/queue")[1]["items"] if each["cloud"] == "training"]
    rights = {each["cluster"]: (each["right"], each["protectedUntil"]) for each in queue["holding"]}
    assert [rights[name][0] for name in said] == ["quota", "borrowed", "spare"]
    assert rights["inside"][1] is None
    assert dt.datetime.fromisoformat(rights["young"][1]) == until
    for item in api.get("/clusters")[1]["items"]:
        name = item["metadata"]["name"]
        whole = api.get(f"/appcodes/ops-demo/clusters/{name}")[1]
        history = api.get(f"/appcodes/ops-demo/clusters/{name}/runs/1/admission")[1]
        for found in (item["status"]["admission"], whole["status"]["admission"], history):
            assert (found["right"], found["protectedUntil"]) == rights[name]


def test_a_run_that_is_ending_or_where_the_portal_places_nothing_has_no_right(cloud: Told, people: Any) -> None:
    run = running(people, "over", 12)
    page = "/clusters/ops-demo/over"
    assert "Borrowed beyond" in text_of(people.bob, page)
    Run.objects.filter(pk=run.pk).update(desired="ended")
    assert "Borrowed beyond" not in text_of(people.bob, page)
    Run.objects.filter(pk=run.pk).update(desired="running", placed_at=None)
    assert "Borrowed beyond" not in text_of(people.bob, page)
    assert api_of(people.bob).get("/appcodes/ops-demo/clusters/over")[1]["status"]["admission"]["right"] is None


def test_rights_take_one_query_however_many_runs_are_listed(cloud: Told, people: Any) -> None:
    """Of an appcode that holds more than its quota, all runs are read."""

    def queries(address: str) -> int:
        client = Client()
        client.force_login(people.victor)
        cache.clear()  # Counts of the list live five seconds: what was counted before could end between the two.
        client.get(address)
        with CaptureQueriesContext(connection) as seen:
            assert client.get(address).status_code == 200
        return len(seen)

    addresses = ("/clusters/rows", "/api/v1/clusters", "/queue")
    Appcode.objects.update(gpu_quota=2, gpu_borrow=14)
    running(people, "first", 3)
    few = [queries(each) for each in addresses]
    for number in range(4):
        running(people, f"more-{number}", 2)
        running(people, f"spare-{number}", 1, priorityClass="spare")
    assert [queries(each) for each in addresses] == few


def test_who_started_it_is_told_that_it_is_taken_back_if_they_chose_so_and_never_for_whom(
    cloud: Told, people: Any, client: Any
) -> None:
    began = now()
    hook = {"url": "https://8.8.8.8/hook", "phases": ["taken_back"]}
    chosen = {"mail": ["taken_back"], "browser": ["taken_back"], "webhook": hook}
    set_notifications(Notifications.model_validate(chosen), acting_user=people.bob)
    set_notifications(Notifications.model_validate({"mail": ["failed"]}), acting_user=people.alice)
    run = running(people, "borrowing", 16)
    for _ in range(2):
        theirs = place(submit(people, f"theirs-{run.times_given_back}", 8, "flight-demo"))
        run.refresh_from_db()
        assert run.given_back_at
        tell(run, gone(run))
        Run.objects.filter(pk=theirs.pk).update(gone=True, phase="Stopped", desired="ended")
        assert place(run).placed_at
        tell(run, *pods(run, *["n0"] * 8, *["n1"] * 8))
        older(run, LONG)
    from billing.mails import Mail

    letters = list(Mail.objects.filter(to=[people.bob.email]))
    assert [each.subject for each in letters] == ["ops-demo/borrowing: GPUs taken back"] * 2, "one for each time"
    assert not Mail.objects.exclude(to=[people.bob.email]).exists()
    sent = Delivery.objects.filter(webhook=Webhook.objects.get(person=people.bob))
    assert [each.kind for each in sent] == ["run.taken_back"] * 2
    client.force_login(people.bob)
    news = client.get("/frame/news", {"since": began.isoformat()}).json()["news"]
    assert len({one["key"] for one in news}) == len(news) == 2
    why = "Its 16 GPUs were taken back: another appcode needs them inside its quota, and this run had borrowed them."
    assert why in news[0]["text"]
    assert why in text_of(people.bob, "/clusters/ops-demo/borrowing")
    told = [
        *(each.text for each in letters),
        *(str(each.__dict__) for each in Event.objects.filter(verb="run.taken_back")),
    ]
    told += [str(api_of(people.bob).get("/appcodes/ops-demo/clusters/borrowing/runs/1/admission")), str(news)]
    assert not [each for each in told if "flight" in each or "theirs" in each]


def test_a_waiting_run_is_not_counted_against_what_it_would_ask_for_instead(cloud: Told, people: Any) -> None:

    def preview() -> str:
        client = Client()
        client.force_login(people.bob)
        cluster = Cluster.objects.get(name="large")
        metadata = {"name": "large", "appcode": "ops-demo"}
        manifest = ClusterManifest.stored({"kind": "cluster", "metadata": metadata, "spec": cluster.spec})
        answer = client.post("/clusters/preview?change=ops-demo/large", fields_of(manifest))
        assert answer.status_code == 200
        return seen(answer.content.decode())

    running(people, "holds", 10)
    submit(people, "large", 8)
    page = preview()
    assert "needs 8 GPUs, 6 of the 16 that ops-demo may hold are free (8 of its quota and 8 borrowed)" in page
    assert "in the queue" not in page
    assert "stop it before" not in page
    assert "It would fit, and the runs before it come first." in submit(people, "small", 2).message
    Run.objects.filter(cluster__name__in=["holds", "small"]).update(gone=True)
    Task.objects.all().delete()
    assert "Starts now" in preview()


def test_a_preview_says_what_is_left_of_the_quota(cloud: Told, people: Any) -> None:
    def sentence(size: int) -> str:
        status, answer = api_of(people.bob).post("/appcodes/ops-demo/preview", gang(size, "new"))
        assert status == 200, answer
        return str(answer["message"])

    assert "it leaves 5 of the 8 GPUs of ops-demo." in sentence(3)
    running(people, "borrowing", 6)
    running(people, "larger", 4)
    assert "it leaves 0 of the 8 GPUs of ops-demo." in sentence(2), "what is borrowed takes nothing of the quota"
    assert (
        "2 of the 8 GPUs of the quota of ops-demo are left: with no more than that it would borrow none." in sentence(3)
    )
    running(people, "two", 2)
    assert "Of the quota of ops-demo nothing is left." in sentence(1)


def test_the_queue_is_in_the_order_in_which_runs_start(cloud: Told, people: Any) -> None:
    """Not in that of submission: `early` would borrow, `theirs` is inside its quota, and `urgent` is before who fills it."""
    Appcode.objects.update(gpu_borrow=20)
    running(people, "holds", 8)
    running(people, "borrowing", 8)
    submit(people, "spare", 1, priorityClass="spare")
    submit(people, "early", 1)
    submit(people, "urgent", 2, priorityClass="urgent")
    submit(people, "theirs", 4, "flight-demo")
    places.place("training")
    [found] = [each for each in api_of(people.root).get("/queue")[1]["items"] if each["cloud"] == "training"]
    waiting = {each["cluster"]: (each["place"], each["gpusBefore"], each["right"]) for each in found["waiting"]}
    assert {name: waiting[name] for name in ("theirs", "urgent", "early", "spare")} == {
        "theirs": (1, 0, "quota"), "urgent": (2, 4, "quota"), "early": (3, 6, "borrowed"), "spare": (4, 7, "spare"),
    }  # fmt: skip
    assert "would borrow" in text_of(people.bob, "/queue")
