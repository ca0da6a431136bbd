"""Idle applications as rows: announced by mail, kept, withdrawn, stopped as by Disable; and the GPU time this has saved."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from clusters.clouds.drivers.base import ActivitySeen, Batch

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def notebook(catalogue: None, people: Any) -> Any:
    """notebook(policy="stop") → a notebook of bob's that has just started, on a cloud that was heard."""
    from clusters.applications.actions import create_application
    from clusters.applications.manifest import ApplicationManifest
    from clusters.clouds.models import CloudState
    from clusters.runs.models import Run

    def make(name: str = "lab", *, gpus: int = 0, **spec: Any) -> Any:
        flavor = "one-gpu" if gpus else "small"
        spec = {"type": "jupyter", "image": "python", "flavor": flavor, "storage": {"size": "1Gi"}, **spec}
        body = {"metadata": {"name": name, "appcode": "ops-demo"}, "spec": spec}
        cluster = create_application(ApplicationManifest.model_validate(body), acting_user=people.bob)
        now = dt.datetime.now(dt.UTC)
        CloudState.objects.update_or_create(name="local", defaults={"heard_at": now, "position": "x"})
        Run.objects.filter(pk=cluster.current_run_id).update(
            phase="Running", started_at=now - 5 * HOUR, admitted_at=now - 5 * HOUR, applied_at=now - 5 * HOUR, look_at=now,
            roles={"notebook": {"ready": 1, "count": 1}},
        )  # fmt: skip
        return Run.objects.get(pk=cluster.current_run_id)

    return make


def tell(run: Any, state: str, since: dt.datetime, why: str = "") -> None:
    """Applies the activity as the watch of its cloud does."""
    from clusters.runs.status.observe import apply_batch

    apply_batch("local", Batch("x", (ActivitySeen(run.pk, state, since, why),)))  # type: ignore[arg-type]


def turn(run: Any, now: dt.datetime | None = None) -> Any:
    from clusters.runs import idle

    idle.turn(now or dt.datetime.now(dt.UTC))
    run.refresh_from_db()
    return run


def rested(run: Any, hours: float) -> Any:
    """Makes the run idle for that many hours; returns it after a turn."""
    from clusters.runs.models import Run

    tell(run, "idle", dt.datetime.now(dt.UTC))
    since = dt.datetime.now(dt.UTC) - hours * HOUR
    Run.objects.filter(pk=run.pk).update(activity_since=since)
    return turn(run)


def verbs(run: Any) -> list[str]:
    from portal.models import Event

    wanted = ("run.idle", "run.end", "run.need", "cluster.kept")
    return [verb for verb in Event.objects.order_by("pk").values_list("verb", flat=True) if verb.startswith(wanted)]


def letters() -> list[Any]:
    from billing.mails import Mail

    return list(Mail.objects.order_by("pk"))


def test_it_is_announced_by_mail_and_then_stopped_with_its_reason(notebook: Any, people: Any) -> None:
    from clusters.runs.models import Run

    run = rested(notebook(), 3)
    notice = run.idle_stops_at - run.idle_announced_at
    assert notice == dt.timedelta(minutes=10)
    [letter] = letters()
    assert letter.to == [people.bob.email]
    assert "ops-demo/lab: will be stopped at" in letter.subject
    assert "/applications/ops-demo/lab" in letter.text
    assert turn(run).desired == "running"
    Run.objects.filter(pk=run.pk).update(
        idle_announced_at=run.idle_announced_at - notice, look_at=run.idle_announced_at
    )
    run = turn(run)
    assert (run.desired, run.stop_reason) == ("ended", "Idle")
    assert run.stop_message == "Stopped after 2 hours without work. Its files are kept, and Re-Deploy resumes it."
    assert verbs(run) == ["run.idle_announced", "run.ended"]
    assert len(letters()) == 1


@pytest.mark.parametrize("state", ["busy", "unknown"])
def test_work_withdraws_it_and_so_does_that_nobody_knows(state: str, notebook: Any) -> None:
    run = rested(notebook(), 3)
    assert run.idle_announced_at
    tell(run, state, dt.datetime.now(dt.UTC), "A cell runs.")
    run = turn(run)
    assert (run.idle_announced_at, run.idle_stops_at, run.activity) == (None, None, state)
    assert verbs(run) == ["run.idle_announced", "run.idle_withdrawn"]


def test_old_news_and_wrong_clocks_count_from_when_they_are_told(notebook: Any) -> None:
    run = notebook()
    now = dt.datetime.now(dt.UTC)
    tell(run, "busy", now)
    tell(run, "idle", now - 9 * HOUR)
    run = turn(run)
    assert run.activity_since >= now
    assert run.idle_announced_at is None
    tell(run, "idle", now - 9 * HOUR)
    tell(run, "unknown", now + 9 * HOUR)
    tell(run, "idle", now + 9 * HOUR)
    run.refresh_from_db()
    assert run.activity_since <= dt.datetime.now(dt.UTC)


def test_a_silent_cloud_stops_nothing(notebook: Any) -> None:
    from clusters.clouds.models import CloudState
    from clusters.runs.models import Run

    run = notebook()
    tell(run, "idle", dt.datetime.now(dt.UTC))
    Run.objects.filter(pk=run.pk).update(activity_since=dt.datetime.now(dt.UTC) - 9 * HOUR)
    heard = CloudState.objects.get(name="local").heard_at
    CloudState.objects.update(heard_at=heard - dt.timedelta(minutes=1))
    run = turn(run)
    assert (run.idle_announced_at, letters()) == (None, [])
    # It is checked again soon, without any news.
    CloudState.objects.update(heard_at=dt.datetime.now(dt.UTC))
    Run.objects.update(look_at=run.look_at - dt.timedelta(minutes=1))
    assert turn(run).idle_announced_at


def test_who_keeps_it_has_it_for_another_while(notebook: Any, people: Any) -> None:
    from clusters.cluster import actions
    from portal.errors import Conflict

    run = rested(notebook(), 3)
    actions.keep(run.cluster, acting_user=people.alice)
    run = turn(run)
    assert run.idle_announced_at is None
    assert run.look_at - run.kept_at == 2 * HOUR - dt.timedelta(minutes=10)
    assert verbs(run)[-1] == "cluster.kept"
    actions.disable(run.cluster, acting_user=people.bob)
    with pytest.raises(Conflict, match="nothing to keep"):
        actions.keep(run.cluster, acting_user=people.bob)


def test_policies_that_stop_nothing(notebook: Any) -> None:
    told = rested(notebook("told", idle={"policy": "announce", "after": 3600}), 9)
    assert (told.idle_stops_at, told.desired, len(letters())) == (None, "running", 1)
    left = rested(notebook("left", idle={"policy": "never"}), 9)
    assert (left.idle_announced_at, left.desired, len(letters())) == (None, "running", 1)


def test_a_time_limit_is_announced_too(notebook: Any) -> None:
    from clusters.runs.models import Run

    run = notebook(timeLimit=86400)
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=9)
    Run.objects.filter(pk=run.pk).update(deadline=soon)
    run = turn(run)
    assert run.end_announced_at
    assert "reaches its time limit at" in letters()[0].subject
    assert turn(run, soon).desired == "running"  # the time limit itself will end it


def test_what_has_no_end_is_asked_about_with_its_cost_and_goes_on(notebook: Any, people: Any) -> None:
    from clusters.cluster import actions
    from clusters.runs.idle_policy import ASK_EVERY
    from clusters.runs.models import Run

    run = notebook(idle={"policy": "never"})
    Run.objects.update(started_at=dt.datetime.now(dt.UTC) - ASK_EVERY)
    run = turn(run)
    [letter] = letters()
    assert letter.subject == "ops-demo/lab: is it still needed? 0.00 USD so far"
    assert (run.desired, run.needed_asked_at is not None) == ("running", True)
    actions.keep(run.cluster, acting_user=people.bob)
    assert turn(run).look_at == run.kept_at + ASK_EVERY
    assert len(letters()) == 1


def test_visits_are_what_counts_where_a_program_does_nothing_by_itself(notebook: Any, monkeypatch: Any) -> None:
    """TensorBoard, for example."""
    from clusters.frameworks import FRAMEWORKS
    from clusters.gateway import visits
    from clusters.gateway.models import Origin
    from clusters.runs.models import Run

    run = notebook()
    monkeypatch.setattr(type(FRAMEWORKS["jupyter"]), "idle_signal", "use")
    monkeypatch.setattr(visits, "_noted", {})
    [label] = run.cluster.origins.values()
    visits.note_use(label)
    run = turn(run)
    assert run.idle_announced_at is None
    Origin.objects.update(used_at=dt.datetime.now(dt.UTC) - 3 * HOUR)
    Run.objects.update(look_at=dt.datetime.now(dt.UTC))
    run = turn(run)
    assert run.idle_announced_at
    # Another visit within a minute is not recorded.
    visits.note_use(label)
    Run.objects.update(look_at=dt.datetime.now(dt.UTC))
    assert turn(run).idle_announced_at
    monkeypatch.setattr(visits, "_noted", {})
    visits.note_use(label)
    Run.objects.update(look_at=dt.datetime.now(dt.UTC))
    assert turn(run).idle_announced_at is None


def test_what_stops_gave_back_is_counted_until_somebody_deploys_again(notebook: Any, people: Any) -> None:
    from clusters.runs.idle import saved
    from clusters.runs.models import Cluster, Run

    run, now = notebook(gpus=1), dt.datetime.now(dt.UTC)
    Run.objects.filter(pk=run.pk).update(
        stop_reason="Idle", phase="Stopped", gone=True, desired="ended", finished_at=now - 5 * HOUR
    )
    everything = Cluster.objects.values("pk")
    assert saved(everything, now - 99 * HOUR) == pytest.approx(5 * 3600, abs=60)
    assert saved(everything, now - 2 * HOUR) == pytest.approx(2 * 3600, abs=60)
    copy = Run.objects.get(pk=run.pk)
    copy.pk, copy.number, copy.stop_reason = None, run.number + 1, ""
    copy.save()
    Run.objects.filter(pk=copy.pk).update(created_at=now - 4 * HOUR)
    assert saved(everything, now - 99 * HOUR) == pytest.approx(3600, abs=60)
    Run.objects.filter(stop_reason="Idle").update(stop_reason="Disabled")
    assert saved(everything, now - 99 * HOUR) == 0
