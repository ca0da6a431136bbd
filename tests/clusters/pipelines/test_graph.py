"""The next steps of a pipeline, for any stages and any ends of their runs."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from clusters.pipelines.graph import BROKEN, ENDED, RUNNING, SKIPPED, Node, State, before, cycle, decide, layers


@st.composite
def graphs(draw):
    """Stages without cycles, in any order."""
    names = [f"s{n}" for n in range(draw(st.integers(1, 8)))]
    nodes = []
    for n, name in enumerate(names):
        after = tuple(draw(st.lists(st.sampled_from(names[:n]), unique=True, max_size=3))) if n else ()
        source = draw(st.sampled_from(["", *names[:n]]))
        when, always = draw(st.sampled_from(["succeeded", "failed", "always"])), draw(st.booleans())
        nodes.append(Node(name, after, when, source, reads_always=always))
    return draw(st.permutations(nodes))


@given(graphs(), st.data())
def test_every_pipeline_ends_and_nothing_starts_before_what_it_waits_for(nodes, data):
    states = {node.name: State() for node in nodes}
    by_name = {node.name: node for node in nodes}
    retries = {node.name: data.draw(st.integers(0, 2)) for node in nodes}
    cancelled = False
    for _ in range(100):
        following = decide(nodes, states, cancelled=cancelled)
        # A pause only holds back starts; ends and skips still happen.
        paused = decide(nodes, states, cancelled=cancelled, paused=True)
        assert paused == replace(following, start=(), again=())
        assert following == decide(list(nodes), dict(states), cancelled=cancelled)
        if following.phase:
            break
        for name in following.start:
            node = by_name[name]
            waited = [states[each].phase for each in node.waits_for]
            assert set(waited) <= ENDED
            assert not cancelled
            read = states.get(node.source)
            assert not read or read.phase == "Succeeded" or (node.reads_always and read.has_run)
            if node.when == "succeeded":
                assert set(waited) <= {"Succeeded"}
            if node.when == "failed":
                assert {states[each].phase for each in before(name, nodes)} & BROKEN
            states[name] = State(RUNNING)
        for name, why in following.skip:
            assert why
            states[name] = State(SKIPPED)
        for name in following.again:
            states[name] = State()
        running = [name for name, state in states.items() if state.phase == RUNNING]
        assert running or following.start or following.skip or following.again, "it stands still and says no end"
        if running:
            cancelled = cancelled or data.draw(st.integers(0, 9)) == 0
            name = data.draw(st.sampled_from(running))
            phase = data.draw(st.sampled_from(["Succeeded", "Failed", "Stopped"]))
            has_run = phase == "Succeeded" or data.draw(st.booleans())
            states[name] = State(phase, may_retry=phase == "Failed" and retries[name] > 0, has_run=has_run)
            retries[name] -= 1
    else:
        raise AssertionError("it does not end")
    phases = {state.phase for state in states.values()}
    assert phases <= ENDED
    assert following.phase == ("Stopped" if cancelled else "Failed" if phases & BROKEN else "Succeeded")


@given(graphs(), st.data())
def test_columns_go_from_left_to_right_and_a_circle_is_found(nodes, data):
    column = {name: n for n, names in enumerate(layers(nodes)) for name in names}
    assert column.keys() == {node.name for node in nodes}
    assert all(column[each] < column[node.name] for node in nodes for each in node.waits_for)
    assert cycle(nodes) == ()
    last = data.draw(st.sampled_from(list(nodes)))
    for first in before(last.name, nodes):
        closed = [Node(node.name, (*node.after, last.name)) if node.name == first else node for node in nodes]
        found = cycle(closed)
        by_name = {node.name: node for node in closed}
        assert found[0] == found[-1]
        assert all(step in by_name[name].waits_for for name, step in itertools.pairwise(found))
