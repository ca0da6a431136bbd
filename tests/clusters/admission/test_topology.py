"""Tasks of a run go near each other, or far from each other, and never worse than where nobody knows which nodes are near."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.admission.decision import Ask, Snapshot, decide, outlook
from clusters.admission.packing import Shape, Tasks, assign, group
from clusters.admission.pool import Node
from clusters.admission.topology import Topology, assign_near

RACKS, ZONES = ("r1", "r2", ""), ("a", "b")
shapes = st.builds(Shape, st.integers(0, 4), st.integers(0, 4), st.just(0))
paths = st.tuples(st.sampled_from(ZONES), st.sampled_from(RACKS))
pool = st.lists(st.tuples(shapes, paths), min_size=1, max_size=7).map(
    lambda found: tuple(
        Node(f"n{i}", Shape(4, 4, 0), shape, drained=Shape(4, 4, 0), domains=path)
        for i, (shape, path) in enumerate(found)
    )
)
kinds = st.builds(
    Tasks, st.just(""), st.integers(1, 4), st.integers(0, 3), st.just(""), st.integers(0, 3), spread=st.booleans()
)
runs = st.lists(kinds, min_size=1, max_size=2).map(
    lambda several: tuple(replace(each, role=f"t{i}", spread=several[0].spread) for i, each in enumerate(several))
)


def racks(*sizes: int, gpus: int = 8) -> tuple[Node, ...]:
    """Nodes of whole GPUs in racks of these sizes, all in one zone."""
    paths = [f"r{rack}" for rack, size in enumerate(sizes) for _ in range(size)]
    return tuple(Node(f"n{i}", Shape(gpus), Shape(gpus), domains=("a", rack)) for i, rack in enumerate(paths))


def where(nodes: tuple[Node, ...], *asks: Tasks) -> list[list[str]]:
    """The racks of each run that starts."""
    path = {node.name: node.domains[-1] for node in nodes}
    verdicts = decide(Snapshot(nodes, tuple(Ask(f"{i:03}", "", (each,)) for i, each in enumerate(asks))))
    return [sorted({path[node] for _, node in each.nodes or ()}) for each in verdicts.values()]


def test_a_gang_goes_to_the_smallest_rack_that_holds_it_else_anywhere() -> None:
    nodes = racks(4, 2, 3)
    assert where(nodes, Tasks("w", 3, 8)) == [["r2"]]
    assert where(nodes, Tasks("w", 2, 8), Tasks("w", 4, 8), Tasks("w", 3, 8)) == [["r1"], ["r0"], ["r2"]]
    assert where(nodes, Tasks("w", 5, 8)) == [["r0", "r1"]]
    assert where(nodes, Tasks("w", 1, 8)) == [["r0"]], "one node is near itself"


def test_a_gang_that_is_too_large_for_a_rack_stays_in_one_zone() -> None:
    zones = [(zone, f"r{rack}") for zone in "abc" for rack in range(2) for _ in range(2 if zone == "b" else 1)]
    nodes = tuple(Node(f"n{i}", Shape(8), Shape(8), domains=path) for i, path in enumerate(zones))
    [verdict] = decide(Snapshot(nodes, (Ask("r", "", (Tasks("w", 3, 8),)),))).values()
    assert {zones[int(node[1:])][0] for _, node in verdict.nodes or ()} == {"b"}


@pytest.mark.parametrize(("count", "nodes", "zones"), [(2, 2, 2), (4, 4, 2), (5, 4, 2)])
def test_tasks_that_spread_take_as_many_nodes_and_racks_as_there_are(count: int, nodes: int, zones: int) -> None:
    found = assign_near(
        [Tasks("w", count, 1, spread=True)],
        group((node.name, node.free) for node in racks(2, 2)),
        topology=Topology.of((node.name, node.domains) for node in racks(2, 2)),
    )
    assert found.layout
    assert (len(found.layout), len({int(name[1:]) // 2 for _, name in found.layout})) == (nodes, zones)


@given(pool, runs, st.sets(st.integers(0, 6)))
def test_whatever_fits_somewhere_fits_near_and_one_rack_is_enough_where_it_is(nodes, run, some):
    field, promised = group((node.name, node.free) for node in nodes), {f"n{i}" for i in some}
    topology = Topology.of((node.name, node.domains) for node in nodes)
    anywhere, near = assign(run, field, promised), assign_near(run, field, promised, topology)
    packed = assign(tuple(replace(each, spread=False) for each in run), field, promised)
    assert len(run) > 1 or (anywhere.layout is None) == (packed.layout is None), "what cannot spread is packed"
    if anywhere.layout is not None:
        assert near.layout is not None
        assert near.proved >= (anywhere.layout is not None and anywhere.proved), (
            "a scheduler may take the places in any order where it could before"
        )
    if near.layout is None:
        assert near.left == field
        return
    assert sum(near.layout.values()) >= sum(each.count for each in run)
    assert sorted(name for names in near.left.values() for name in names) == sorted(node.name for node in nodes)
    assert all(min(shape.gpus, shape.cpu_milli) >= 0 for shape in near.left)
    assert near == assign_near(run, group((node.name, node.free) for node in reversed(nodes)), promised, topology)
    used = {name for _, name in near.layout}
    if run[0].spread or len(used) == 1:
        return
    path = {node.name: node.domains for node in nodes}
    for depth in (2, 1):
        inside = [
            {node.name for node in nodes if node.domains[:depth] == domain}
            for domain in sorted({node.domains[:depth] for node in nodes if node.domains[depth - 1]})
        ]
        alone = [
            assign(run, group((node.name, node.free) for node in nodes if node.name in names), promised)
            for names in inside
        ]
        if any(each.layout is not None and each.proved for each in alone):
            assert len({path[name][:depth] for name in used}) == 1
            return


@given(pool, st.lists(runs, max_size=5), st.booleans())
def test_the_first_run_starts_or_waits_as_where_no_rack_is_known_and_the_order_of_nodes_changes_nothing(
    nodes, several, limited
):
    asks = tuple(Ask(f"r{i}", "", run, ends=9 if limited and i % 2 else None) for i, run in enumerate(several))
    asks = tuple(replace(ask, tasks=tuple(each for each in ask.tasks if each.gpus)) for ask in asks)
    nodes = tuple(replace(node, ends=5) for node in nodes)
    near = outlook(Snapshot(nodes, asks))
    flat = outlook(Snapshot(tuple(replace(node, domains=()) for node in nodes), asks))
    assert near == outlook(Snapshot(tuple(reversed(nodes)), asks))
    # Which nodes it takes may cost later ones theirs.
    for run, verdict in list(flat.verdicts.items())[:1]:
        assert near.verdicts[run].code is verdict.code
