"""Which versions a model's rule deletes: never the newest, never versions in use, and keeping more never deletes more."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from clusters.model_registry.retention import Decision, Found, Held, Named, RetentionSpec, decide, versions_in

NOW = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)
NUMBERS = st.integers(1, 12)


def ago(days: float) -> dt.datetime:
    return NOW - dt.timedelta(days=days)


# Registration times in any order, as clocks jump.
FOUND = st.dictionaries(
    NUMBERS,
    st.tuples(st.sampled_from(["Ready", "Ready", "Ready", "Pending", "Changed", "Failed"]), st.integers(-2, 40)),
).map(lambda rows: [Found(number, state, ago(days), 1) for number, (state, days) in rows.items()])
NAMED = st.lists(
    st.builds(
        Named, NUMBERS, st.sampled_from(["champion", "canary"]), st.none() | st.integers(0, 40).map(ago), st.booleans()
    ),
    max_size=4,
)
HELD = st.lists(st.builds(Held, NUMBERS, st.just("cluster batch has it")), max_size=3)
SPECS = st.builds(RetentionSpec, keep=st.integers(1, 6), days=st.none() | st.integers(1, 30))


def going(decision: Decision) -> set[int]:
    return {version.number for version in decision.going}


@given(SPECS, FOUND, NAMED, HELD)
def test_what_goes_is_old_and_nobodys_and_of_all_others_is_said_why_they_stay(
    spec: RetentionSpec, found: list[Found], named: list[Named], held: list[Held]
) -> None:
    made = decide(spec, found, named, held, NOW)
    gone = going(made)
    stays = [*(each.version.number for each in made.held), *(number for each in made.kept for number in each.numbers)]
    assert sorted([*gone, *stays]) == sorted(version.number for version in found)
    assert all(who.why for each in made.held for who in each.held)
    ready = sorted((version.number for version in found if version.state == "Ready"), reverse=True)
    assert not gone & set(ready[: spec.keep])
    assert not gone or len(set(ready) - gone) >= spec.keep, "so many are left that can be served"
    assert not gone & {each.number for each in held}
    assert not gone & {each.number for each in named if each.until is None or each.goes_back}
    if spec.days is not None:
        assert not gone & {version.number for version in found if version.registered >= ago(spec.days)}
        assert not gone & {each.number for each in named if each.until and each.until >= ago(spec.days)}
    assert not gone & {version.number for version in found if version.state == "Pending"}
    # A second application deletes nothing.
    left = [version for version in found if version.number not in gone]
    assert not going(decide(spec, left, named, held, NOW))


@given(SPECS, FOUND, NAMED, HELD, st.integers(0, 3), st.integers(0, 9), st.integers(0, 9))
def test_keeping_more_holding_more_and_looking_earlier_let_no_more_go(
    spec: RetentionSpec, found: list[Found], named: list[Named], held: list[Held], keep: int, days: int, later: int
) -> None:
    gone = going(decide(spec, found, named, held, NOW))
    more = RetentionSpec(keep=spec.keep + keep, days=spec.days + days if spec.days else (days or None))
    assert going(decide(more, found, named, held, NOW)) <= gone
    for one in found[:1]:
        assert going(decide(spec, found, named, [*held, Held(one.number, "me")], NOW)) == gone - {one.number}
    assert going(decide(spec, found, named, held, NOW + dt.timedelta(days=later))) >= gone


def test_a_definition_names_versions_wherever_a_cluster_of_it_does() -> None:
    stage = {"spec": {"model": "digits/3", "hooks": [{"model": "digits"}], "env": {"A": "digits/9"}}}
    sweep = {"sweep": {"template": {"model": "digits/12"}}}
    other = {"spec": {"model": "digits@champion"}}, {"spec": {"model": "digit/4"}}, {"spec": {"model": None}}
    assert versions_in({"stages": [stage, sweep, *other]}, "digits") == {3, 12}
