"""The user who started a run, and no other, is notified of its phases as they chose."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from standardwebhooks import Webhook as Verifier

from portal.models import Delivery, Membership, Webhook
from portal.webhooks import sending
from tests.portal.receiver import receiving, say

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stopped(catalogue: None, manifest: Any, people: Any) -> Any:
    """stopped("a") → a run that bob started and alice stopped before it was applied to a cloud."""
    from clusters.cluster.actions import create_cluster, disable

    def make(name: str) -> Any:
        cluster = create_cluster(manifest(name), acting_user=people.bob)
        disable(cluster, acting_user=people.alice)
        cluster.refresh_from_db()
        return cluster.current_run

    return make


def choose(user: Any, **said: Any) -> str | None:
    from portal.profile.notifications import Notifications, set_notifications

    return set_notifications(Notifications.model_validate(said), acting_user=user)


@pytest.fixture
def receiver(settings: Any) -> Any:
    settings.WEBHOOK_HTTP = True
    with receiving() as receiver:
        yield receiver


def letters() -> list[Any]:
    from billing.mails import Mail

    return list(Mail.objects.order_by("pk"))


def test_a_mail_and_a_notification_tell_who_started_it(stopped: Any, people: Any, client: Any) -> None:
    began = dt.datetime.now(dt.UTC).isoformat()
    stopped("silent")
    choose(people.bob, mail=["stopped"], browser=["stopped"])
    choose(people.alice, mail=["running", "succeeded", "failed", "stopped"], browser=["stopped"])
    run = stopped("told")
    [letter] = letters()
    assert (letter.to, letter.subject) == ([people.bob.email], "ops-demo/told: Stopped")
    assert run.message in letter.text
    assert "/clusters/ops-demo/told\n" in letter.text

    client.force_login(people.bob)
    said = client.get("/frame/news", {"since": began}).json()
    assert [(one["title"], one["url"]) for one in said["news"]] == [
        ("ops-demo/silent: Stopped", "/clusters/ops-demo/silent"), ("ops-demo/told: Stopped", "/clusters/ops-demo/told"),
    ]  # fmt: skip
    again = client.get("/frame/news", {"since": said["now"]}).json()["news"]
    assert again == said["news"], "what may have been written down late is told again, by the same keys"
    assert client.get("/frame/news").json()["news"] == []
    client.force_login(people.alice)
    assert client.get("/frame/news", {"since": began}).json()["news"] == []


def test_who_has_left_the_appcode_is_told_nothing(stopped: Any, people: Any, client: Any) -> None:
    from clusters.runs.status.notifications import tell
    from portal.models import Event

    began = dt.datetime.now(dt.UTC).isoformat()
    choose(people.bob, mail=["stopped"], browser=["stopped"])
    run = stopped("before")
    Membership.objects.filter(user=people.bob).delete()
    run.phase = "Failed"
    tell([(run, Event.objects.latest("pk"))])
    assert len(letters()) == 1
    client.force_login(people.bob)
    assert client.get("/frame/news", {"since": began}).json()["news"] == []


def test_choices_are_judged_at_their_field(people: Any, client: Any) -> None:
    client.force_login(people.bob)
    said = client.put(
        "/api/v1/me/notifications", {"mail": ["failed", "running", "failed"]}, content_type="application/json"
    )
    assert said.json() == {"mail": ["running", "failed"], "browser": [], "webhook": None, "secret": None}
    said = client.put("/api/v1/me/notifications", {"mail": ["lost"]}, content_type="application/json")
    assert said.status_code == 422
    assert "mail" in str(said.json()["errors"][0])
    people.bob.refresh_from_db()
    assert people.bob.mail_phases == ["running", "failed"]


def test_many_that_end_at_one_moment_are_all_told(stopped: Any, people: Any, client: Any) -> None:
    from clusters.runs.models import Run

    began = dt.datetime.now(dt.UTC).isoformat()
    choose(people.bob, browser=["stopped"])
    run = stopped("many")
    for number in range(2, 14):
        run.pk, run.number, run._state.adding = None, number, True
        run.save()
    assert Run.objects.values("phase_since").distinct().count() == 1
    client.force_login(people.bob)
    told: set[str] = set()
    for _ in range(3):
        said = client.get("/frame/news", {"since": began}).json()
        told |= {one["key"] for one in said["news"]}
        began = said["now"]
    assert len(told) == 13


# Personal webhooks


def test_ones_own_webhook_hears_of_ones_own_runs(
    stopped: Any, people: Any, client: Any, manifest: Any, receiver: Any
) -> None:
    from clusters.cluster.actions import create_cluster, disable

    client.force_login(people.bob)
    webhook = {"url": receiver.url, "phases": ["stopped", "running"]}
    body = {"browser": ["failed"], "webhook": webhook}
    said = client.put("/api/v1/me/notifications", body, content_type="application/json").json()
    kept = {
        "mail": [],
        "browser": ["failed"],
        "webhook": {**webhook, "phases": ["running", "stopped"], "enabled": True},
    }
    assert said == {**kept, "secret": said["secret"]}
    assert client.get("/api/v1/me/notifications").json() == kept
    again = client.put("/api/v1/me/notifications", kept, content_type="application/json").json()
    assert again == {**kept, "secret": None}

    stopped("mine")
    disable(create_cluster(manifest("hers"), acting_user=people.alice), acting_user=people.bob)
    sending.send_due()
    [(headers, content)] = receiver.got
    message = Verifier(said["secret"]).verify(content, headers)
    assert (message["type"], message["data"]["object"]) == ("run.stopped", "cluster ops-demo/mine")
    [row] = client.get("/api/v1/me/webhook/deliveries").json()["items"]
    assert (row["id"], row["state"]) == (headers["webhook-id"], "delivered")

    client.post(f"/api/v1/me/webhook/deliveries/{row['uid']}/again")
    client.post("/api/v1/me/webhook/test")
    secret = client.post("/api/v1/me/webhook/rotate").json()["secret"]
    sending.send_due()
    told = [Verifier(secret).verify(sent, signed)["type"] for signed, sent in receiver.got[1:]]
    assert sorted(told) == ["run.stopped", "webhook.test"]

    for other in (people.alice, people.root):
        client.force_login(other)
        assert client.get("/api/v1/me/webhook").status_code == 404
        assert client.get(f"/api/v1/me/webhook/deliveries/{row['uid']}").status_code == 404
        assert client.get(f"/profile/webhook/deliveries/{row['uid']}").status_code == 404
    assert client.get("/api/v1/webhooks").json()["items"] == []
    assert client.get("/api/v1/webhooks/me").status_code == 404
    assert "127.0.0.1" not in client.get("/admin/webhooks").content.decode()

    client.force_login(people.bob)
    client.put("/api/v1/me/notifications", {}, content_type="application/json")
    assert client.get("/api/v1/me/webhook").status_code == 404
    assert Webhook.objects.get().url == "-"
    stopped("later")
    assert sending.send_due() == 0


def test_what_waits_for_who_has_gone_is_not_sent(
    stopped: Any, people: Any, client: Any, manifest: Any, receiver: Any
) -> None:
    """One member leaves and one is deactivated between the first attempt and the next."""
    from clusters.cluster.actions import create_cluster, disable
    from portal.actions.people import set_person_active

    receiver.answer = lambda handler, n: say(handler, 500)
    choose(people.bob, webhook={"url": receiver.url, "phases": ["stopped"]})
    stopped("left")
    sending.send_due()
    membership = Membership.objects.get(user=people.bob)
    membership.delete()
    Delivery.objects.update(next_at=dt.datetime.now(dt.UTC))
    assert sending.send_due() == 0
    row = Delivery.objects.get()
    assert (row.state, row.error) == ("failed", sending.LEFT)
    client.force_login(people.bob)
    assert client.get(f"/api/v1/me/webhook/deliveries/{row.uid}").status_code == 404

    membership.save(force_insert=True)
    assert client.post(f"/api/v1/me/webhook/deliveries/{row.uid}/again").status_code == 202
    assert client.post("/api/v1/me/webhook/test").status_code == 202
    later = create_cluster(manifest("later"), acting_user=people.bob)
    set_person_active(people.bob, active=False, acting_user=people.root)
    assert sending.send_due() == 0
    assert set(Delivery.objects.values_list("state", flat=True)) == {"failed"}
    disable(later, acting_user=people.alice)
    assert Delivery.objects.count() == 2
    assert len(receiver.got) == 1


def test_many_runs_are_told_by_the_same_number_of_queries(stopped: Any, people: Any, receiver: Any) -> None:
    from clusters.runs.models import Run
    from clusters.runs.status.notifications import tell
    from portal import events

    choose(people.bob, webhook={"url": receiver.url, "phases": ["stopped"]})
    stopped("many")
    run = Run.objects.select_related("cluster__appcode").get()
    asked = []
    for count in (1, 5):
        with transaction.atomic():
            moved = [(run, events.record("run.stopped", actor=None, appcode="ops-demo")) for _ in range(count)]
            with CaptureQueriesContext(connection) as queries:
                tell(moved)
        asked.append(len(queries))
    assert asked == [4, 4]
    assert Delivery.objects.count() == 7


def test_a_receiver_that_is_gone_is_told_by_mail_and_on_the_profile(
    stopped: Any, people: Any, client: Any, receiver: Any
) -> None:
    receiver.answer = lambda handler, n: say(handler, 410)
    choose(people.bob, webhook={"url": receiver.url, "phases": ["stopped"]})
    stopped("gone")
    sending.send_due()
    [letter] = letters()
    assert (letter.to, letter.subject) == ([people.bob.email], "Your webhook is disabled")
    client.force_login(people.bob)
    assert "Its receiver answered 410 Gone. Saving enables it again." in client.get("/profile").content.decode()
    receiver.answer = None
    typed = {"webhook": ["stopped"], "url": receiver.url}
    assert client.post("/profile/notifications", typed).status_code == 302
    assert Webhook.objects.get().enabled


def test_the_form_says_what_is_wrong_with_a_webhook_at_its_field(people: Any, client: Any, receiver: Any) -> None:
    client.force_login(people.bob)
    for typed, name, words in (
        ({"webhook": ["failed"]}, "url", "Fill this in."),
        ({"url": receiver.url}, "webhook", "Fill this in."),
        (
            {"url": "ftp://x", "webhook": ["failed"]},
            "url",
            "Give the URL of a server, like https://example.com/hooks/gpu.",
        ),
        ({"url": "http://10.0.0.1/", "webhook": ["failed"]}, "url", "10.0.0.1 is closed: its address is private"),
        ({"mail": ["lost"]}, "mail", "lost is not one of the available choices"),
    ):
        said = client.post("/profile/notifications", typed)
        assert said.status_code == 200
        errors = said.context["notifications"].errors
        assert list(errors) == [name]
        assert words in errors[name][0]
        assert errors[name][0] in said.content.decode()
    assert not Webhook.objects.exists()
    people.bob.refresh_from_db()
    assert people.bob.mail_phases == []
    body = {"webhook": {"url": "http://10.0.0.1/", "phases": ["failed"]}}
    said = client.put("/api/v1/me/notifications", body, content_type="application/json")
    assert [one["path"] for one in json.loads(said.content)["errors"]] == ["webhook.url"]
    made = client.post("/profile/notifications", {"url": receiver.url, "webhook": ["failed"]})
    assert Webhook.objects.get().secret in made.content.decode()


def test_the_bell_tells_ends_and_decisions_to_whom_they_concern_until_they_are_read(stopped: Any, people: Any) -> None:
    from portal.events import record
    from portal.models import User
    from portal.profile import bell

    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    User.objects.update(told_until=long_ago)
    stopped("a")
    with transaction.atomic():
        for verb in ("appcode.requested", "appcode.approved", "budget.acted"):
            record(verb, actor=people.root, appcode="ops-demo", message=f"{verb}!")
        record("budget.acted", actor=None, appcode="flight-demo", message="of another")
    titles = {
        name: [line.news.title for line in bell.lines(getattr(people, name), "")[0]]
        for name in ("bob", "alice", "mallory", "root")
    }
    decided = ["ops-demo: the budget has acted", "ops-demo: request approved"]
    assert titles["bob"] == [*decided, "ops-demo/a: Stopped"]
    assert titles["alice"] == decided
    assert not any("ops-demo" in title for title in titles["mallory"])
    assert titles["root"] == []  # did it all
    User.objects.filter(pk=people.root.pk).update(told_until=long_ago)
    with transaction.atomic():
        record("appcode.requested", actor=people.alice, appcode="ops-demo", message="asked")
    [waits] = bell.lines(people.root, "")[0]
    assert (waits.waits, waits.news.title) == (True, "ops-demo waits for a decision")

    bob = User.objects.get(pk=people.bob.pk)
    with CaptureQueriesContext(connection) as seen:
        assert bell.unread(bob) == 3
    assert len(seen) == 1
    shown = bell.lines(bob, "")[0]
    stopped("b")  # after the page was made: still unread
    bell.read(bob, shown[0].news.at)
    bell.read(bob, long_ago)
    bob.refresh_from_db()
    assert bell.unread(bob) == 1
    first, *others = bell.lines(bob, "")[0]
    assert (first.news.title, first.is_new, {line.is_new for line in others}) == ("ops-demo/b: Stopped", True, {False})
    titles_by_page, cursor = [], ""
    while not titles_by_page or cursor:
        [line], cursor = bell.lines(bob, cursor, 1)
        titles_by_page.append(line.news.title)
    assert titles_by_page == ["ops-demo/b: Stopped", *decided, "ops-demo/a: Stopped"]


def test_the_bell_says_an_exception_once_and_what_a_run_came_to(make_cluster: Any, people: Any) -> None:
    from portal.profile import bell

    error = "ValueError: no (master-0, exit code 1)"
    log = 'Traceback (most recent call last):\n  File "train.py", line 1\nValueError: no'
    make_cluster("bad", phase="Failed", run={"message": f"{error}\n{log}"})
    numbers = [["loss", 0.25], ["accuracy", "NaN"]]
    make_cluster("good", phase="Succeeded", run={"message": "The master has finished.", "headline": numbers})
    make_cluster("mute", phase="Succeeded", run={"message": "The master has finished."})
    told = {line.news.title: line.news.text for line in bell.lines(people.alice, "")[0]}
    assert told == {
        "ops-demo/bad: Failed": f"Run 1. {error}",
        "ops-demo/good: Succeeded": "Run 1. loss 0.25, accuracy NaN",
        "ops-demo/mute: Succeeded": "Run 1. The master has finished.",
    }


def test_the_bell_tells_ends_of_wholes_lost_gpus_and_notices_to_who_started_them(people: Any, client: Any) -> None:
    """Not parts, not what was withdrawn, and not who started nothing of it."""
    from clusters.admission.codes import Code
    from clusters.benchmarks.models import Benchmark
    from clusters.pipelines.models import Pipeline, PipelineRun, StageRun
    from clusters.runs.models import Cluster, Decision, Run
    from clusters.sweeps.models import Sweep
    from portal.models import User

    began = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    User.objects.update(told_until=began)
    at = [began + dt.timedelta(minutes=n) for n in range(20)]
    of = {"appcode": people.ops, "spec": {}, "created_by": people.bob}
    ended = {**of, "phase": "Failed", "message": "None has ended.\nAt length."}
    Sweep.objects.create(name="lr", **ended, acts_for=people.bob, finished_at=at[1])
    stage = Sweep.objects.create(name="part", **ended, acts_for=people.bob, finished_at=at[2])
    Sweep.objects.create(name="lives", **of, acts_for=people.bob)
    Benchmark.objects.create(name="scale", **ended, finished_at=at[3])
    pipeline = Pipeline.objects.create(name="nightly", **of)
    of_pipeline = PipelineRun.objects.create(
        pipeline=pipeline, number=4, spec={}, phase="Succeeded", finished_at=at[4], created_by=people.bob
    )
    StageRun.objects.create(pipeline_run=of_pipeline, stage="search", sweep=stage)

    def run(name: str, **more: Any) -> Run:
        cluster = Cluster.objects.create(name=name, **of, framework="jupyter", part_of=more.pop("part_of", ""))
        spec = {"framework": "jupyter"}
        given = {"phase": "Running", "resources": {}, "gpus": 1, "created_by": people.bob, **more}
        return Run.objects.create(cluster=cluster, number=1, spec=spec, **given)

    run("idle", idle_announced_at=at[5], idle_stops_at=at[19])
    run("late", idle_announced_at=at[1], end_announced_at=at[6], deadline=at[19])
    run("over", idle_announced_at=at[7], phase="Stopped", phase_since=at[8], gone=True)
    for name, part_of in (("spare", ""), ("trial", "sweeps/lr")):
        loses = {"gpus": 1, "seconds": 60, "saved": 0, "spare": 1}
        Decision.objects.create(run=run(name, part_of=part_of), number=1, at=at[9], code=Code.TAKEN_BACK, values=loses)
    Decision.objects.create(run=run("tries"), number=1, at=at[10], code=Code.GIVEN_BACK, values={"whole": 0})

    client.force_login(people.bob)
    told = client.get("/api/v1/me/bell").json()["items"]
    assert [(one["type"], one["title"], one["waits"], one["isNew"]) for one in told] == [
        ("run.taken_back", "ops-demo/spare: GPUs taken back", False, True),
        ("run.stopped", "ops-demo/over: Stopped", False, True),
        ("run.end_announced", "ops-demo/late: reaches its time limit", False, True),
        ("run.idle_announced", "ops-demo/idle: does nothing", True, True),
        ("pipeline.succeeded", "ops-demo/nightly-4: Succeeded", False, True),
        ("benchmark.failed", "ops-demo/scale: Failed", False, True),
        ("sweep.failed", "ops-demo/lr: Failed", False, True),
    ]
    assert (told[-1]["text"], told[-1]["url"]) == ("None has ended.", "/sweeps/ops-demo/lr")
    assert "It is stopped at 2026-01-01 12:19 UTC" in told[3]["text"]
    page = client.get("/notifications").content.decode()
    assert all(one["url"].replace("&", "&amp;") in page for one in told)

    first = client.get("/api/v1/me/bell?limit=3").json()
    assert client.get(first["next"]).json()["items"] == told[3:6]
    assert client.get("/api/v1/me/bell?cursor=bm9uZQ").status_code == 422
    body = {"until": told[2]["at"]}
    assert client.put("/api/v1/me/bell/read", body, content_type="application/json").json() == {**body, "unread": 2}
    assert client.get("/api/v1/me/bell/read").json() == {**body, "unread": 2}
    client.force_login(people.alice)
    assert client.get("/api/v1/me/bell").json()["items"] == []
