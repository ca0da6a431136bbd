"""Who may hold which GPUs: borrowed ones are given back to those who need their quota, spare ones to anybody, and runs with a
time limit start where others wait for more. On a real database; only the cloud is not real."""

from __future__ import annotations

import datetime as dt
import importlib
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from clusters.cluster import actions
from clusters.runs import quota, reconcile
from clusters.runs.models import Run
from clusters.runs.placing import known, rights, room
from clusters.runs.queries.queue import queues
from portal.models import Appcode, Event
from tests.api.client import api_of
from tests.clusters.gangs import Told, gang, nodes
from tests.clusters.runs.placing import gone, older, place, pods, see, started, submit, tell, told_by

pytestmark = pytest.mark.django_db
LONG = dt.timedelta(minutes=11)


@pytest.fixture
def cloud(training: Any, monkeypatch: pytest.MonkeyPatch) -> Told:
    """24 GPUs on three nodes; each of the appcodes has a quota of 12 and may borrow 12."""
    see(*nodes(3))
    Appcode.objects.update(gpu_quota=12, gpu_borrow=12)
    return told_by(monkeypatch)


def running(
    people: Any, name: str, size: int, appcode: str = "ops-demo", since: dt.timedelta = LONG, **spec: Any
) -> Run:
    run = started(people, name, size, appcode, **spec)
    # Where its layout lets them go, not more on a node than it has.
    where = [node for held in run.layout.values() for node, count in held.items() for _ in range(count)][:size]
    tell(run, *pods(run, *where))
    older(run, since)
    run.refresh_from_db()
    assert run.whole_at
    return run


def test_what_is_borrowed_is_given_back_to_an_appcode_that_needs_its_quota(cloud: Told, people: Any) -> None:
    inside, borrowing = running(people, "inside", 8), running(people, "borrowing", 16)
    assert submit(people, "more", 1).reason == "QuotaExceeded", "24 GPUs are the limit of ops-demo"
    Run.objects.filter(cluster__name="more").update(desired="ended")
    theirs = place(submit(people, "theirs", 8, "flight-demo"))
    for run in (inside, borrowing):
        run.refresh_from_db()
    assert (inside.given_back_at, borrowing.given_back_at is not None) == (None, True)
    assert theirs.message.startswith(
        "It needs 8 GPUs. A run that borrowed its GPUs, or is of a lower class, gives them back for it"
    )
    event = Event.objects.get(verb="run.taken_back")
    assert "flight" not in str(event.__dict__)
    assert borrowing.message.startswith(
        "Another appcode needs its GPUs inside its quota, and this run has borrowed them."
    )
    # The next pass waits for it, and takes nothing more.
    said = "It needs 8 GPUs, which runs that are ending still hold. It starts as soon as they are free, at "
    assert place(theirs).message.startswith(said)
    reconcile.reconcile(borrowing.pk)
    assert cloud.deleted == [borrowing.pk]
    tell(borrowing, gone(borrowing))
    assert (borrowing.phase, borrowing.verdict) == ("Queued", "")
    assert place(theirs).placed_at
    assert (place(borrowing).placed_at, borrowing.reason) == (None, "WaitingForGPUs")
    inside.refresh_from_db()
    assert inside.given_back_at is None
    actions.disable(theirs.cluster, acting_user=people.root)
    tell(theirs, gone(theirs))
    assert place(borrowing).placed_at, "it starts again by itself"


def test_what_began_just_now_and_what_is_inside_the_quota_stays(cloud: Told, people: Any) -> None:
    inside = running(people, "inside", 12)
    young = running(people, "young", 12, since=dt.timedelta(minutes=9))
    theirs = place(submit(people, "theirs", 8, "flight-demo"))
    for run in (inside, young):
        run.refresh_from_db()
        assert run.given_back_at is None
    assert young.whole_at
    after = dt.datetime.fromtimestamp(known.full_minute(young.whole_at + dt.timedelta(minutes=10)), dt.UTC)
    assert theirs.message == (
        "It needs 8 GPUs; 0 of 24 are free. It starts as soon as enough are free. "
        f"From {after:%Y-%m-%d %H:%M} UTC on, a run that has less right to its GPUs may have to give them back for it."
    )
    older(young, LONG)
    place(theirs)
    young.refresh_from_db()
    assert young.given_back_at
    assert place(submit(people, "more", 8, "flight-demo")).placed_at is None
    inside.refresh_from_db()
    assert inside.given_back_at is None, "it is inside its quota, whoever waits"


def test_a_quota_that_is_lowered_takes_nothing_where_nothing_may_be_borrowed(cloud: Told, people: Any) -> None:
    Appcode.objects.update(gpu_quota=24, gpu_borrow=0)
    run = running(people, "before", 24)
    Appcode.objects.filter(code="ops-demo").update(gpu_quota=8)
    place(submit(people, "theirs", 8, "flight-demo"))
    run.refresh_from_db()
    assert run.given_back_at is None


def test_spare_runs_count_against_no_quota_and_yield_to_whoever_borrows(cloud: Told, people: Any) -> None:
    spare = running(people, "spare", 24, priorityClass="spare")
    assert quota.held(people.ops.pk).gpus == 0
    Appcode.objects.filter(code="flight-demo").update(gpu_quota=0)
    theirs = place(submit(people, "theirs", 8, "flight-demo"))
    spare.refresh_from_db()
    assert spare.given_back_at
    assert spare.message.startswith("Another appcode needs its GPUs, and this run is spare.")
    assert theirs.placed_at is None


def test_an_urgent_run_is_first_in_the_queue_of_its_appcode_and_takes_the_gpus_of_its_other_runs(
    cloud: Told, people: Any
) -> None:
    Appcode.objects.filter(code="ops-demo").update(gpu_quota=24, gpu_borrow=24)
    normal = running(people, "normal", 24)
    late = submit(people, "late", 8)
    urgent = place(submit(people, "urgent", 8, priorityClass="urgent"))
    normal.refresh_from_db()
    assert normal.given_back_at
    assert normal.message.startswith("urgent/1, of a higher class, needs its GPUs.")
    assert "runs that are ending" not in urgent.message
    tell(normal, gone(normal))
    assert place(urgent).placed_at
    late.refresh_from_db()
    assert late.placed_at is None, "the run that was taken is before it, as it was"
    theirs = submit(people, "theirs", 8, "flight-demo", priorityClass="urgent")
    place(theirs)
    urgent.refresh_from_db()
    assert urgent.given_back_at is None, "class counts in one's own appcode alone"


def test_an_urgent_run_has_the_quota_that_others_of_its_appcode_fill_and_takes_what_is_borrowed(
    cloud: Told, people: Any
) -> None:
    Appcode.objects.filter(code="ops-demo").update(gpu_quota=8, gpu_borrow=16)
    Appcode.objects.filter(code="flight-demo").update(gpu_quota=0, gpu_borrow=24)
    mine, theirs = running(people, "mine", 8), running(people, "theirs", 16, "flight-demo")
    urgent = place(submit(people, "urgent", 8, priorityClass="urgent"))
    for run in (mine, theirs):
        run.refresh_from_db()
    assert (mine.given_back_at, theirs.given_back_at is not None) == (None, True)
    tell(theirs, gone(theirs))
    assert place(urgent).placed_at
    found = rights.rights_of(Run.objects.filter(pk__in=[mine.pk, urgent.pk]).select_related("cluster__appcode"))
    assert (found[urgent.pk].name, found[mine.pk].name) == ("quota", "borrowed")


def test_many_runs_of_one_person_do_not_hold_up_a_colleague(cloud: Told, people: Any) -> None:
    """In the queue for the limit of the appcode, and in that for its nodes."""
    Appcode.objects.update(gpu_quota=16, gpu_borrow=0)
    running(people, "holds", 8)
    mine = [submit(people, f"mine-{n}", 12) for n in range(3)]
    assert {run.reason for run in mine} == {"QuotaExceeded"}
    api = api_of(people.root)
    wanted = gang(8, "hers", "ops-demo")
    assert api.post("/appcodes/ops-demo/preview", wanted)[1]["fits"] == "now"
    assert api.post("/appcodes/ops-demo/clusters", wanted)[0] == 201
    hers = Run.objects.get(cluster__name="hers")
    reconcile.reconcile(hers.pk)
    hers.refresh_from_db()
    assert hers.admitted_at, "root holds nothing of the appcode, and bob holds 8 GPUs"
    assert api.post("/appcodes/ops-demo/clusters", gang(8, "more", "ops-demo"))[0] == 201
    quota.admit_waiting(people.ops.pk)
    waits = Run.objects.filter(wait_reason="QuotaExceeded").order_by("pk")
    # Both hold 8, so the oldest comes first; then bob would hold 20, and the other person comes.
    assert [(run.cluster.name, max(1, run.wait_values["place"])) for run in waits] == [
        ("mine-0", 1), ("mine-1", 3), ("mine-2", 4), ("more", 2),
    ]  # fmt: skip
    assert [run.cluster.name for run in waits if quota.ahead(people.ops.pk, 16, run) == [12]] == ["more"]
    every = quota.turns(people.ops.pk)
    assert [quota.turns(people.ops.pk, most=most)[:most] for most in range(5)] == [every[:most] for most in range(5)]
    Appcode.objects.update(gpu_quota=1000)
    for run_id in quota.admit_waiting(people.ops.pk):
        reconcile.reconcile(run_id)
    place(hers)
    turns = {each.run.cluster.name: each.place for queue in queues(None) for each in queue.waiting}
    assert [turns[name] for name in ("mine-0", "more", "mine-1", "mine-2")] == [1, 2, 3, 4]


def test_runs_with_a_time_limit_start_on_nodes_that_a_larger_one_waits_for(cloud: Told, people: Any) -> None:
    Appcode.objects.update(gpu_quota=1000)
    first = running(people, "first", 20, timeLimit=7200, since=dt.timedelta(0))
    ends = now() + dt.timedelta(hours=2)
    Run.objects.filter(pk=first.pk).update(deadline=ends)
    large = submit(people, "large", 24)
    short, long = submit(people, "short", 4, timeLimit=3600), submit(people, "long", 1)
    place(large)
    at = known.full_minute(ends + known.TO_END)
    latest = dt.datetime.fromtimestamp(at, dt.UTC)
    assert f"it starts at {latest:%Y-%m-%d %H:%M} UTC at the latest, unless runs with more right come." in large.message
    for run in (short, long):
        run.refresh_from_db()
    assert (short.placed_at is not None, long.placed_at) == (True, None)
    assert (
        long.message.startswith("It needs 1 GPU; 0 of 24 are free")
        or "kept for runs that wait before it" in long.message
    )


def test_a_preview_says_that_gpus_are_borrowed_and_what_would_be_taken_back(cloud: Told, people: Any) -> None:
    running(people, "inside", 12)
    borrowing = running(people, "borrowing", 8)

    def sentence(size: int, appcode: str, **spec: Any) -> str:
        who = people.bob if appcode == "ops-demo" else people.root
        status, answer = api_of(who).post(f"/appcodes/{appcode}/preview", gang(size, "new", appcode, **spec))
        assert status == 200, answer
        return str(answer["message"])

    assert "It borrows them" in sentence(4, "ops-demo")
    assert "They are spare" in sentence(4, "ops-demo", priorityClass="spare")
    assert "gives them back for it" in sentence(8, "flight-demo")
    assert "taken back" not in sentence(4, "flight-demo")
    borrowing.refresh_from_db()
    assert borrowing.given_back_at is None


def test_many_runs_of_one_appcode_do_not_hide_those_of_another(
    cloud: Told, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Appcode.objects.update(gpu_quota=1000)
    running(people, "first", 24)
    many = [submit(people, f"many{number}", 1) for number in range(4)]
    theirs = submit(people, "theirs", 1, "flight-demo")
    monkeypatch.setattr(known, "MOST_WAITING", 2)
    assert {each.run for each in known.waiting("training")} == {many[0].pk, theirs.pk}


def test_the_number_of_queries_does_not_grow_with_appcodes_and_runs(cloud: Told, people: Any) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            capacity = known.capacity_of("training")
            room.decide_all("training", known.read("training", capacity, new=False), now())
        return len(seen)

    running(people, "borrowing", 20)
    submit(people, "theirs", 8, "flight-demo", priorityClass="urgent")
    few = queries()
    for number in range(3):
        submit(people, f"more{number}", 8, "flight-demo", priorityClass="urgent")
    assert queries() == few <= 11


def test_a_run_of_a_program_that_knows_no_class_is_normal_until_the_migration_fills_it(
    cloud: Told, people: Any
) -> None:
    run = running(people, "old", 16, priorityClass="spare")
    fill = importlib.import_module("clusters.migrations.0010_runs_by_place").FILL
    assert run.priority_class == "spare"
    Run.objects.filter(pk=run.pk).update(priority_class="normal")
    assert quota.held(people.ops.pk).gpus == 16
    found = rights.rights([], now()).shares[str(people.ops.pk)]
    assert (found.held, found.borrowed, found.spare) == (0, 16, 0)
    for _ in range(2):
        with connection.cursor() as cursor:
            cursor.execute(fill)
        run.refresh_from_db()
        assert run.priority_class == "spare"
