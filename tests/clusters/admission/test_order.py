from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from clusters.admission.order import FIRST, Level, Share, by_person, in_order, levels
from clusters.admission.shares import Want, deserved

SPARE, BORROWED, QUOTA = Level


@dataclass(frozen=True)
class Run:
    name: str
    gpus: int
    priority_class: str = "normal"
    appcode: str = "x"
    person: str = ""
    ends: int | None = None


def of(found):
    return [(run.name, level) for run, level in found]


def test_what_fits_the_quota_in_order_of_class_and_age_is_inside_it():
    runs = [Run("a", 6), Run("b", 4), Run("c", 2), Run("s", 1, "spare"), Run("u", 3, "urgent"), Run("cpu", 0)]
    found = levels(runs, 8)
    assert of(found) == [("u", QUOTA), ("a", BORROWED), ("b", QUOTA), ("c", BORROWED), ("cpu", QUOTA), ("s", SPARE)]


def test_a_run_that_waits_for_its_quota_is_not_passed_by_smaller_ones_and_one_that_never_fits_it_holds_up_nobody():
    assert of(levels([Run("a", 8), Run("b", 2)], 8, held=4, waiting=True)) == [("a", BORROWED), ("b", BORROWED)]
    assert of(levels([Run("a", 9), Run("b", 2)], 8, held=4, waiting=True)) == [("a", BORROWED), ("b", QUOTA)]


def test_an_urgent_run_that_waits_is_inside_a_quota_that_runs_of_a_lower_class_fill():
    runs = [Run("late", 2), Run("u", 3, "urgent"), Run("more", 3, "urgent")]
    assert of(levels(runs, 8, held=6, urgent=4, waiting=True)) == [("u", QUOTA), ("more", BORROWED), ("late", BORROWED)]
    assert of(levels(runs[:2], 8, held=2, waiting=True)) == [("u", QUOTA), ("late", QUOTA)]


def test_inside_quotas_first_then_who_holds_least_of_what_it_deserves_then_spare():
    shares = {"x": Share(4, held=4, borrowed=4, limit=100), "y": Share(4, held=4, limit=100), "z": Share(4)}
    asks = [
        Run("spare", 1, "spare", "z"),
        Run("x1", 4),
        Run("y1", 4, appcode="y"),
        Run("y2", 4, appcode="y"),
        Run("z1", 4, appcode="z"),
    ]
    assert of(in_order(asks, shares, 32)) == [
        ("z1", QUOTA), ("y1", BORROWED), ("x1", BORROWED), ("y2", BORROWED), ("spare", SPARE),
    ]  # fmt: skip


def test_10000_runs_of_one_appcode_are_not_before_another_appcode():
    asks = [*(Run(f"x{i}", 1) for i in range(10_000)), Run("y", 1, appcode="y")]
    shares = {name: Share(0, limit=99_999, line=name) for name in "xy"}
    assert [run.name for run, _ in in_order(asks, shares, 100)].index("y") <= 1


classes = st.sampled_from(["urgent", "normal", "spare"])
runs = st.lists(st.tuples(st.integers(0, 5), classes, st.sampled_from("xyz")), max_size=12).map(
    lambda several: [Run(f"r{i}", *each) for i, each in enumerate(several)]
)
share = st.builds(
    Share, st.integers(0, 8), st.integers(0, 8), st.integers(0, 4), st.integers(0, 4), st.sampled_from(["l", "m"]),
    st.integers(0, 20), st.integers(0, 3), st.integers(0, 1 << 24), st.just(()), st.integers(0, 8),
)  # fmt: skip


@given(runs, st.fixed_dictionaries(dict.fromkeys("xyz", share)), st.integers(1, 30))
def test_the_next_run_is_always_that_of_the_queue_with_the_smallest_part(asks, shares, capacity):
    """Against a slow reference without a heap."""
    left, wants = {}, {}
    for name, each in shares.items():
        own = [run for run in asks if run.appcode == name]
        for run, level in levels(own, each.quota, each.held, each.urgent, waiting=True):
            left.setdefault((name, level), []).append(run)
        asked = sum(run.gpus for run in own if run.priority_class != "spare")
        holds = each.held + each.borrowed
        wants[name] = Want(each.line, each.quota, max(each.limit, each.quota), each.weight, each.used, holds + asked)
    due = deserved(wants, capacity)
    held = Counter({(name, False): each.held + each.borrowed for name, each in shares.items()})
    held.update({(name, True): each.spare for name, each in shares.items()})

    def part(names, is_spare):
        sum_ = sum(held[name, is_spare] for name in names)
        deserves = sum(shares[name].weight if is_spare else due[name] for name in names)
        return sum_ * 1_000_000 // deserves if deserves else (sum_ + 1) * 1_000_000

    def key(of):
        name, level = of
        line = [other for other in shares if shares[other].line == shares[name].line]
        spare = level == SPARE
        return -level, part(line, spare), part([name], spare), asks.index(left[of][0])

    expected = []
    while left:
        best = min(left, key=key)
        run = left[best].pop(0)
        held[best[0], best[1] == SPARE] += run.gpus
        expected.append((run.name, best[1]))
        left = {of: queue for of, queue in left.items() if queue}
    assert of(in_order(asks, shares, capacity)) == expected


def test_who_submits_1000_runs_does_not_hold_up_colleagues():
    mine = [Run(f"mine-{i}", 4, person="me") for i in range(1000)]
    runs = [*mine, Run("hers", 8, person="her"), Run("his", 1, person="him"), Run("now", 1, "urgent", person="me")]
    order = [run.name for run in by_person(runs, {"me": 4, "her": 2})]
    assert order[:4] == ["now", "his", "hers", "mine-0"]
    shares = {"x": Share(8, held=6, people=(("her", 2), ("me", 4)))}
    found = of(in_order(runs[1:-1], shares, 100))
    assert found[:2] == [("his", QUOTA), ("hers", BORROWED)], "the quota is the person's, too, who holds least"


def test_of_spare_runs_of_a_person_the_one_with_the_shortest_time_limit_is_first_and_others_by_age():
    kinds = [("normal", 9), ("spare", None), ("spare", 9), ("spare", 2), ("normal", 1), ("spare", 2)]
    runs = [Run(f"{kind}-{ends}-{i}", 1, kind, ends=ends) for i, (kind, ends) in enumerate(kinds)]
    order = [run.name for run, _ in in_order(runs, {"x": Share(8)}, 100)]
    assert order == ["normal-9-0", "normal-1-4", "spare-2-3", "spare-2-5", "spare-9-2", "spare-None-1"]


people = st.lists(st.tuples(st.integers(0, 5), classes, st.just("x"), st.sampled_from("abcd")), max_size=15).map(
    lambda several: [Run(f"r{i}", *each) for i, each in enumerate(several)]
)


@given(people, st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9)))
def test_the_next_run_is_always_of_the_person_who_holds_least_and_nobody_waits_for_ever(runs, held):
    counts, left, expected = Counter(held), list(runs), []
    while left:
        first = min(FIRST[run.priority_class] for run in left)
        heads = {}
        for run in left:
            if FIRST[run.priority_class] == first:
                heads.setdefault(run.person, run)
        # Without one that is older and whose person holds no more.
        run = min(heads.values(), key=lambda run: (counts[run.person], runs.index(run)))
        left.remove(run)
        counts[run.person] += run.gpus
        expected.append(run)
    order = by_person(runs, held)
    assert order == expected
    for run in runs:
        before = order[: order.index(run)]
        passed = [each for each in before if each.person != run.person and runs.index(each) > runs.index(run)]
        same = [each for each in passed if each.priority_class == run.priority_class]
        # Younger runs of another pass it only until their person holds as much as its own.
        for person in {each.person for each in same}:
            last = [each for each in same if each.person == person][-1]
            own = held.get(run.person, 0) + sum(each.gpus for each in before if each.person == run.person)
            had = held.get(person, 0) + sum(each.gpus for each in before[: before.index(last)] if each.person == person)
            assert had <= own
