"""However a watch loses, repeats or shuffles the news of pods, is killed or lists again, the segments match what happened.
From a cloud's news to billing, on the real database. Time of runs that the portal places begins when they are whole.
"""

import datetime as dt
import itertools
import os
import threading
from dataclasses import replace

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.utils.timezone import now
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.metering.segments import END_ESTIMATED, Segment, floor, segment_of
from billing.models import UsageSegment
from clusters.clouds.drivers.base import Batch, RunFound, TaskSeen
from clusters.clouds.models import CloudState
from clusters.clouds.registry import run_ref
from clusters.cluster import actions
from clusters.runs.models import Run, Task
from clusters.runs.status import observe
from clusters.runs.status.task_status import pod_state
from portal.models import Event
from tests import mortal

pytestmark = pytest.mark.django_db(transaction=True)

PLACES = [("master", 0), ("worker", 0), ("worker", 1)]


@pytest.fixture
def run(catalogue, people, manifest):
    """A run of 1 master and 2 workers with a GPU each, already applied to its cloud."""
    cluster = actions.create_cluster(manifest(flavor="one-gpu", workers=2, retries=9), acting_user=people.bob)
    Run.objects.update(admitted_at=now(), applied_at=now() - dt.timedelta(days=1))
    return Run.objects.select_related("cluster", "created_by").get(current_of=cluster)


def history(run, place, attempt, drawn) -> list[TaskSeen]:
    """All news of one pod. Its node's clock is up to 10 minutes off the API server's, which sets the scheduling time."""
    begin, wait, length, skew, end = drawn
    role, index = place
    zero = now() - dt.timedelta(hours=4)
    scheduled = zero + dt.timedelta(seconds=begin)
    began = scheduled + dt.timedelta(seconds=wait + skew)
    pending = TaskSeen(run.pk, role, index, attempt, f"{role}-{index}-{attempt}", "Pending", reason="Unschedulable")
    reserved = replace(pending, reason="Starting", node="machine-1", gpu_model="A100", scheduled_at=scheduled)
    fetching = replace(reserved, reason="FetchingInput", began_at=began)
    running = replace(fetching, phase="Running", reason="", started_at=began + dt.timedelta(seconds=length / 4))
    told = [pending, reserved, fetching, running]
    if end:
        ended = {"finished_at": began + dt.timedelta(seconds=length), "exit_code": int(end == "Failed")}
        told.append(replace(running, phase=end, reason="Error" if end == "Failed" else "", **ended))
    return told


def truth(run, told: list[TaskSeen], since: dt.datetime | None = None) -> Segment | None:
    """`run` is as it was before it was placed. `since`: when it was whole."""
    if since:
        if any(item.finished_at and item.finished_at <= since for item in told):
            return None
        told = [replace(item, began_at=item.began_at and max(item.began_at, since)) for item in told]
    return segment_of([pod_state("local", run, item) for item in told])


def moment(pods: list[TaskSeen]) -> dt.datetime | None:
    """When all places first had a pod, by the last that is known of each."""
    for time in sorted(pod.scheduled_at for pod in pods if pod.scheduled_at):
        if {
            (pod.role, pod.index)
            for pod in pods
            if pod.scheduled_at
            and pod.scheduled_at <= time
            and (pod.phase != "Failed" or not pod.finished_at or time < pod.finished_at)
        } == set(PLACES):
            return time
    return None


def found() -> dict[str, Segment]:
    return {row.uid: row.segment for row in UsageSegment.objects.all()}


spans = st.floats(0, 3600)
pods = st.tuples(
    spans, st.floats(0, 300), spans, st.integers(-600, 600), st.sampled_from(["Succeeded", "Failed", None])
)
# A batch of news: (pod, which of its sightings) pairs; and whether the controller is killed before the commit.
batches = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), max_size=9), st.booleans()), max_size=6
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(pods, min_size=1, max_size=7), batches, st.sets(st.integers(0, 6)), st.booleans(), st.booleans())
def test_segments_are_those_of_what_happened(run, drawn, news, vanishing, backwards, placed):
    """Some pods vanish while the watch is down, so that their end is never reported."""
    with transaction.atomic():
        histories = [history(run, PLACES[n % 3], n // 3, each) for n, each in enumerate(drawn)]
        if placed:
            Run.objects.update(placed_at=now() - dt.timedelta(days=1))
            # What ended before another pod had a node was never told after that as alive: no watch puts news of a run that far
            # back. Billing could not take back what it began to count.
            latest = max(told[1].scheduled_at for told in histories)
            histories = [
                told[-1:] if told[-1].finished_at and told[-1].finished_at <= latest else told for told in histories
            ]
        heard: list[set[int]] = [set() for _ in histories]
        for n, (batch, dies) in enumerate(news):
            told = [(pod % len(histories), which) for pod, which in batch]
            items = [histories[pod][which % len(histories[pod])] for pod, which in told]
            with transaction.atomic():
                observe.apply_batch("local", Batch(f"t.{n}", tuple(items)))
                if dies:
                    transaction.set_rollback(True)
            if not dies:
                for pod, which in told:
                    heard[pod].add(which % len(histories[pod]))
        last = CloudState.objects.filter(name="local").values_list("heard_at", flat=True).first()
        listed = [told[-1] for n, told in enumerate(histories) if n not in vanishing]
        # The run itself must be in the listing, or it would start again.
        listing = (RunFound(run.pk, run_ref(run)), *(listed[::-1] if backwards else listed))
        for n in range(2):
            observe.apply_listing("local", Batch(f"t.9{n}", listing), now())
        segments = found()
        knowns = [[told[which] for which in sorted(heard[n])] for n, told in enumerate(histories)]
        whole = None
        if placed:
            lasts = [told if n not in vanishing else knowns[n] for n, told in enumerate(histories)]
            whole = moment([told[-1] for told in lasts if told])
            assert Run.objects.get().whole_at == whole
            if whole is None:
                assert not segments
                transaction.set_rollback(True)
                return
        for n, (told, known) in enumerate(zip(histories, knowns, strict=True)):
            uid = told[0].uid
            if n not in vanishing or (known and known[-1].phase in observe.ENDED):
                assert segments.pop(uid, None) == truth(run, told, whole)
            elif segment := segments.pop(uid, None):
                begun = truth(run, known, whole)
                assert (segment.started, segment.flags) == (begun.started, (END_ESTIMATED,))
                times = [
                    last,
                    *(time for time in (known[-1].scheduled_at, known[-1].began_at, known[-1].started_at) if time),
                ]
                assert segment.ended == floor(max(times))
            else:
                assert truth(run, known, whole) is None
        assert not segments
        assert set(Task.objects.exclude(phase__in=observe.ENDED).values_list("uid", flat=True)) == {
            item.uid for item in listed if item.phase not in observe.ENDED
        }
        transaction.set_rollback(True)


@pytest.mark.parametrize("at_once", [True, False])
def test_the_end_of_a_pod_whose_node_is_gone_keeps_the_model_of_its_gpus(run, at_once):
    """A cloud learns the model from the node; it can't if pod and node are lost together."""
    *_, running, end = history(run, ("master", 0), 0, (0, 1, 60, 0, "Failed"))
    news = (running, replace(end, gpu_model=""))
    for n, items in enumerate([news] if at_once else [(item,) for item in news]):
        observe.apply_batch("local", Batch(f"t.{n}", items))
    (segment,) = found().values()
    assert segment == truth(run, [running, end])
    assert segment.resources.gpu_model == "A100"
    assert Task.objects.get().gpu_model == "A100"


@pytest.mark.parametrize("at_once", [True, False])
def test_the_late_end_of_a_pod_leaves_the_next_one_its_place(run, at_once):
    """The cause of an end may arrive late, and the Job created again counts attempts from 0."""
    old, new = (history(run, ("worker", 0), 0, (begin, 1, 60, 0, "Failed")) for begin in (0, 300))
    new = [replace(item, uid="next") for item in new]
    for first, second in ((old[3], new[0]), (old[4], new[3])):
        news = [(second, first)] if at_once else [(second,), (first,)]
        for items in news:
            observe.apply_batch("local", Batch("t.1", items))
        assert Task.objects.get().uid == "next"
    observe.apply_batch("local", Batch("t.2", (new[4],)))
    task = Task.objects.get()
    assert (task.uid, task.phase) == ("next", "Failed")
    assert found() == {told[0].uid: truth(run, told) for told in (old, new)}


def test_two_controllers_that_both_believe_to_lead(run):
    """As after a database outage. Both apply all news in their own order, with a listing in between: no deadlock, and nothing is
    counted twice."""
    histories = [history(run, PLACES[n % 3], n // 3, (n, 1, 60 + n, 0, "Failed")) for n in range(24)]
    everything = [item for told in histories for item in told]
    orders = [everything, [everything[n * 37 % len(everything)] for n in range(len(everything))]]
    ends = (RunFound(run.pk, run_ref(run)), *(told[-1] for told in histories))
    start, failures = threading.Barrier(2, timeout=60), []

    def controller(items: list[TaskSeen]) -> None:
        try:
            start.wait()
            for n in range(0, len(items), 7):
                observe.apply_batch("local", Batch(f"t.{n}", tuple(items[n : n + 7])))
                if n % 35 == 0:
                    observe.apply_listing("local", Batch(f"t.{n}", ends), now())
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            connections.close_all()

    threads = [threading.Thread(target=controller, args=(items,)) for items in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not failures
    assert found() == {told[0].uid: truth(run, told) for told in histories}
    assert Task.objects.filter(phase="Failed").count() == len(histories)


def test_a_controller_that_is_killed_between_any_two_statements(run):
    """The next controller starts with a listing, as every new process does."""
    Run.objects.update(applied_at=now() - dt.timedelta(days=1))
    histories = [history(run, place, 0, (0, 1, 60, 0, "Failed")) for place in PLACES]
    running = (RunFound(run.pk, run_ref(run)), *(told[3] for told in histories))

    def work() -> None:
        observe.apply_listing("local", Batch("t.1", running), now())
        observe.apply_batch("local", Batch("t.2", tuple(told[4] for told in histories[:2])))
        observe.apply_listing("local", Batch("t.3", (running[0], *(told[4] for told in histories))), now())

    connection.close()
    seen = set()
    for allowed in itertools.count():
        status = mortal.child(allowed, work)
        seen.add(
            (CloudState.objects.filter(name="local").values_list("position", flat=True).first(), Task.objects.count())
        )
        # Tasks, segments and events are written in one transaction.
        assert {row.uid for row in UsageSegment.objects.all()} == set(Task.objects.values_list("uid", flat=True))
        ends = Task.objects.filter(phase="Failed").count()
        assert (
            UsageSegment.objects.exclude(ended=None).count() == ends == Event.objects.filter(verb="task.failed").count()
        )
        call_command("replay", "--verify")
        connection.close()
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
    assert allowed > 20
    assert len(seen) >= 3
    assert found() == {told[0].uid: truth(run, told) for told in histories}
