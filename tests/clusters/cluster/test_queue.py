"""The queue: waiting runs show the same reason as the preview; of other appcodes only sums are shown."""

from __future__ import annotations

import datetime as dt
import html
import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import expect

from clusters.admission.codes import Code
from clusters.admission.decision import Ask, Snapshot, decide, outlook
from clusters.admission.packing import Shape, Sizes, Tasks
from clusters.admission.pool import Node as Decided
from clusters.clouds.drivers.base import Capacity, Node
from clusters.clouds.models import Cloud
from clusters.cluster.pages.machines import MOST_BOXES, machines
from clusters.runs import reconcile
from clusters.runs.models import Cluster, Run, Task
from clusters.runs.placing import places
from clusters.runs.placing.tiles import STATES, Tile, placed_tiles, seen_tiles, tile
from clusters.runs.queries.queue import queues
from clusters.runs.status.observe import save_capacity
from portal.models import Appcode
from tests.api.client import api_of
from tests.browser import assert_fits, chromium, give_session
from tests.clusters.gangs import Told, gang, node


@pytest.fixture
def busy(make_cluster: Any, people: Any) -> None:
    """Two nodes with four free GPUs each. In ops-demo one run waits for its place, two wait for quota, and one holds three GPUs;
    in flight-demo one waits and one holds five GPUs."""
    nodes = tuple(Node(f"gpu-{n}", "A100", 8, 4, 64_000, 1 << 18, gpus_others=4) for n in (1, 2))
    save_capacity("local", Capacity(nodes))
    at = now()
    big = {"flavor": "large", "gpus": 8, "gpu_model": "", "cpu_milli": 1000, "memory_mb": 1024}
    waits = {"wait_reason": "WaitingForGPUs", "message": "It needs 8 GPUs on one node."}
    roles = {"master": {"count": 1, "ready": 0}}
    make_cluster("block", run={"admitted_at": at, "resources": {"master": big}, "roles": roles, "gpus": 8, **waits})
    for place in (1, 2):
        of_quota = {"wait_reason": "QuotaExceeded", "message": "It waits for quota.", "wait_values": {"place": place}}
        make_cluster(f"quota-{place}", workers=3, run=of_quota)
    make_cluster("holder", phase="Running", workers=2, run={"gpu_rate": 3, "admitted_at": at})
    for name, facts in (("theirs-1", {}), ("theirs-2", {"phase": "Running", "gpu_rate": 5, "admitted_at": at})):
        cluster = make_cluster(name, by=people.alice)
        Run.objects.filter(cluster=cluster).update(**facts)
        Cluster.objects.filter(pk=cluster.pk).update(appcode=people.flight)


@pytest.mark.django_db
def test_what_waits_says_why_and_where_it_stands(
    busy: None, people: Any, as_person: Any, django_assert_max_num_queries: Any
) -> None:
    client = as_person(people.victor)
    client.get("/queue")
    with django_assert_max_num_queries(24):
        page = " ".join(client.get("/queue").content.decode().split())
    assert "It needs 8 GPUs on one node." in page
    rows = page.split(">quota-")[1:]
    assert ['data-label="Place" class="num"><span>1<' in rows[0], "<span>2<" in rows[1]] == [True, True]
    assert 'data-label="GPUs" class="num">3</td> <td data-label="State">' in page
    assert "Other appcodes: 1 run holds 5 GPUs, 1 waits for 1." in page
    assert "theirs" not in page
    assert "flight-demo" not in page.split('id="queues"')[1]
    assert "theirs-1" in as_person(people.root).get("/queue").content.decode()


@pytest.mark.django_db
def test_rest_says_the_same(busy: None, people: Any) -> None:
    (queue,) = api_of(people.victor).get("/queue")[1]["items"]
    assert [(run["cluster"], run["place"]) for run in queue["waiting"]] == [
        ("block", 1),
        ("quota-1", 1),
        ("quota-2", 2),
    ]
    assert [queue["waiting"][0][name] for name in ("placeIn", "gpusBefore", "message")] == [
        "cloud", 0, "It needs 8 GPUs on one node.",
    ]  # fmt: skip
    assert [(run["cluster"], run["gpus"]) for run in queue["holding"]] == [("holder", 3)]
    assert queue["others"] == {"waiting": 1, "waitingGpus": 1, "holding": 1, "heldGpus": 5}


@pytest.mark.django_db
def test_a_run_that_has_started_in_part_waits_with_all_that_it_lacks(make_cluster: Any, people: Any) -> None:
    """`partly` has two of nine workers placed; for `refused` the cloud refuses to create the others. `whole` is not listed as
    waiting: all its tasks have nodes."""
    full = (Node(f"gpu-{n}", "A100", 8, 0, 64_000, 1 << 18, gpus_others=8) for n in (1, 2))
    save_capacity("local", Capacity(tuple(full)))
    at = now()
    small = {"flavor": "small", "gpus": 0, "gpu_model": "", "cpu_milli": 1000, "memory_mb": 1024}
    held = {"ps": small, "worker": small | {"gpus": 1}}
    roles = {"ps": {"count": 1, "ready": 1}, "worker": {"count": 9, "ready": 2}}
    facts = {"admitted_at": at, "resources": held, "roles": roles, "gpus": 9, "gpu_rate": 2}

    def make(name: str, placed: int, **more: Any) -> None:
        cluster = make_cluster(name, phase="Starting", run={**facts, **more})
        run = Run.objects.get(cluster=cluster)
        run.tasks.all().delete()
        unplaced = 0 if "blocked_message" in more else 9 - placed
        states = [("ps", 0, "Running", "gpu-1", "")]
        states += [("worker", n, "Running", "gpu-1", "") for n in range(placed)]
        states += [("worker", placed + n, "Pending", "", "Unschedulable") for n in range(unplaced)]
        Task.objects.bulk_create(
            Task(
                run=run,
                role=role,
                index=n,
                attempt=0,
                uid=f"{name}-{role}-{n}",
                phase=phase,
                node=node,
                reason=reason,
                observed_at=at,
            )
            for role, n, phase, node, reason in states
        )

    make("partly", 2)
    make("refused", 2, blocked_reason="NamespaceQuota", blocked_message="Used up.", message="Used up.")
    make("whole", 9)
    (queue,) = api_of(people.victor).get("/queue")[1]["items"]
    assert {run["cluster"]: run["message"] for run in queue["waiting"]} == {
        "partly": "Lacks 7 GPUs for 7 of 10 tasks. It needs 7 GPUs; 0 of 16 are free. It starts as soon as enough are free.",
        "refused": "Lacks 7 GPUs for 7 of 10 tasks. Used up.",
    }
    assert {run["cluster"] for run in queue["holding"]} == {"partly", "refused", "whole"}
    Cluster.objects.update(appcode=people.flight)
    (queue,) = api_of(people.victor).get("/queue")[1]["items"]
    assert queue["others"] == {"waiting": 2, "waitingGpus": 14, "holding": 3, "heldGpus": 6}


amounts = st.integers(-2, 20)
seen_nodes = st.builds(
    Node, st.just("n"), st.just("H200"), st.integers(0, 16), amounts, st.just(0), st.just(0), takes_tasks=st.booleans(),
    gpus_others=amounts,
)  # fmt: skip


@given(seen_nodes, amounts, amounts, amounts, st.integers(0, 1))
def test_states_add_up_to_the_gpus_of_a_node_whatever_rows_and_the_cloud_say(
    found: Node, held: int, mine: int, promised: int, keeper: int
) -> None:
    one = tile(found, held=Sizes(held), mine=Sizes(mine), promised=Sizes(promised), keeper=keeper)
    [other] = seen_tiles(Capacity((found,)), {"n": Sizes(held)}, {"n": Sizes(mine)})
    for each in (one, other):
        assert sum(each.count(state) for state in STATES) == each.gpus == found.gpus
        assert min(each.count(state) for state in STATES) >= 0
        assert each.mine <= max(0, mine)
        assert found.takes_tasks or not (each.free or each.kept)


deciding = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.booleans()), min_size=1, max_size=4)
asking = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8), st.booleans()), max_size=5)


@given(deciding, asking)
def test_a_new_run_finds_the_free_gpus_of_the_tiles_and_no_other(nodes: Any, several: Any) -> None:
    seen = tuple(node(f"n{i}", 8, takes_tasks=ready, gpus_others=others) for i, (_, others, ready) in enumerate(nodes))
    snapshot = Snapshot(
        tuple(
            Decided(each.name, Shape(8), Shape(max(0, 8 - held - others)), ready, drained=Shape(8 - others))
            for each, (held, others, ready) in zip(seen, nodes, strict=True)
        ),
        tuple(Ask(str(i + 1), "", (Tasks("w", count, gpus),), admitted) for i, (count, gpus, admitted) in enumerate(several)),
    )  # fmt: skip
    held = {each.name: Sizes(held) for each, (held, _, _) in zip(seen, nodes, strict=True)}
    tiles = placed_tiles(Capacity(seen), held, {}, snapshot, outlook(snapshot))
    assert all(sum(each.count(state) for state in STATES) == 8 for each in tiles)
    free = max(each.free for each in tiles)
    for gpus in range(1, 10):
        asks = (*snapshot.asks, Ask("new", "", (Tasks("w", 1, gpus),)))
        found = decide(Snapshot(snapshot.nodes, asks))["new"]
        assert (found.code is Code.FITS) == (gpus <= free)


counts = st.lists(st.integers(0, 3), min_size=len(STATES), max_size=len(STATES))


def _tile(number: int, several: list[int], keeper: int) -> Tile:
    closed = several[STATES.index("closed")] > 0
    return Tile(
        f"n{number}",
        sum(several),
        **dict(zip(STATES, several, strict=True)),  # type: ignore[arg-type]
        takes_tasks=not closed,
        note="Closed." if closed else "",
        keeper=keeper,
    )


@given(st.lists(st.tuples(counts, st.integers(0, 2)), min_size=1, max_size=60), st.integers(1, 20))
def test_a_page_of_any_size_says_of_every_gpu_what_it_is(several: Any, times: int) -> None:
    kinds = [(found, keeper) for found, keeper in several] * times
    tiles = [_tile(number, found, keeper) for number, (found, keeper) in enumerate(kinds)]
    shown = machines(tiles, {1: ("ops-demo", "mine")})
    assert len(shown.boxes) <= MOST_BOXES
    assert sum(square.count for square, _ in shown.legend) == sum(each.gpus for each in tiles)
    for box in shown.boxes:
        gpus = re.search(r": (\d+) GPUs?", box.sentence)
        assert gpus
        assert sum(square.count for square in box.squares) == int(gpus[1])
        assert len(box.squares) <= 16
    drawn = [each for each in tiles if each.gpus]
    boxed = sum(int(re.sub(r" nodes|,", "", box.title)) if " nodes" in box.title else 1 for box in shown.boxes)
    more = re.search(r"And ([\d,]+) more", " ".join(shown.rest))
    assert boxed + (int(more[1].replace(",", "")) if more else 0) == len(drawn)
    assert any("ops-demo/mine" in box.sentence for box in shown.boxes) <= any(each.keeper == 1 for each in tiles)


# A real cloud, in the eyes of several people.


@pytest.fixture
def training(training: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    told = Told()
    monkeypatch.setattr(reconcile, "cloud_of", lambda run: told)
    return training


def submit(user: Any, size: int, name: str, appcode: str = "ops-demo") -> Run:
    assert api_of(user).post(f"/appcodes/{appcode}/clusters", gang(size, name, appcode))[0] == 201
    run = Run.objects.get(cluster__name=name)
    reconcile.reconcile(run.pk)
    return run


def holding(run: Run, *where: str) -> None:
    at = now()
    roles = [("master", 0), *(("worker", index) for index in range(len(where) - 1))]
    Task.objects.bulk_create(
        Task(
            run=run, role=role, index=index, uid=f"{run.pk}-{role}-{index}", phase="Running", node=each, observed_at=at
        )
        for (role, index), each in zip(roles, where, strict=True)
    )
    facts = {"phase": "Running", "gpu_rate": len(where), "wait_reason": "", "placed_at": at, "whole_at": at}
    Run.objects.filter(pk=run.pk).update(**facts, applied_at=at, started_at=at)


@pytest.fixture
def crowd(training: Any, people: Any) -> dict[str, Run]:
    """Six nodes of 8 GPUs. Ops has 5 on n0, flight 8 on n1 and 3 on n2, other software 4 on n3; n4 takes no tasks and n5 is free.
    `begins` of ops gets n5. Then flight waits for 14 GPUs, and ops for 12."""
    nodes = [node(f"n{number}") for number in range(6)]
    nodes[3], nodes[4] = node("n3", 4), node("n4", takes_tasks=False, note="It takes no new tasks: it is closed.")
    save_capacity("training", Capacity(tuple(nodes)))
    runs = {"ours": submit(people.bob, 5, "ours"), "theirs": submit(people.root, 11, "theirs", "flight-demo")}
    holding(runs["ours"], *["n0"] * 5)
    holding(runs["theirs"], *["n1"] * 8, *["n2"] * 3)
    for size, name, appcode in ((8, "begins", "ops-demo"), (14, "secret", "flight-demo"), (12, "large", "ops-demo")):
        runs[name] = submit(people.root, size, name, appcode)
    places.place("training")
    return runs


def seen_by(user: Any) -> tuple[str, dict[str, Any]]:
    """The page, and the cloud in REST."""
    client = Client()
    client.force_login(user)
    page = client.get("/queue")
    assert page.status_code == 200
    items = api_of(user).get("/queue")[1]["items"]
    [found] = [each for each in items if each["cloud"] == "training"]
    return html.unescape(page.content.decode()).split('id="queues"')[1], found


@pytest.mark.django_db
def test_nodes_say_who_has_them_and_for_whom_they_are_kept(crowd: dict[str, Run], people: Any) -> None:
    page, found = seen_by(people.bob)
    fields = ("mine", "others", "otherSoftware", "promised", "kept", "free", "closed")
    assert {each["name"]: {name: each[name] for name in fields if each[name]} for each in found["nodes"]} == {
        "n0": {"mine": 5, "kept": 3},
        "n1": {"others": 8},
        "n2": {"others": 3, "kept": 5},
        "n3": {"otherSoftware": 4, "kept": 4},
        "n4": {"closed": 8},
        "n5": {"promised": 8},
    }
    assert "0 of 48 GPUs free" in page
    assert "n4: 8 GPUs (H200), all on nodes that take no tasks. It takes no new tasks: it is closed." in page


@pytest.mark.django_db
def test_runs_for_which_nodes_are_kept_are_named_to_those_who_may_see_them_and_to_nobody_else(
    crowd: dict[str, Run], people: Any
) -> None:
    """Nodes are kept for `secret` of flight and for `large` of ops."""
    ops, flight = ("ours", "begins", "large", "ops-demo", "bob"), ("theirs", "secret", "flight-demo")
    for user, shown, hidden in ((people.bob, "ops-demo/large", flight), (people.mallory, "flight-demo/secret", ops)):
        page, found = seen_by(user)
        assert not set(re.findall(r"[\w-]+", f"{page} {found}")) & set(hidden)
        assert f"Kept for {shown}" in page
        assert "Kept for a run of others" in page
        assert {each["keptFor"] for each in found["nodes"]} == {None, f"{shown}/1"}


@pytest.mark.django_db
def test_a_place_in_the_queue_of_a_cloud_counts_the_runs_of_all_appcodes(crowd: dict[str, Run], people: Any) -> None:
    submit(people.root, 2, "last")
    # Neither waits for places: the first is put off for a while, the second waits for quota.
    Run.objects.filter(pk=submit(people.bob, 2, "later").pk).update(not_before=now() + dt.timedelta(hours=1))
    Appcode.objects.filter(pk=people.ops.pk).update(gpu_quota=1)
    submit(people.bob, 1, "quota")
    page, found = seen_by(people.bob)
    assert {
        each["cluster"]: (each["place"], each["placeIn"], each["gpusBefore"])
        for each in found["waiting"]
    } == {
        "begins": (None, None, 0), "large": (2, "cloud", 14), "last": (3, "cloud", 26), "later": (None, None, 0),
        "quota": (1, "quota", 0),
    }  # fmt: skip
    assert '<small class="place-of">26 GPUs before</small>' in page


@pytest.mark.django_db
def test_only_a_run_that_waits_is_offered_to_be_changed_and_only_to_who_may(crowd: dict[str, Run], people: Any) -> None:
    """`begins` has its places."""
    url = "/clusters/{}/change"
    for user, expected in (
        (people.bob, {url.format("ops-demo/large")}),
        (people.victor, set()),
        (people.mallory, {url.format("flight-demo/secret")}),
        (people.root, {url.format("ops-demo/large"), url.format("flight-demo/secret")}),
    ):
        page, _ = seen_by(user)
        assert set(re.findall(r'href="(/clusters/[^"]*/change)"', page)) == expected


@pytest.mark.django_db
def test_the_number_of_queries_grows_neither_with_clouds_nor_with_runs(crowd: dict[str, Run], people: Any) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            found = queues([people.ops.pk])
        assert all(each.tiles for each in found)
        return len(queries)

    before = count()
    for number in range(4):
        name = f"other-{number}"
        Cloud.objects.create(name=name, kind="kubernetes", title=name)
        save_capacity(name, Capacity((node("n0"),)))
        for user, appcode in ((people.bob, "ops-demo"), (people.root, "flight-demo")):
            run = submit(user, 8, f"{appcode}-{number}", appcode)
            Run.objects.filter(pk=run.pk).update(cloud=name)
        holding(submit(people.bob, 2, f"holds-{number}"), "n0", "n0")
        Run.objects.filter(cluster__name=f"holds-{number}").update(cloud=name)
    found = {each.cloud: each for each in queues([people.ops.pk])}
    assert [found[f"other-{number}"].tiles[0].mine for number in range(4)] == [2] * 4
    # The other appcode holds less.
    assert [found[f"other-{number}"].waiting[0].place for number in range(4)] == [2] * 4
    # One for the tasks of runs that wait, where one has some.
    assert count() in (before, before + 1)


@pytest.mark.django_db(transaction=True)
def test_the_nodes_fit_a_phone_and_are_read_out(crowd: dict[str, Run], live_server: Any) -> None:
    with chromium() as browser:
        context = browser.new_context()
        give_session(context, live_server.url, "bob")
        page = context.new_page()
        page.goto(f"{live_server.url}/queue")
        assert_fits(page, "queue")
        read = "n0: 8 GPUs (H200), 5 held by your runs, 3 kept for waiting runs. Kept for a run of others."
        expect(page.get_by_role("img", name=read, exact=True)).to_be_visible()
        squares = page.locator(".nodes .gpu")
        assert squares.count() == 8 * 7, "six nodes here, and this machine"
        drawn = squares.evaluate_all("all => new Set(all.map(e => e.offsetWidth + ' ' + e.offsetHeight)).size")
        assert drawn == 1
