from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from clusters.admission.decision import Ask, Prospect, Snapshot, advise
from clusters.admission.offers import ORDER, Change, Terms, offers
from clusters.admission.order import Share
from clusters.admission.packing import Shape, Tasks
from clusters.admission.pool import Node

NO_LIMIT = 10**6
NOW = 1000


def ask_of(change):
    ends = None if change.seconds is None else NOW + change.seconds
    return Ask("", "mine", change.tasks, priority_class=change.priority_class, ends=ends)


def price(change):
    dear = {"": 2, "A": 3, "B": 1}
    return Decimal(sum(each.count * each.gpus * dear[each.gpu_model] for each in change.tasks))


def terms(snapshot, now=NO_LIMIT, most=NO_LIMIT, price=price):
    prospect = Prospect(snapshot)
    return Terms(lambda change: prospect, ask_of, lambda change: (now, most), price)


def when(snapshot, change, now=NO_LIMIT, most=NO_LIMIT):
    """0 for now, a time, infinity, or None for never: by a decision of its own."""
    verdict = advise(snapshot, ask_of(change))
    if verdict.code.fits == "never" or change.counted > most:
        return None
    if change.counted > now:
        return float("inf")
    return 0 if verdict.code.fits == "now" else verdict.values.get("latest", 0) or float("inf")


shapes = st.builds(Shape, st.integers(0, 4), st.integers(0, 4), st.just(0), st.sampled_from(["A", "B"]))
nodes = st.lists(
    st.tuples(shapes, st.integers(0, 4), st.none() | st.integers(NOW, NOW + 9)), min_size=1, max_size=4
).map(
    lambda found: tuple(
        Node(f"n{i}", shape, replace(shape, gpus=min(free, shape.gpus)), ends=ends)
        for i, (shape, free, ends) in enumerate(found)
    )
)
kinds = st.builds(
    Tasks, st.just("w"), st.integers(1, 6), st.integers(0, 4), st.sampled_from(["", "A"]), st.integers(0, 2), st.just(0)
)
classes = st.sampled_from(["normal", "spare", "urgent"])
asks = st.lists(
    st.tuples(kinds, st.sampled_from(["mine", "theirs"]), classes, st.none() | st.integers(1, 9)), max_size=4
)
shares = st.just({}) | st.builds(
    lambda *each: dict(zip(("mine", "theirs"), each, strict=True)),
    *[st.builds(lambda quota, held: Share(quota, min(quota, held), limit=20), st.integers(0, 8), st.integers(0, 8))]
    * 2,
)
scenes = st.builds(
    lambda nodes, several, shares: Snapshot(
        nodes,
        tuple(
            Ask(f"r{i}", code, (tasks,), priority_class=class_, ends=ends and NOW + ends)
            for i, (tasks, code, class_, ends) in enumerate(several)
        ),
        shares,
    ),
    nodes, asks, shares,
)  # fmt: skip
wanted = st.builds(
    lambda tasks, class_, seconds: Change("fewer", tuple(tasks), class_, seconds),
    st.lists(kinds, min_size=1, max_size=2).map(lambda found: [replace(t, role=f"t{i}") for i, t in enumerate(found)]),
    classes,
    st.none() | st.integers(1, 12),
)
limits = st.integers(0, 12)


def ways_of(was):
    """Splits and another model of the same GPUs."""
    for i, each in enumerate(was.tasks):
        others = was.tasks[:i], was.tasks[i + 1 :]
        for count in (1, 2, 3, 4, 6, 12):
            if each.gpus and count != each.count and each.count * each.gpus % count == 0:
                split = replace(each, count=count, gpus=each.count * each.gpus // count)
                yield replace(was, kind="split", tasks=(*others[0], split, *others[1]))
        yield replace(was, kind="model", tasks=(*others[0], replace(each, gpu_model="B"), *others[1]))


@given(scenes, wanted, limits, limits)
def test_an_offer_that_is_taken_keeps_its_word_and_is_better_than_what_was_asked(snapshot, was, now, most):
    here = terms(snapshot, now, max(now, most))
    before = when(snapshot, was, now, max(now, most))
    if before == 0:
        return
    found = offers(here, was, ways_of(was), range(9, 0, -1), may_be_spare=True)
    assert here.prospect(was).calls <= 200
    assert len(found) <= 3
    assert [ORDER.index(each.change.kind) for each in found] == sorted(
        {ORDER.index(each.change.kind) for each in found}
    )
    for offer in found:
        promised = 0 if offer.starts else offer.latest or float("inf")
        assert when(snapshot, offer.change, now, max(now, most)) == promised
        assert before is None or promised < before


@given(scenes, wanted)
def test_the_offer_of_fewer_tasks_is_the_largest_of_all_that_start_now(snapshot, was):
    if when(snapshot, was) == 0:
        return
    largest = max(was.tasks, key=lambda each: (each.count * each.gpus, each.count))

    def with_(count):
        return replace(was, tasks=tuple(replace(each, count=count) if each is largest else each for each in was.tasks))

    starting = [count for count in range(1, largest.count) if when(snapshot, with_(count)) == 0]
    offered = [each.change for each in offers(terms(snapshot), was) if each.starts]
    assert offered == ([with_(starting[-1])] if starting else [])


def cloud(gpus, count, free=None, model="H200"):
    whole = Shape(gpus, 64000, 1 << 20, model)
    return tuple(Node(f"{model}-{i}", whole, replace(whole, gpus=gpus if free is None else free)) for i in range(count))


def told(nodes, *tasks, ways=(), now=NO_LIMIT, most=NO_LIMIT):
    here = terms(Snapshot(nodes, ()), now, most, lambda change: Decimal(change.gpus))
    found = offers(here, Change("fewer", tasks), ways, may_be_spare=True)
    return [(each.change.kind, [(t.count, t.gpus) for t in each.change.tasks], each.starts) for each in found]


def test_a_run_too_large_for_any_node_is_offered_a_split_which_waits_where_none_is_free():
    split = Change("split", (Tasks("worker", 2, 8),))
    assert told(cloud(8, 4), Tasks("worker", 1, 16), ways=[split]) == [("split", [(2, 8)], True)]
    assert told(cloud(8, 4, free=4), Tasks("worker", 1, 16), ways=[split]) == [("split", [(2, 8)], False)]
    assert told(cloud(8, 1), Tasks("worker", 1, 16), ways=[split]) == []


def test_a_gang_is_offered_as_many_workers_as_start_now_and_where_none_do_as_many_as_ever_can():
    master, workers = Tasks("master", 1, 1), Tasks("worker", 200, 1)
    assert told(cloud(8, 20), master, workers) == [("fewer", [(1, 1), (159, 1)], True)]
    assert told(cloud(8, 20, free=4), master, workers) == [("fewer", [(1, 1), (79, 1)], True)]
    assert told(cloud(8, 20, free=0), master, workers) == [("fewer", [(1, 1), (159, 1)], False)]


def test_no_offer_is_larger_than_what_the_quota_leaves():
    tasks = Tasks("worker", 12, 1)
    assert told(cloud(8, 1), tasks, now=5) == [("fewer", [(5, 1)], True)]
    assert told(cloud(8, 2), tasks, now=0, most=0) == [("spare", [(12, 1)], True)]


def test_a_dearer_model_is_no_offer_where_a_split_starts_too_and_a_cheaper_one_is():
    ways = [Change("split", (Tasks("w", 4, 2, "A"),)), Change("model", (Tasks("w", 2, 4, "B"),))]
    field = (*cloud(2, 4, model="A"), *cloud(4, 2, model="B"))
    for dear, kinds_offered in ((3, ["fewer", "split"]), (1, ["fewer", "split", "model"])):

        def price(change, dear=dear):
            return Decimal(change.gpus * (dear if change.tasks[0].gpu_model == "B" else 2))

        here = terms(Snapshot((*field, *cloud(4, 1, model="A")), ()), price=price)
        found = offers(here, Change("fewer", (Tasks("w", 2, 4, "A"),)), ways)
        assert [each.change.kind for each in found] == kinds_offered
