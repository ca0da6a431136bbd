"""Keyset pages: nothing twice, nothing missing, and the last page costs no more queries than the first."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api.client import Api, manifest


@pytest.fixture
def many(people: Any, catalogue: None) -> list[str]:
    """Creates 25 clusters, every fifth in another appcode; newest first."""
    from clusters.runs.models import Cluster, Run

    names = []
    for n in range(25):
        appcode = people.flight if n % 5 == 0 else people.ops
        cluster = Cluster.objects.create(
            appcode=appcode, name=f"c{n:02}", spec=manifest()["spec"], created_by=people.bob
        )
        phase = ["Queued", "Running", "Succeeded"][n % 3]
        run = Run.objects.create(cluster=cluster, number=1, spec=cluster.spec, resources={}, gpus=0, phase=phase)
        cluster.current_run, cluster.run_count = run, 1
        cluster.save()
        names.append(cluster.name)
    return names[::-1]


def walk(api: Api, path: str) -> tuple[list[str], int]:
    """Returns the names of all items over all pages, and the number of pages."""
    names, pages = [], 0
    while path:
        status, answer = api.get(path)
        assert status == 200, answer
        names += [item["metadata"]["name"] for item in answer["items"]]
        following = answer["next"]
        path = f"{urlsplit(following).path.removeprefix('/api/v1')}?{urlsplit(following).query}" if following else ""
        pages += 1
    return names, pages


def test_pages_add_up(as_root: Api, as_alice: Api, many: list[str]) -> None:
    assert walk(as_root, "/clusters?limit=10") == (many, 3)
    assert walk(as_root, "/clusters?limit=5") == (many, 5)
    assert walk(as_root, "/clusters") == (many, 1)
    ours = [name for name in many if int(name[1:]) % 5]
    assert walk(as_alice, "/clusters?limit=7") == (ours, 3)
    assert walk(as_root, "/appcodes/ops-demo/clusters?limit=7") == (ours, 3)


def test_rows_that_come_and_go_move_nothing(as_root: Api, many: list[str]) -> None:
    from clusters.runs.models import Cluster

    _, first = as_root.get("/clusters?limit=10")
    Cluster.objects.filter(name__in=many[8:10]).delete()
    assert as_root.post("/appcodes/ops-demo/clusters", manifest("late"))[0] == 201
    parts = urlsplit(first["next"])
    names, _ = walk(as_root, f"{parts.path.removeprefix('/api/v1')}?{parts.query}")
    assert names == many[10:]


def test_filters_stay_while_paging(as_root: Api, many: list[str]) -> None:
    running = [name for name in many if int(name[1:]) % 3 == 1]
    assert walk(as_root, "/clusters?limit=3&phase=Running")[0] == running
    assert walk(as_root, "/clusters?limit=3&phase=queued,RUNNING")[0] == [n for n in many if int(n[1:]) % 3 != 2]
    assert walk(as_root, "/clusters?limit=3&search=C1")[0] == [name for name in many if "c1" in name]
    assert walk(as_root, "/clusters?limit=3&search=flight+c1")[0] == ["c15", "c10"]
    assert walk(as_root, "/clusters?search=no-such-thing")[0] == []


def test_a_page_costs_four_queries_wherever_it_is(
    as_alice: Api, many: list[str], django_assert_max_num_queries: Any
) -> None:
    as_alice.get("/me")  # stores the token's last use, once a minute
    # The results of hooks are one query.
    with django_assert_max_num_queries(4):
        _, first = as_alice.get("/clusters?limit=5")
    parts = urlsplit(first["next"])
    with django_assert_max_num_queries(4):
        as_alice.get(f"{parts.path.removeprefix('/api/v1')}?{parts.query}&search=c&phase=Running,Queued,Succeeded")
    # Members and budgets are one query each.
    with django_assert_max_num_queries(5):
        as_alice.get("/appcodes?limit=5")


def test_runs_and_appcodes_have_pages_too(as_alice: Api, as_root: Api) -> None:
    from clusters.runs.models import Run

    assert as_alice.post("/appcodes/ops-demo/clusters", manifest())[0] == 201
    path = "/appcodes/ops-demo/clusters/show1"
    for _ in range(2):
        Run.objects.update(phase="Succeeded")
        assert as_alice.post(f"{path}/deploy")[0] == 202
    _, first = as_alice.get(f"{path}/runs?limit=2")
    assert [item["metadata"]["number"] for item in first["items"]] == [3, 2]
    _, second = as_alice.get(f"{path}/runs?{urlsplit(first['next']).query}")
    assert [item["metadata"]["number"] for item in second["items"]] == [1]
    assert second["next"] is None
    assert walk(as_root, "/appcodes?limit=1") == (["flight-demo", "ops-demo"], 2)


def test_a_cursor_opens_nothing(as_mallory: Api, as_root: Api, many: list[str]) -> None:
    _, first = as_root.get("/clusters?limit=3")
    _, answer = as_mallory.get(f"/clusters?{urlsplit(first['next']).query}")
    assert {item["metadata"]["appcode"] for item in answer["items"]} == {"flight-demo"}


def test_texts_of_code_stay_out_of_lists(as_alice: Api, django_assert_max_num_queries: Any) -> None:
    code = {"files": {"train.py": "x" * 100_000}}
    assert as_alice.post("/appcodes/ops-demo/clusters", manifest("coded", code=code))[0] == 201
    for path, one in (("clusters", "clusters/coded"), ("clusters/coded/runs", "clusters/coded/runs/1")):
        with django_assert_max_num_queries(8):
            _, listed = as_alice.get(f"/appcodes/ops-demo/{path}")
        _, whole = as_alice.get(f"/appcodes/ops-demo/{one}")
        assert whole["spec"]["code"] == code
        assert listed["items"][0]["spec"] == whole["spec"] | {"code": {"files": None}}
