"""Windows in decisions: whatever waits, nothing starts where it may not be, what is told is so, and what is offered holds."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Snapshot, Verdict, advise, decide
from clusters.admission.packing import Shape, Tasks
from clusters.admission.pool import Node
from clusters.admission.windows import SPARE, Asker, Window, Windows, explained, named, tolerating
from clusters.admission.words import sentence

AT = dt.datetime(2027, 3, 31, 12, tzinfo=dt.UTC)
NAMES = [f"n{number}" for number in range(4)]


def minutes(least: int, most: int) -> st.SearchStrategy[dt.timedelta]:
    return st.integers(least, most).map(lambda count: dt.timedelta(minutes=count))


nodes = st.lists(st.integers(0, 8), min_size=4, max_size=4).map(
    lambda free: [
        Node(name, Shape(8, 64000, 1 << 20, "H200"), Shape(gpus, 64000, 1 << 20, "H200"))
        for name, gpus in zip(NAMES, free, strict=True)
    ]
)
windows = st.lists(
    st.tuples(
        st.sets(st.sampled_from(NAMES), min_size=1), minutes(-60, 300), minutes(61, 300), st.sampled_from([None, 1, 2])
    ),
    max_size=3,
).map(
    lambda each: tuple(
        Window(number, frozenset(on), AT + start, AT + start + lasts, appcode)
        for number, (on, start, lasts, appcode) in enumerate(each)
    )
)
askers = st.builds(Asker, st.sampled_from([1, 2, 3]), st.none() | minutes(1, 400))
tasks = st.builds(
    lambda count, gpus: (Tasks("worker", count, gpus, "", 1000, 1024),), st.integers(1, 6), st.integers(0, 9)
)
runs = st.lists(st.tuples(tasks, askers), max_size=6)


def scene(
    field: list[Node], closed: tuple[Window, ...], wanted: list[tuple[tuple[Tasks, ...], Asker]]
) -> tuple[Snapshot, Windows]:
    found = Windows(AT, closed, {number: asker for number, (_, asker) in enumerate(wanted)})
    asks = [Ask(str(n), "", tolerating(asked, found.tolerated_by(n))) for n, (asked, _) in enumerate(wanted)]
    return Snapshot(found.close(field), tuple(asks)), found


def started_by(verdict: Verdict) -> set[str]:
    return {node for (_, node), count in (verdict.nodes or {}).items() if count}


@given(nodes, windows, runs)
def test_no_run_starts_where_it_may_not_be_when_it_may_still_live(field, closed, wanted):
    snapshot, _ = scene(field, closed, wanted)
    for run, verdict in decide(snapshot).items():
        asker = wanted[int(run)][1]
        for window in closed:
            if verdict.code is Code.FITS and started_by(verdict) & window.nodes:
                if window.starts_at <= AT:
                    assert window.appcode == asker.appcode
                else:
                    assert asker.limit is not None
                    assert AT + asker.limit <= window.starts_at - SPARE


@given(nodes, windows, runs)
def test_a_window_lets_no_run_never_start(field, closed, wanted):
    def never(verdicts: dict[str, Verdict]) -> dict[str, Code]:
        return {run: each.code for run, each in verdicts.items() if each.code.fits == "never"}

    assert never(decide(scene(field, closed, wanted)[0])) == never(decide(scene(field, (), wanted)[0]))


@given(nodes, windows, runs, tasks, askers)
def test_a_new_run_is_told_of_a_window_only_if_it_would_start_without_it_and_the_offered_limit_holds(
    field, closed, wanted, asked, asker
):
    snapshot, found = scene(field, closed, wanted)

    def said(asker: Asker, taints: frozenset[str]) -> Verdict:
        ask = Ask("", "", tolerating(asked, taints))
        return explained(snapshot, {"": advise(snapshot, ask)}, found, new=(ask, asker))[""]

    verdict = said(asker, found.tolerated(asker))
    would = advise(snapshot, Ask("", "", tolerating(asked, found.every))).code is Code.FITS
    assert (verdict.code in (Code.WINDOW, Code.FITS)) == would
    if verdict.code is Code.WINDOW and (limit := int(verdict.values["offer_limit"])):
        offered = Asker(asker.appcode, dt.timedelta(seconds=limit))
        assert said(offered, found.tolerated(offered)).code is Code.FITS
        assert asker.limit is None or asker.limit > offered.limit


def test_of_waiting_runs_the_one_that_keeps_nodes_for_itself_is_told_of_the_window_too():
    field = [
        Node("n0", Shape(8, 1, 1, "H200"), Shape(8, 1, 1, "H200")),
        Node("n1", Shape(8, 1, 1, "H200"), Shape(8, 1, 1, "H200")),
        Node("n2", Shape(8, 1, 1, "H200"), Shape(0, 1, 1, "H200")),
    ]
    closed = (Window(1, frozenset({"n1"}), AT, AT + dt.timedelta(hours=1)),)
    snapshot, found = scene(field, closed, [((Tasks("worker", 2, 8),), Asker(1))] * 2)
    verdicts = explained(snapshot, decide(snapshot), found)
    assert [(each.code, each.rank) for each in verdicts.values()] == [(Code.WINDOW, 1), (Code.GPUS, 2)]


BY_5 = "from 2027-03-31 17:00 UTC to 2027-03-31 18:00 UTC"
OFFER = "With a time limit of 4 h 30 min it would start now."


@pytest.mark.parametrize(
    ("limit", "starts", "appcode", "words"),
    [
        (None, 300, None, f"closed for maintenance {BY_5}, and it has no time limit. {OFFER}"),
        (400, 300, 2, f"reserved for another appcode {BY_5}, and its time limit is too long for that. {OFFER}"),
        (None, 300, 1, f"reserved for its appcode {BY_5}, and it has no time limit. It may start there then. {OFFER}"),
        (
            None, 11, None,
            "closed for maintenance from 2027-03-31 12:11 UTC to 2027-03-31 13:11 UTC, and it has no time limit.",
        ),
        (
            5, 0, None,
            "closed for maintenance until 2027-03-31 13:00 UTC. It starts then, or when other nodes are free.",
        ),
    ],
)  # fmt: skip
def test_what_a_run_is_told(limit, starts, appcode, words):
    field = [Node(name, Shape(8, 1, 1, "H200"), Shape(8, 1, 1, "H200")) for name in ("n0", "n1")]
    start = AT + dt.timedelta(minutes=starts)
    closed = (Window(1, frozenset({"n0", "n1"}), start, start + dt.timedelta(hours=1), appcode),)
    asker = Asker(1, limit and dt.timedelta(minutes=limit))
    snapshot, found = scene(field, closed, [((Tasks("worker", 1, 8),), asker)])
    [verdict] = explained(snapshot, decide(snapshot), found).values()
    assert sentence(verdict) == f"n0 and n1 are {words}"


def test_many_nodes_are_named_in_their_order_and_counted():
    assert named({"n10", "n2"}) == "n2 and n10"
    assert named({f"n{number}" for number in range(6)}) == "n0, n1, n2 and 3 more nodes"
