"""Whether a new run finds room on a Kubernetes cloud, and what people and programs are told."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.db.models import Q
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from clusters.admission.codes import Code
from clusters.admission.decision import Verdict, decide
from clusters.admission.packing import Sizes, Tasks, asking
from clusters.admission.words import _WORDS, sentence
from clusters.clouds.drivers.base import Capacity, Node
from clusters.runs.placing.known import Known, Promise, Waiting, capacity_from, capacity_json
from clusters.runs.placing.room import snapshot
from tests.clusters.gangs import create_theirs, gang, node, nodes

WHOLE = "It starts when enough whole nodes are free; tasks with fewer GPUs may start earlier."
SMALL = "in blocks that are too small."
SOON = "It starts as soon as enough are free."
FEWER = "Choose fewer tasks or a smaller flavor."
NOBODY: dict[str, Sizes] = {}


def judged(
    tasks: list[Tasks],
    seen: tuple[Node, ...],
    *before: list[Tasks],
    held: Any = NOBODY,
    promises: Any = (),
    started: bool = True,
) -> Verdict:
    """The verdict on a new run. `before`: runs under way without places, or, if not `started`, those that wait."""
    waiting = [Waiting(number, each, started) for number, each in enumerate(before)]
    return decide(snapshot(Known(Capacity(seen), held, promises, [*waiting, Waiting(99, tasks)])))["99"]


def told(*asked: Any, **more: Any) -> tuple[Code, str]:
    verdict = judged(*asked, **more)
    return verdict.code, sentence(verdict)


@pytest.mark.parametrize(
    ("tasks", "seen", "code", "words"),
    [
        (asking("worker", 10, 8), nodes(13), Code.FITS, "It needs 80 GPUs, and 104 of 104 are free."),
        (asking("master", 1, 0, "", 500), nodes(1), Code.FITS, "It asks for no GPU."),
        (
            asking("worker", 2, 8), nodes(13, 4), Code.FRAGMENTED,
            f"It needs 8 GPUs on one node for each of 2 tasks; 52 of 104 are free, but at most 4 on one node. {WHOLE}",
        ),
        (
            asking("worker", 3, 4), (node("a", 4), node("b", 6), node("c", 2)), Code.FRAGMENTED,
            f"It needs 3 × 4 GPUs, each on one node; 2 of these find room now. 12 of 24 are free, {SMALL} {WHOLE}",
        ),
        (
            asking("worker", 2, 1, "H200"), (node(free=1), node("n2", 8, gpu_model="A100")), Code.GPUS,
            "It needs 2 GPUs; 1 of 8 H200 are free. It starts as soon as enough are free.",
        ),
        (
            asking("worker", 1, 1, "", 8000), (node(cpu_milli_free=4000),), Code.RESOURCES,
            f"It needs 8 CPUs on one node for one worker, and at most 4 CPUs are free where its GPUs are. {SOON}",
        ),
        (
            asking("worker", 3, 0, "", 1000), (node(cpu_milli_free=2500),), Code.RESOURCES,
            "It needs room for 3 × worker (1 CPU each), and there is room for 2 now. It starts as soon as enough are free.",
        ),
        (
            asking("worker", 1, 16), nodes(2), Code.OVER_NODE,
            "One worker needs 16 GPUs on one node; the largest has 8 GPUs. Choose a smaller flavor and more tasks.",
        ),
        (
            asking("worker", 1, 1, "L4"), nodes(2), Code.NO_SUCH_GPU,
            "No node has GPUs of the model L4, which one worker needs. Choose another flavor.",
        ),
        (
            asking("worker", 3, 8), nodes(2), Code.OVER_POOL,
            "It needs 24 GPUs at one time; all machines together have 16 GPUs for tasks. Choose fewer tasks or a smaller flavor.",
        ),
        (
            asking("worker", 3, 5), nodes(2), Code.OVER_POOL,
            f"1 of its tasks (worker, 5 GPUs each) find no place beside the others, even when all machines are empty. {FEWER}",
        ),
        (
            asking("master", 1, 0, "", 500), (node(gpu_tasks_only=True),), Code.OVER_NODE,
            "No node takes one master, which needs no GPU. Choose a flavor with GPUs.",
        ),
        (asking("worker", 1, 1), (), Code.NO_NODES, "No machine has reported in yet; it starts when one does."),
        (asking("master", 1), (), Code.FITS, "It asks for no GPU."),
    ],
)  # fmt: skip
def test_each_verdict_says_what_is_needed_what_is_free_and_what_to_do(
    tasks: Tasks, seen: tuple[Node, ...], code: Code, words: str
) -> None:
    assert told([tasks], seen) == (code, words)


def test_every_code_that_is_decided_has_words() -> None:
    assert set(Code) == set(_WORDS)
    for code in _WORDS:
        assert sentence(Verdict(code, {})).endswith(".")


@pytest.mark.parametrize("admitted", [[asking("worker", 80, 1)], [asking("worker", 40, 1), asking("ps", 40, 1)]])
def test_of_two_runs_of_80_on_120_the_second_waits_while_the_first_is_placed(admitted: list[Tasks]) -> None:
    new = [asking("worker", 80, 1)]
    words = "It needs 80 GPUs; 40 of 120 are free, as 1 run before it takes 80. It starts as soon as enough are free."
    for started in (True, False):
        assert told(new, nodes(15), admitted, started=started) == (Code.GPUS, words)
    # It has its places, and nothing of it is bound.
    promised = [Promise(1, each, 0, each.count, {f"n{number}": 8 for number in range(10)}) for each in new]
    assert told(new, nodes(15), promises=promised) == (Code.GPUS, words.replace(", as 1 run before it takes 80", ""))
    # All of it is bound; whether the observation of free GPUs counts that already does not matter.
    bound = {f"n{number}": Sizes(8) for number in range(10)}
    for counted in (0, 5, 10):
        seen = tuple(node(f"n{number}", gpus_free=0 if number < counted else 8) for number in range(15))
        assert told(new, seen, held=bound) == (Code.GPUS, words.replace(", as 1 run before it takes 80", ""))
    # A part of it is bound and counted, another part bound only, the rest nowhere.
    part = {f"n{number}": Sizes(8) for number in range(7)}
    seen = tuple(node(f"n{number}", gpus_free=0 if number < 4 else 8) for number in range(15))
    code, words = told(new, seen, [asking("worker", 24, 1)], held=part)
    assert (code, "40 of 120 are free" in words) == (Code.GPUS, True)


def test_an_admitted_run_that_fits_in_part_takes_that_part_and_keeps_nothing_more() -> None:
    large = [asking("worker", 3, 8)]
    seen = (node("a"), node("b", 4), node("c", 0))
    assert judged([asking("worker", 1, 8)], seen, large).code is Code.GPUS
    assert judged([asking("worker", 4, 1)], seen, large).code is Code.FITS
    assert judged([asking("worker", 5, 1)], seen, large).code is Code.GPUS


def test_a_run_that_waits_keeps_what_it_needs_and_leaves_the_rest() -> None:
    large = [asking("worker", 2, 8)]
    seen = (node("a", gpus_free=8), node("b"), node("c"))
    held = {"a": Sizes(4), "b": Sizes(4), "c": Sizes(4)}
    assert judged([asking("worker", 4, 1)], seen, large, held=held, started=False).nodes == {("worker", "c"): 4}
    assert judged([asking("worker", 5, 1)], seen, large, held=held, started=False).code is Code.BEHIND


def test_room_is_promised_on_every_node_where_tasks_may_still_go_until_none_of_them_lacks_a_node() -> None:
    each = asking("worker", 4, 1)
    seen = (node("a"), node("b"))

    def fitting(lacks: int, **open_: int) -> int:
        held = {"a": Sizes(4 - lacks)}
        promise = Promise(1, each, 4 - lacks, lacks, open_)
        left = [
            count
            for count in range(1, 17)
            if judged([asking("new", 1, count)], seen, held=held, promises=[promise]).code is Code.FITS
        ]
        return max(left)

    assert fitting(4, a=4) == 8
    # On either node all that lack one may land, and no more than that.
    assert fitting(4, a=4, b=4) == 4
    assert fitting(2, a=2, b=4) == 6
    assert fitting(1, a=1, b=4) == 7
    assert fitting(0, a=0, b=4) == 8


def test_room_that_others_leave_on_one_of_several_nodes_may_be_taken_by_all_who_may_still_come() -> None:
    """A scheduler knows on which nodes a task may run, and not how many of them belong on each."""
    each = asking("worker", 4, 1)
    seen = (node("a", gpus=4, free=4), node("b", gpus=4, free=4))
    # Where it had two places on each node, the other run on a has ended.
    held = {"b": Sizes(2)}
    promise = Promise(1, each, 0, 4, {"a": 2, "b": 2})
    assert judged([asking("new", 1, 2)], seen, held=held, promises=[promise]).code is Code.GPUS
    assert judged([asking("new", 1, 2)], seen, held=held | {"a": Sizes(2)}, promises=[]).code is Code.FITS
    # Two of it have come to a, where the other two may follow.
    promise = Promise(1, each, 2, 2, {"a": 0, "b": 2})
    assert (
        judged([asking("new", 1, 1)], seen, held={"a": Sizes(2), "b": Sizes(2)}, promises=[promise]).code is Code.GPUS
    )


def test_never_counts_all_nodes_and_now_only_those_that_take_tasks() -> None:
    closed = node("n2", 0, takes_tasks=False)
    assert judged([asking("worker", 2, 8)], (node(), closed)).code is Code.GPUS
    assert judged([asking("worker", 1, 8)], (closed,)).code is Code.NO_NODES
    assert judged([asking("worker", 3, 8)], (node(), closed)).code is Code.OVER_POOL


@pytest.mark.parametrize("unreported", [{"cpu_milli": 0}, {"memory_mb": 0}, {"cpu_milli": 0, "cpu_milli_free": 0}])
def test_what_a_node_does_not_report_keeps_no_run_away(unreported: dict[str, Any]) -> None:
    held = {"n1": Sizes(1, 2000, 10_000)}
    assert judged([asking("worker", 2, 1, "", 30_000, 100_000)], (node(**unreported),), held=held).code is Code.FITS


def test_simulated_gpus_take_every_model_and_other_gpus_their_own() -> None:
    assert judged([asking("worker", 1, 1, "L4")], (node(simulated=True),)).code is Code.FITS
    assert judged([asking("worker", 1, 1, "L4")], (node(),)).code is Code.NO_SUCH_GPU


amounts = st.integers(0, 4)
seen_nodes = st.lists(
    st.builds(
        lambda model, gpus, free, cpu, cpu_free, simulated, only, ready: Node(
            "", model, gpus, min(gpus, free), cpu * 1000, 0, simulated, "", ready,
            None if cpu_free is None else min(cpu, cpu_free) * 1000, gpu_tasks_only=only, gpus_others=gpus - min(gpus, free),
        ),
        st.sampled_from(["A", "B"]), amounts, amounts, amounts, st.none() | amounts, st.booleans(), st.booleans(), st.booleans(),
    ),
    min_size=1, max_size=4,
).map(lambda found: tuple(Node(**{**vars(each), "name": f"n{number}"}) for number, each in enumerate(found)))  # fmt: skip
one_role = st.builds(asking, st.just("w"), st.integers(1, 3), amounts, st.sampled_from(["", "A"]), st.integers(0, 3000))


@given(one_role, seen_nodes, st.dictionaries(st.sampled_from(["n0", "n1"]), st.builds(Sizes, amounts)), one_role)
def test_what_others_hold_never_helps_and_never_makes_it_impossible(
    tasks: Tasks, seen: tuple[Node, ...], held: dict[str, Sizes], before: Tasks
) -> None:
    alone = judged([tasks], seen).code
    for found in (judged([tasks], seen, held=held).code, judged([tasks], seen, [before]).code):
        assert found.fits in {"now": ("now", "waits"), "waits": ("waits",), "never": ("never",)}[alone.fits]


@given(
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from([1, 2, 4, 8])), max_size=4), st.integers(0, 8), st.booleans()
)
def test_what_is_promised_now_is_free_whatever_is_placed_before(
    several: list[tuple[int, int]], free: int, started: bool
) -> None:
    """Each run that is told "now" is placed; all of them together hold no more than there is."""
    left, placed = 3 * free, 0
    before: list[list[Tasks]] = []
    for count, gpus in several:
        tasks = [asking("worker", count, gpus)]
        if judged(tasks, nodes(3, free), *before, started=started).code is Code.FITS:
            before.append(tasks)
            placed += count * gpus
    assert placed <= left


PREVIEW = "/appcodes/ops-demo/preview"


@pytest.mark.django_db
def test_the_second_of_two_gangs_is_told_that_it_waits_from_the_first_moment_on(
    training: Any, people: Any, as_person: Any
) -> None:
    from clusters.runs.models import Run, Task
    from tests.api.client import api_of

    api = api_of(people.bob)
    answer = api.post(PREVIEW, gang(80))[1]
    assert (answer["fits"], answer["code"], answer["message"]) == (
        "now",
        "Fits",
        "It needs 80 GPUs, and 120 of 120 are free.",
    )
    create_theirs(people, 80)
    waits = "It needs 80 GPUs; 40 of 120 are free, as 1 run before it takes 80. It starts as soon as enough are free."

    def second() -> tuple[str, str]:
        answer = api.post(PREVIEW, gang(80, "second"))[1]
        assert answer["fits"] == "waits"
        return answer["code"], answer["message"]

    assert second() == ("Gpus", waits)
    # It is given its places, or an earlier release started it without.
    at, layout = timezone.now(), {"master": {f"n{number}": 8 for number in range(10)}}
    Run.objects.update(admitted_at=at, wait_reason="WaitingForGPUs")
    assert second() == ("Gpus", waits)
    Run.objects.update(placed_at=at, layout=layout, wait_reason="")
    assert second() == ("Gpus", waits.replace(", as 1 run before it takes 80", ""))
    Run.objects.update(placed_at=None, layout={}, applied_at=at, phase="Starting")
    assert second() == ("Gpus", waits)
    run = Run.objects.get()
    Task.objects.bulk_create(
        Task(run=run, role=role, index=index, uid=f"{role}-{index}", phase="Pending", node=f"n{number // 8}")
        for number, (role, index) in enumerate([("master", 0), *(("worker", index) for index in range(66))])
    )
    assert second() == ("Gpus", waits.replace("takes 80", "takes 13"))
    Run.objects.update(desired="ended")
    Task.objects.update(phase="Succeeded")
    assert api.post(PREVIEW, gang(80, "second"))[1]["code"] == "Fits"
    # The form has the same sentence.
    Run.objects.update(desired="running")
    Task.objects.all().delete()
    form = {
        "name": "second",
        "appcode": "ops-demo",
        "framework": "tensorflow",
        "image": "container-only",
        "command": "true",
    }
    form |= {"master_flavor": "middle-1-gpu", "worker_flavor": "middle-1-gpu", "worker_count": "79"}
    assert waits in as_person(people.bob).post("/clusters/preview", form).content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "facts",
    [
        {"not_before": timezone.now() + dt.timedelta(hours=1)},
        {"blocked_message": "The quota of its namespace is used up."},
        {"wait_reason": "QuotaExceeded"},
        {"desired": "ended"},
        {"cloud": "local"},
    ],
)
def test_a_run_that_its_cloud_does_not_place_now_takes_nothing(
    training: Any, people: Any, facts: dict[str, Any]
) -> None:
    from clusters.runs.models import Run
    from clusters.runs.placing.known import waiting

    create_theirs(people, 80)
    (found,) = waiting("training")
    assert {each.role: each.count for each in found.tasks} == {"master": 1, "worker": 79}
    assert not found.started
    Run.objects.update(**facts)
    assert waiting("training") == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    "facts", [{"desired": "ended"}, {"given_back_at": timezone.now()}, {"gone": True}, {"cloud": "local"}]
)
def test_a_placed_run_is_promised_its_places_until_it_is_to_end(
    training: Any, people: Any, facts: dict[str, Any]
) -> None:
    from clusters.runs.models import Run
    from clusters.runs.placing.known import promises, waiting

    create_theirs(people, 8)
    at = timezone.now()
    Run.objects.update(admitted_at=at, placed_at=at, layout={"master": {"n0": 8}})
    assert waiting("training") == []
    ((promise,), is_open) = promises("training"), {"n0": 8}
    assert (promise.lacks, promise.open, promise.held) == (8, is_open, 0)
    Run.objects.update(**facts)
    assert promises("training") == []


@pytest.mark.django_db
def test_a_promise_shrinks_by_the_tasks_that_have_nodes_and_by_those_that_are_done(training: Any, people: Any) -> None:
    from clusters.runs.models import Run, Task
    from clusters.runs.placing.known import promises

    create_theirs(people, 8)
    at = timezone.now()
    Run.objects.update(admitted_at=at, placed_at=at, layout={"master": {"n0": 4, "n1": 8}})
    run = Run.objects.get()

    def task(role: str, index: int, phase: str, node: str, attempt: int = 0) -> Task:
        uid = f"{role}-{index}-{attempt}"
        return Task(run=run, role=role, index=index, attempt=attempt, uid=uid, phase=phase, node=node)

    Task.objects.bulk_create(
        [
            task("master", 0, "Running", "n0"),
            task("worker", 0, "Pending", "n1"),
            task("worker", 1, "Pending", ""),
            task("worker", 2, "Failed", "n1"),
            task("worker", 3, "Succeeded", "n1"),
        ]
    )
    (promise,) = promises("training")
    assert (promise.held, promise.lacks, promise.open) == (2, 5, {"n0": 3, "n1": 7})
    # What a whole run lacks only since a task of it failed is kept for the next attempt, where the task was.
    Run.objects.update(whole_at=at, layout={"master": {"n0": 1}, "worker": {"n1": 2}}, roles=run.roles | {
        "worker": {"ready": 0, "count": 2}})  # fmt: skip
    Task.objects.filter(role="worker", index__in=[1, 3]).delete()
    (promise,) = promises("training")
    assert (promise.held, promise.lacks, promise.open) == (2, 1, {"n0": 0, "n1": 1})
    # Another attempt has taken that place.
    Task.objects.bulk_create([task("worker", 2, "Running", "n1", 1)])
    assert promises("training") == []


@pytest.mark.django_db
def test_what_tasks_hold_is_summed_by_node_with_the_helpers_beside_them(training: Any, people: Any) -> None:
    from clusters.runs.models import Run, Task
    from clusters.runs.placing.known import taken_on

    create_theirs(people, 3)
    run = Run.objects.get()
    run.resources["worker"] |= {"beside_cpu_milli": 100, "beside_memory_mb": 20}
    run.save()
    places = [("master", 0, "n0", "Running"), ("worker", 0, "n0", "Pending"), ("worker", 1, "n1", "Failed")]
    Task.objects.bulk_create(
        Task(run=run, role=role, index=index, uid=f"{role}-{index}", phase=phase, node=name)
        for role, index, name, phase in places
    )
    here = Q(run__cloud="training")
    assert taken_on(here) == {"training": {"n0": Sizes(2, 2100, 4116)}}
    Run.objects.update(gone=True)
    assert taken_on(here) == {}


@pytest.mark.django_db
def test_quota_comes_first_and_keeps_its_words(training: Any, people: Any) -> None:
    from portal.models import Appcode
    from tests.api.client import api_of

    api = api_of(people.bob)
    Appcode.objects.update(gpu_quota=10)
    assert api.post(PREVIEW, gang(11))[0] == 422
    assert api.post("/appcodes/ops-demo/clusters", gang(8, "first"))[0] == 201
    answer = api.post(PREVIEW, gang(5))[1]
    assert (answer["fits"], answer["code"]) == ("waits", "Quota")
    assert answer["message"].startswith("Waiting for quota: needs 5 GPUs, 10 of 10 of ops-demo are free.")


@pytest.mark.django_db
def test_a_cloud_with_a_queue_of_its_own_is_judged_by_the_same_decision(training: Any, people: Any) -> None:
    from tests.api.client import api_of

    api = api_of(people.bob)
    create_theirs(people, 80)
    assert api.post(PREVIEW, gang(80))[1]["code"] == "Gpus"
    training.objects.filter(name="training").update(settings={"kueue_queue": "gpus"})
    assert api.post(PREVIEW, gang(80))[1]["code"] == "Gpus"


@pytest.mark.django_db
@pytest.mark.parametrize("queue", ["", "gpus"])
def test_where_nodes_are_added_a_run_waits_for_them(training: Any, people: Any, queue: str) -> None:
    from portal.models import Appcode
    from tests.api.client import api_of

    Appcode.objects.update(gpu_quota=1000)
    api = api_of(people.bob)
    training.objects.filter(name="training").update(settings={"kueue_queue": queue})
    never = api.post(PREVIEW, gang(500))[1]
    assert (never["fits"], never["code"]) == ("never", "OverPool")
    training.objects.filter(name="training").update(settings={"kueue_queue": queue, "nodes_on_demand": True})
    later = api.post(PREVIEW, gang(500))[1]
    assert (later["fits"], later["code"]) == ("waits", "Gpus")
    assert later["message"].startswith(never["message"].partition(" That counts")[0])
    assert "That is so with the machines of today: it waits for others" in later["message"]


@pytest.mark.django_db
def test_a_changed_cluster_does_not_wait_for_its_own_last_run(training: Any, people: Any) -> None:
    from clusters.manifest.cluster import ClusterManifest
    from clusters.runs.models import Cluster, Run
    from clusters.runs.queries.preview import preview
    from tests.api.client import api_of

    assert api_of(people.bob).post("/appcodes/ops-demo/clusters", gang(80, "first"))[0] == 201
    Run.objects.update(admitted_at=timezone.now())
    manifest = ClusterManifest.model_validate(gang(80, "first"))
    assert preview(manifest, acting_user=people.bob, instead_of=Cluster.objects.get()).code == "Fits"


@pytest.mark.django_db
def test_a_preview_costs_a_constant_number_of_queries(
    training: Any, people: Any, django_assert_num_queries: Any
) -> None:
    from clusters.runs.models import Run
    from clusters.runs.placing.room import Wish, judge

    capacity = Capacity(nodes(15))
    for name in ("one", "two", "three"):
        create_theirs(people, 2, f"{name}-placed")
        Run.objects.update(admitted_at=timezone.now(), placed_at=timezone.now(), layout={"master": {"n0": 6}})
        create_theirs(people, 2, f"{name}-waits")
        with django_assert_num_queries(8):
            judge([asking("worker", 1, 1)], capacity, "training", Wish(people.ops, "default"))


def test_a_stored_capacity_is_read_again_and_by_programs_of_release_1_0() -> None:
    seen = Capacity((node("n1", 3, cpu_milli_others=7), node("n2")))
    stored = capacity_json(seen)
    assert capacity_from(json.loads(json.dumps(stored))) == seen
    known = {
        "name", "gpu_model", "gpus", "gpus_free", "cpu_milli", "memory_mb", "simulated", "note", "takes_tasks", "cpu_milli_free",
        "memory_mb_free", "gpu_tasks_only", "silent_since",
    }  # fmt: skip
    assert all(set(each) == known for each in stored["nodes"])
    del stored["others"]
    assert [each.gpus_others for each in capacity_from(stored).nodes] == [0, 0]
