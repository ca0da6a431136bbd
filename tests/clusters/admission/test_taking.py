from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Snapshot, advise, decide, outlook
from clusters.admission.order import Level, Share
from clusters.admission.packing import Shape, Sizes, Tasks
from clusters.admission.pool import Node
from clusters.admission.taking import Holding
from tests.clusters.admission.simulated import Cluster, settle

SPARE, BORROWED, QUOTA = Level


def node(name, free, gpus=8):
    return Node(name, Shape(gpus), Shape(free))


def holding(run, nodes, level=BORROWED, **facts):
    sizes = {name: Sizes(gpus) for name, gpus in nodes.items()}
    return Holding(run, facts.pop("appcode", "other"), sum(nodes.values()), sizes, level, **facts)


def ask(run, gpus, count=1, appcode="x", **facts):
    return Ask(run, appcode, (Tasks("w", count, gpus),), **facts)


def takes(nodes, holdings, *asks, quota=100):
    shares = {each.appcode: Share(quota, limit=1000) for each in (*asks, *holdings)}
    return decide(Snapshot(tuple(nodes), asks, shares, tuple(holdings)))


def test_a_run_inside_its_quota_takes_back_what_is_borrowed_and_the_nodes_are_kept_for_it():
    nodes = [node("n0", 0), node("n1", 2)]
    found = takes(
        nodes, [holding("b", {"n0": 8}), holding("q", {"n1": 6}, QUOTA)], ask("r", 8), ask("s", 2), ask("t", 1)
    )
    assert (found["r"].code, found["r"].takes, found["r"].values["taken"]) == (Code.TAKING_BACK, ("b",), 8)
    assert found["s"].nodes == {("w", "n1"): 1}
    assert found["t"].takes == ()


def test_one_that_borrows_itself_takes_spare_runs_alone_and_an_urgent_one_those_of_its_own_appcode():
    nodes, held = [node("n0", 0)], [holding("b", {"n0": 8})]
    assert takes(nodes, held, ask("r", 8), quota=0)["r"].takes == ()
    assert takes(nodes, [replace(held[0], level=SPARE)], ask("r", 8), quota=0)["r"].takes == ("b",)
    own = [holding("mine", {"n0": 8}, QUOTA, appcode="x")]
    assert takes(nodes, own, ask("r", 8))["r"].takes == ()
    assert takes(nodes, own, ask("r", 8, priority_class="urgent"))["r"].takes == ("mine",)
    assert takes(nodes, own, ask("r", 8, appcode="y", priority_class="urgent"))["r"].takes == ()


def test_spare_runs_are_first_then_those_that_lose_least_and_none_that_began_just_now_or_in_vain():
    nodes = [node(f"n{i}", 0) for i in range(4)]
    held = [
        holding("dear", {"n0": 8}, lost=900),
        holding("cheap", {"n1": 8}, lost=100),
        holding("spare", {"n2": 8}, SPARE, lost=999),
        holding("young", {"n3": 8}, SPARE, is_protected=True),
    ]
    assert takes(nodes, held, ask("r", 8))["r"].takes == ("spare",)
    assert set(takes(nodes, held, ask("r", 8, 2))["r"].takes) == {"spare", "cheap"}
    assert takes(nodes, held, ask("r", 8, 4))["r"].takes == ()
    split = [holding("a", {"n0": 4}, lost=1), holding("b", {"n1": 4}, lost=2), holding("c", {"n1": 4}, lost=3)]
    assert set(takes([node("n0", 0), node("n1", 0)], split, ask("r", 8))["r"].takes) == {"b", "c"}


def test_with_checkpoints_each_10_to_30_minutes_half_of_what_newest_first_loses_is_kept():
    """Seeded scenes of 32 full nodes, where an appcode takes 1 to 4 of them. Runs have begun within the last day."""
    chance, lost, newest = Random(7), 0, 0
    for _ in range(200):
        nodes, held, unsaved, age = [], [], {}, {}
        for n in range(32):
            nodes.append(node(f"n{n}", 0))
            for size in chance.choice([(8,), (8,), (4, 4), (4, 2, 2), (2, 2, 2, 1, 1)]):
                run = f"r{len(held)}"
                age[run] = chance.randrange(600, 86_400)
                unsaved[run] = size * (age[run] % chance.randrange(600, 1801))
                held.append(holding(run, {f"n{n}": size}))
        asked = ask("taker", 8, chance.randrange(1, 5))

        def loses(by, nodes=nodes, held=held, asked=asked, unsaved=unsaved):
            told = [replace(each, lost=by(each)) for each in held]
            found = takes(nodes, told, asked)["taker"].takes
            assert found
            return sum(unsaved[run] for run in found)

        lost += loses(lambda each, unsaved=unsaved: unsaved[each.run])
        newest += loses(lambda each, age=age: each.gpus * age[each.run])
    print(f"{lost / 3600:.0f} GPU-hours lost; newest first {newest / 3600:.0f}: {lost / newest:.2f} of it")
    assert lost <= newest / 2


def test_what_is_ending_is_awaited_and_nothing_more_is_taken():
    nodes = [replace(node("n0", 0), ending=Sizes(8)), node("n1", 0)]
    found = takes(nodes, [holding("b", {"n1": 8})], ask("r", 8), ask("s", 8))
    assert (found["r"].code, found["r"].takes) == (Code.TAKING_BACK, ())
    assert found["s"].takes == ("b",)


def test_who_awaits_runs_that_are_ending_keeps_the_nodes_that_are_free_already():
    """The programs of one run do not end together: what the first of them leave is not for others."""
    nodes = [*(replace(node(f"n{i}", 0), ending=Sizes(8)) for i in range(3)), node("n3", 8), node("n4", 8)]
    found = takes(nodes, [], ask("r", 8, 3), ask("s", 8))
    assert (found["r"].code, found["s"].code) == (Code.TAKING_BACK, Code.TAKING_BACK)
    assert outlook(Snapshot(tuple(nodes), (ask("r", 8, 3),))).kept == {"n0": "r", "n3": "r", "n4": "r"}


def test_one_decision_takes_a_tenth_of_the_cloud_or_what_its_first_run_needs():
    nodes = [node(f"n{i}", 0) for i in range(20)]
    held = [holding(f"b{i}", {f"n{i}": 8}) for i in range(20)]
    found = takes(nodes, held, *(ask(f"r{i}", 8) for i in range(5)))
    assert [len(each.takes) for each in found.values()] == [1, 1, 0, 0, 0]
    assert len(takes(nodes, held, ask("r", 8, 12))["r"].takes) == 12


def test_a_run_takes_what_an_equal_one_could_not_as_it_is_its_own_appcodes():
    nodes = tuple(node(f"n{i}", 0) for i in range(5))
    held = tuple(holding(f"b{i}", {f"n{i}": 8}) for i in range(5))
    asks = (*(ask(f"own{i}", 8, appcode="other") for i in range(4)), ask("theirs", 8))
    assert decide(Snapshot(nodes, asks, holdings=held))["theirs"].takes == ("b3",)


def test_a_preview_says_what_would_be_taken():
    snapshot = Snapshot(
        (node("n0", 0),), (), {"x": Share(8), "other": Share(0, borrowed=8)}, (holding("b", {"n0": 8}),)
    )
    assert advise(snapshot, ask("", 4)).code is Code.TAKING_BACK


sized = st.tuples(
    st.integers(1, 4), st.integers(1, 2), st.sampled_from("xyz"), st.sampled_from(["urgent", "normal", "spare"])
)


@given(
    st.lists(sized, max_size=8), st.fixed_dictionaries({name: st.integers(0, 6) for name in "xyz"}), st.integers(1, 3)
)
def test_taking_ends_and_never_touches_what_others_run_inside_their_quota(several, quotas, count):
    asks = [
        Ask(f"r{i}", who, (Tasks("w", n, gpus),), priority_class=kind) for i, (gpus, n, who, kind) in enumerate(several)
    ]
    settle(Cluster(asks, quotas, count))
