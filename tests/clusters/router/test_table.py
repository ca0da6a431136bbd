"""A router's routing table: it survives in a file, never gets older, and its choices keep to the weights."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
from hypothesis import example, given, is_hypothesis_test
from hypothesis import strategies as st

from clusters.router.table import AT_ONCE, Replica, Revision, Service, Table, Token, Turns, least

ids = st.integers(1, 50)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)
replicas = st.builds(Replica, ids, st.sampled_from(["127.0.0.1:20001", "10.1.2.3:8501", "[fd00::1]:8501"]))
revisions = st.builds(
    Revision, ids, ids, st.integers(0, 100), st.booleans(),
    st.lists(replicas, max_size=4, unique_by=lambda each: each.id).map(
        lambda found: tuple(sorted(found, key=lambda each: each.id))
    ),
)  # fmt: skip
limits = st.none() | st.integers(1, 1000)
tokens = st.builds(Token, ids, names, limits, limits, st.none() | st.floats(0, 4e9))
services = st.builds(
    Service, ids, names, ids, st.booleans(), st.integers(1, 600), st.integers(1, 1000),
    st.lists(revisions, max_size=3).map(tuple), st.dictionaries(names, tokens, max_size=3),
)  # fmt: skip
tables = st.lists(services, max_size=5, unique_by=lambda each: each.id).map(Table)


@given(tables)
def test_a_router_that_starts_from_its_file_knows_what_it_knew(table: Table) -> None:
    assert Table.of(json.loads(json.dumps(table.document()))).by_id == table.by_id


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | names, lambda each: st.lists(each) | st.dictionaries(names, each)
    )
)
def test_a_file_that_is_no_table_is_refused_and_nothing_worse(said: object) -> None:
    try:
        table = Table.of(said)
    except ValueError:
        return
    assert not table.by_id


@given(tables, st.lists(services, max_size=5), st.sets(ids))
def test_what_is_read_late_makes_nothing_older_and_what_is_gone_goes(
    table: Table, found: list[Service], living: set[int]
) -> None:
    after = table.changed(found, living)
    assert after.by_id.keys() <= living
    for number, service in after.by_id.items():
        known = [each for each in (table.by_id.get(number), *found) if each and each.id == number]
        assert service in known
        assert service.route == max(each.route for each in known)
    assert set(after.by_label) == {each.label for each in after.by_id.values()}


weights = st.lists(st.integers(1, 99), min_size=1, max_size=4)


@given(weights, st.integers(0, 300))
def test_every_hundred_in_a_row_has_its_share_of_each(parts: list[int], start: int) -> None:
    whole = sum(parts)
    found = [Revision(n, n, weight) for n, weight in enumerate(parts)]
    turns = Turns()
    chosen = [turns.next(found).id for _ in range(start + whole)]
    assert Counter(chosen[start:]) == Counter(dict(enumerate(parts)))


def test_a_canary_of_ten_per_cent_is_each_tenth_and_no_heap() -> None:
    turns, found = Turns(), [Revision(1, 1, 90), Revision(2, 2, 10)]
    chosen = [turns.next(found).id for _ in range(1000)]
    at = [n for n, each in enumerate(chosen) if each == 2]
    assert {later - earlier for earlier, later in itertools.pairwise(at)} == {10}


@given(st.lists(st.tuples(weights, st.integers(1, 30)), max_size=6))
@example([([1, 24], 12), ([1, 1], 13)])
def test_changed_weights_begin_without_a_debt(phases: list[tuple[list[int], int]]) -> None:
    """After any history, each revision gets its share to within one request per revision."""
    turns = Turns()
    for parts, count in phases:
        found = [Revision(n, n, weight) for n, weight in enumerate(parts)]
        chosen = Counter(turns.next(found).id for _ in range(count))
        for each in found:
            assert abs(chosen[each.id] - count * each.weight / sum(parts)) < len(parts)


def test_a_property_that_failed_is_not_tried_again(request: pytest.FixtureRequest) -> None:
    """RERUNS once hid the example above: the rerun drew others and passed."""
    properties = [item for item in request.session.items if is_hypothesis_test(getattr(item, "obj", None))]
    marks = [item.get_closest_marker("flaky") for item in properties]
    assert properties
    assert all(mark and mark.kwargs == {"reruns": 0} for mark in marks)


@given(st.lists(replicas, min_size=1, max_size=5, unique_by=lambda each: each.id), st.integers(1, 60))
def test_the_one_with_the_fewest_in_flight_is_next_and_equals_take_turns(found: list[Replica], count: int) -> None:
    busy: Counter[int] = Counter()
    for turn in range(count):
        chosen = least(found, busy, turn)
        assert chosen is not None
        busy[chosen.id] += 1
    held = [busy[each.id] for each in found]
    assert max(held) - min(held) <= 1
    idle = {least(found, {}, turn) for turn in range(len(found))}
    assert idle == set(found)


def test_nobody_is_chosen_of_nobody() -> None:
    assert least((), {}, 3) is None


def test_two_routers_together_send_a_replica_no_more_than_one_alone_would() -> None:
    assert Service(1, "a-b", 1).most(1) == AT_ONCE
    assert Service(1, "a-b", 1).most(2) == AT_ONCE / 2
    assert Service(1, "a-b", 1, target=100).most(3) == 67
