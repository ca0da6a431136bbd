"""Who started a run is told of its phases as they have chosen, and nobody else is."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stopped(catalogue: None, manifest: Any, people: Any) -> Any:
    """stopped("a") → a run that bob started and alice stopped before any cloud heard of it."""
    from clusters.actions import create_cluster, disable

    def make(name: str) -> Any:
        cluster = create_cluster(manifest(name), acting_user=people.bob)
        disable(cluster, acting_user=people.alice)
        cluster.refresh_from_db()
        return cluster.current_run

    return make


def choose(user: Any, **said: list[str]) -> None:
    from portal.notifications import Notifications, set_notifications

    set_notifications(Notifications.model_validate(said), acting_user=user)


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
    from clusters.runs.telling import mail_news
    from portal.models import Membership

    began = dt.datetime.now(dt.UTC).isoformat()
    choose(people.bob, mail=["stopped"], browser=["stopped"])
    run = stopped("before")
    Membership.objects.filter(user=people.bob).delete()
    run.phase = "Failed"
    mail_news([run])
    assert len(letters()) == 1
    client.force_login(people.bob)
    assert client.get("/frame/news", {"since": began}).json()["news"] == []


def test_choices_are_judged_at_their_field(people: Any, client: Any) -> None:
    client.force_login(people.bob)
    said = client.put(
        "/api/v1/me/notifications", {"mail": ["failed", "running", "failed"]}, content_type="application/json"
    )
    assert said.json() == {"mail": ["running", "failed"], "browser": []}
    said = client.put("/api/v1/me/notifications", {"mail": ["lost"]}, content_type="application/json")
    assert said.status_code == 422
    assert "mail" in str(said.json()["errors"][0])
    people.bob.refresh_from_db()
    assert people.bob.mail_phases == ["running", "failed"]


def test_many_that_end_at_one_moment_are_all_told(stopped: Any, people: Any, client: Any) -> None:
    from clusters.models import Run

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
