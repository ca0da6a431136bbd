import itertools
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Snapshot, decide
from clusters.admission.order import Share
from clusters.admission.packing import Shape, Tasks, assign, group, place, search, why_never
from clusters.admission.pool import Node


def cloud(gpus, count, free=None):
    whole = Shape(gpus, 64000, 1 << 20, "H200")
    left = Shape(gpus if free is None else free, 64000, 1 << 20, "H200")
    return tuple(Node(f"n{i}", whole, left) for i in range(count))


def codes(nodes, *asks):
    tasks = [Ask(f"r{i}", "ops", (Tasks("worker", count, gpus),)) for i, (count, gpus) in enumerate(asks)]
    return [verdict.code for verdict in decide(Snapshot(nodes, tuple(tasks))).values()]


@pytest.mark.parametrize(("nodes", "run"), [(cloud(8, 15), (10, 8)), (cloud(1, 99), (65, 1))])
def test_of_two_runs_that_fit_alone_exactly_one_starts(nodes, run):
    assert codes(nodes, run, run) == [Code.FITS, Code.GPUS]


def test_a_run_larger_than_nodes_or_pool_can_never_start_and_blocks_nobody():
    assert codes(cloud(8, 2), (1, 16), (3, 8), (2, 8)) == [Code.OVER_NODE, Code.OVER_POOL, Code.FITS]


def test_a_model_that_no_node_has_is_named():
    assert why_never([Tasks("worker", 1, 1, "A100")], group([("n", Shape(8, 0, 0, "H200"))])) == "NoSuchGpu"


def test_a_run_that_waits_keeps_as_many_nodes_as_it_needs_and_leaves_the_others():
    assert codes(cloud(8, 1, free=4), (1, 8), (1, 1)) == [Code.GPUS, Code.BEHIND]
    assert codes(cloud(8, 2, free=4), (1, 8), (4, 1), (1, 1)) == [Code.FRAGMENTED, Code.FITS, Code.BEHIND]


def test_the_fourth_run_that_waits_keeps_nothing():
    assert codes(cloud(8, 4, free=4), *[(1, 8)] * 4, (1, 1)) == [Code.FRAGMENTED] * 4 + [Code.FITS]


def test_a_run_that_other_software_keeps_out_for_ever_keeps_no_node():
    whole, free = Shape(8, 0, 0), Shape(7, 0, 0)
    asks = tuple(Ask(f"r{i}", "", (Tasks("w", 1, gpus),)) for i, gpus in enumerate((8, 1)))
    verdicts = decide(Snapshot((Node("n", whole, free, drained=free),), asks))
    assert [each.code for each in verdicts.values()] == [Code.GPUS, Code.FITS]


def test_a_run_that_lacks_cpu_says_so_and_nodes_that_do_not_suit_it_stay_open():
    whole = Shape(8, 8000, 0, "H200")
    nodes = (Node("n", whole, Shape(8, 1000, 0, "H200")), Node("m", Shape(1, 8000, 0, "L4"), Shape(1, 8000, 0, "L4")))
    several = (Tasks("w", 1, 8, "H200", 8000),), (Tasks("w", 1, 1, "H200"),), (Tasks("w", 1, 1, "L4"),)
    asks = tuple(Ask(f"r{i}", "ops", tasks) for i, tasks in enumerate(several))
    verdicts = decide(Snapshot(nodes, asks))
    assert [verdict.code for verdict in verdicts.values()] == [Code.RESOURCES, Code.BEHIND, Code.FITS]
    assert verdicts["r2"].nodes == {("w", "m"): 1}


def test_tasks_on_several_nodes_stay_off_a_node_of_which_another_run_has_yet_to_take_its_part():
    field = group([("n1", Shape(4, 9, 0)), ("n2", Shape(2, 9, 0))])
    first = assign([Tasks("a", 1, 3)], field)
    assert first.layout == {("a", "n1"): 1}
    assert assign([Tasks("b", 3, 1)], first.left, {"n1"}).layout is None
    assert assign([Tasks("b", 3, 1)], first.left).layout == {("b", "n1"): 1, ("b", "n2"): 2}


def test_what_one_role_has_yet_to_take_on_a_shared_node_is_not_left_to_other_runs():
    """Until a task of a has come to each node, all tasks of b find room on one of them."""
    field = group([("n1", Shape(5, 8, 0)), ("n2", Shape(5, 8, 0))])
    found = assign([Tasks("a", 2, 3), Tasks("b", 4, 1, "", 2)], field)
    assert found.layout == {("a", "n1"): 1, ("a", "n2"): 1, ("b", "n1"): 2, ("b", "n2"): 2}
    assert assign([Tasks("c", 1, 0, "", 1)], found.left).layout is None


shapes = st.builds(Shape, st.integers(0, 4), st.integers(0, 4), st.just(0), st.sampled_from(["A", "B"]))
kinds = st.builds(
    Tasks, st.just(""), st.integers(1, 2), st.integers(0, 3), st.sampled_from(["", "A"]), st.integers(0, 3), st.just(0)
)


@given(st.lists(shapes, min_size=1, max_size=3), st.lists(kinds, min_size=1, max_size=2))
def test_place_finds_nodes_exactly_where_every_combination_tried_does(nodes, several):
    tasks = [Tasks(f"t{i}", each.count, each.gpus, each.gpu_model, each.cpu_milli) for i, each in enumerate(several)]
    single = [each for each in tasks for _ in range(each.count)]
    names = [(f"n{i}", shape) for i, shape in enumerate(nodes)]

    def holds(chosen):
        for i, shape in enumerate(nodes):
            here = [each for each, at in zip(single, chosen, strict=True) if at == i]
            if any(not shape.suits(each) for each in here) or sum(each.gpus for each in here) > shape.gpus:
                return False
            if sum(each.cpu_milli for each in here) > shape.cpu_milli:
                return False
        return True

    expected = any(holds(chosen) for chosen in itertools.product(range(len(nodes)), repeat=len(single)))
    found = search(tasks, group(names))
    assert (found.layout is not None, found.proved) == (expected, True)
    if (layout := place(tasks, group(names))) is not None:
        left = [each for each in tasks for _ in range(each.count)]
        assert sum(layout.values()) == len(left)
        by_role = {each.role: sorted(layout.items()) for each in tasks}
        chosen = []
        for role, items in by_role.items():
            chosen += [int(node[1:]) for (of, node), count in items if of == role for _ in range(count)]
        assert holds(chosen)


runs = st.lists(st.lists(kinds, min_size=1, max_size=2), min_size=1, max_size=4)


@given(st.lists(shapes, min_size=1, max_size=4), runs, st.randoms())
def test_pods_of_several_runs_find_their_room_in_whatever_order_and_wherever_a_scheduler_binds_them(
    nodes, several, any_
):
    field, pods, promised = group((f"n{i}", shape) for i, shape in enumerate(nodes)), [], set()
    for run in several:
        tasks = [replace(each, role=f"t{i}") for i, each in enumerate(run)]
        found = assign(tasks, field, promised)
        if found.layout is None or not found.proved:
            continue
        promised |= {node for _, node in found.layout}
        alike = {each: [other.role for other in tasks if replace(each, role="", count=0) == replace(other, role="", count=0)]
                 for each in tasks}  # fmt: skip
        for each in tasks:
            allowed = {node for (role, node), count in found.layout.items() if role in alike[each] and count}
            pods += [(replace(each, count=1), allowed)] * each.count
        field = found.left
    left = {f"n{i}": shape for i, shape in enumerate(nodes)}
    any_.shuffle(pods)
    for pod, allowed in pods:
        able = [name for name in sorted(allowed) if left[name].holds(pod)]
        assert able, "a task that was promised room has none"
        name = any_.choice(able)
        left[name] = left[name].without(pod, 1)


@given(st.lists(shapes, min_size=1, max_size=4), st.lists(kinds, min_size=1, max_size=2))
def test_what_is_assigned_is_what_fits_and_leaves_no_node_below_zero(nodes, run):
    field = group((f"n{i}", shape) for i, shape in enumerate(nodes))
    tasks = [replace(each, role=f"t{i}") for i, each in enumerate(run)]
    found = assign(tasks, field)
    assert (found.layout is None) == (search(tasks, field).layout is None)
    if found.layout is not None:
        assert sorted(name for names in found.left.values() for name in names) == sorted(
            f"n{i}" for i in range(len(nodes))
        )
        assert all(min(shape.gpus, shape.cpu_milli) >= 0 for shape in found.left)
        assert sum(found.layout.values()) >= sum(each.count for each in tasks)


asked = st.lists(st.tuples(kinds, st.sampled_from("xy"), st.booleans()), max_size=6)
pool = st.lists(st.tuples(shapes, st.integers(0, 4), st.booleans()), max_size=4).map(
    lambda found: tuple(
        Node(f"n{i}", shape, replace(shape, gpus=min(free, shape.gpus)), ready)
        for i, (shape, free, ready) in enumerate(found)
    )
)


@given(pool, asked, st.integers(0, 8))
def test_no_node_is_exceeded_and_what_is_remembered_changes_no_verdict(nodes, several, quota):
    def verdicts(role):
        asks = [
            Ask(f"r{i}", appcode, (replace(tasks, role=role(i)),), admitted)
            for i, (tasks, appcode, admitted) in enumerate(several)
        ]
        return asks, decide(Snapshot(nodes, tuple(asks), {"x": Share(quota), "y": Share(100)}))

    asks, found = verdicts(lambda i: "w")
    others = verdicts(lambda i: f"w{i}")[1]
    assert [each.code for each in found.values()] == [each.code for each in others.values()]
    assert [each.rank for each in found.values()] == [each.rank for each in others.values()]
    gpus = dict.fromkeys((node.name for node in nodes if node.ready), 0)
    for ask in asks:
        verdict = found[ask.run]
        for (_, name), count in (verdict.nodes or {}).items():
            gpus[name] += count * ask.tasks[0].gpus
        if nodes and verdict.code is Code.FITS:
            assert sum(verdict.nodes.values()) >= ask.tasks[0].count, "whole or not at all"
    assert all(gpus[node.name] <= node.free.gpus for node in nodes if node.ready)


def test_a_run_that_is_being_placed_takes_what_fits_and_keeps_nothing_more():
    tasks = (Tasks("w", 3, 8),)
    asks = (Ask("admitted", "x", tasks, admitted=True), Ask("new", "x", (Tasks("w", 4, 1),)))
    verdicts = decide(Snapshot((*cloud(8, 2, free=8), Node("small", Shape(8), Shape(4))), asks))
    assert (verdicts["admitted"].code, sum(verdicts["admitted"].nodes.values())) == (Code.PLACING, 2)
    assert (verdicts["new"].code, verdicts["new"].nodes) == (Code.FITS, {("w", "small"): 4})


def test_10000_asks_on_1200_nodes_print_their_time():
    asks = tuple(Ask(f"r{i}", f"a{i % 500}", (Tasks("w", 1 + i % 16, 1 << (i % 4)),)) for i in range(10_000))
    before = time.process_time()
    verdicts = decide(Snapshot(cloud(8, 1200), asks, {f"a{i}": Share(10_000) for i in range(500)}))
    print(f"10,000 asks on 1,200 nodes: {time.process_time() - before:.2f} s of CPU")
    assert len(verdicts) == len(asks)


def limited(run, gpus, ends, count=1):
    return Ask(run, "", (Tasks("w", count, gpus),), ends=ends)


def test_a_run_that_ends_in_time_starts_on_nodes_that_are_kept_and_delays_nobody():
    whole, free = Shape(8, 64000, 1 << 20, "H200"), Shape(4, 64000, 1 << 20, "H200")
    nodes = (Node("late", whole, free, ends=900), Node("soon", whole, free, ends=500))
    asks = (limited("large", 8, None), limited("whole", 8, None), limited("long", 4, 501), limited("short", 4, 500))
    found = decide(Snapshot(nodes, asks))
    assert (found["large"].code, found["large"].values["latest"]) == (Code.FRAGMENTED, 500)
    assert found["whole"].values["latest"] == 900
    assert found["short"].nodes == {("w", "soon"): 1}
    assert found["long"].nodes == {("w", "late"): 1}
    endless = (replace(nodes[0], ends=None), nodes[1])
    assert decide(Snapshot(endless, asks[:2]))["whole"].values.get("latest") is None
    assert (
        decide(Snapshot(endless, (*asks[:2], limited("short", 4, 1), limited("also", 4, 1))))["also"].code
        is Code.BEHIND
    )


def at_the_latest(nodes, *asks):
    shape = {gpus: Shape(gpus, 64000, 1 << 20, "H200") for gpus in range(9)}
    several = tuple(Node(f"n{i}", shape[whole], shape[free], ends=ends) for i, (whole, free, ends) in enumerate(nodes))
    found = decide(Snapshot(several, asks))
    return [found[ask.run].values.get("latest") for ask in asks]


def test_no_start_is_promised_that_an_earlier_run_delays_by_starting_on_other_nodes_than_it_keeps():
    """What ends early decides on which nodes the first one starts; the others then have to wait for later ones."""
    half, whole, two = limited("half", 4, None), limited("whole", 8, None), limited("two", 8, None, count=2)
    assert at_the_latest([(4, 0, 100), (8, 0, 200), (8, 0, 500)], half, whole) == [100, None]
    assert at_the_latest([(4, 0, 100), (8, 4, 90), (8, 0, 500)], whole) == [90]
    quarters = limited("quarters", 2, None, count=4)
    assert at_the_latest([(8, 0, 100), (8, 0, 200), (8, 0, 500), (8, 0, 900)], quarters, two) == [100, None]
    assert at_the_latest([(8, 0, 100), (8, 0, 200), (8, 0, 500), (8, 0, 900)], half, two, whole) == [100, 500, 900]


ending = st.none() | st.integers(1, 9)


@given(
    st.lists(st.tuples(shapes, st.integers(0, 4), ending), min_size=1, max_size=4),
    st.lists(st.tuples(kinds, ending), max_size=6),
)
def test_no_start_that_is_promised_at_the_latest_is_delayed_by_later_runs(nodes, several):
    """At that time all that held the nodes has ended, and of the runs that were let in meanwhile none is left on them."""
    nodes = tuple(
        Node(f"n{i}", shape, replace(shape, gpus=min(free, shape.gpus)), ends=ends)
        for i, (shape, free, ends) in enumerate(nodes)
    )
    asks = tuple(Ask(f"r{i}", "", (replace(tasks, role="w"),), ends=ends) for i, (tasks, ends) in enumerate(several))
    found = decide(Snapshot(nodes, asks))
    promised = {ask.run: latest for ask in asks if (latest := found[ask.run].values.get("latest"))}
    for head, latest in promised.items():
        at_work = {node.name for node in nodes if node.ends is None or node.ends > latest}
        ahead = list(asks[: asks.index(next(each for each in asks if each.run == head))])
        for ask in asks:
            if found[ask.run].code is Code.FITS and (ask.ends is None or ask.ends > latest):
                at_work |= {name for _, name in found[ask.run].nodes}
        also = tuple(ask for ask in ahead if promised.get(ask.run, latest + 1) <= latest)
        then = tuple(replace(node, free=node.whole, ends=0) for node in nodes if node.name not in at_work)
        mine = next(ask for ask in asks if ask.run == head)
        assert decide(Snapshot(then, (*also, mine)))[head].code is Code.FITS


def test_replicas_of_a_service_go_to_different_nodes_and_those_without_gpus_not_where_most_gpus_are():
    bare = Shape(0, 64000, 1 << 20)
    nodes = (*cloud(8, 2), Node("c0", bare, bare), Node("c1", bare, bare))
    replicas = [(Tasks("server", 1, gpus, "", 1000, spread=True),) for gpus in (1, 1, 0, 0)]
    asks = tuple(Ask(f"r{i}", "", tasks) for i, tasks in enumerate(replicas))
    found = [next(iter(verdict.nodes))[1] for verdict in decide(Snapshot(nodes, asks)).values()]
    assert found == ["n0", "n1", "c0", "c1"]
    packed = tuple(Ask(ask.run, "", tuple(replace(each, spread=False) for each in ask.tasks)) for ask in asks[:2])
    assert {next(iter(verdict.nodes))[1] for verdict in decide(Snapshot(nodes, packed)).values()} == {"n0"}
