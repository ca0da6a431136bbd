"""Administrators close and reserve nodes, by page and REST: what is refused, who is told, and what everybody sees of it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.utils.timezone import now

from billing.models import Mail
from clusters.clouds.models import Cloud, Window
from portal.models import Event
from tests.api.client import api_of
from tests.clusters.gangs import Told, nodes
from tests.clusters.runs.test_places import cloud, everywhere, pods, see, started, tell
from tests.clusters.runs.test_windows import later

__all__ = ["cloud"]
pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


def body(*names: str, starts: dt.timedelta = HOUR, ends: dt.timedelta = 2 * HOUR, **more: Any) -> dict[str, Any]:
    at = now()
    times = {"startsAt": (at + starts).isoformat(), "endsAt": (at + ends).isoformat()}
    return {"nodes": list(names), "reason": "New disks", **times, **more}


def queue_of(person: Any) -> dict[str, Any]:
    [found] = [each for each in api_of(person).get("/queue")[1]["items"] if each["cloud"] == "training"]
    return dict(found)


def running(people: Any, name: str, **spec: Any) -> Any:
    run = started(people, name, 8, **spec)
    tell(run, *pods(run, *everywhere(run)))
    return run


def test_whose_runs_will_be_given_back_is_told_when_it_is_made_and_again_when_it_is_cancelled(
    cloud: Told, people: Any
) -> None:
    see(*nodes(3))
    run, short = running(people, "gang"), running(people, "short", timeLimit=1800)
    elsewhere = running(people, "elsewhere")
    api = api_of(people.root)
    here = [next(iter(each.layout["master"])) for each in (run, short)]
    status, made = api.post("/clouds/training/windows", body(*here))
    assert (status, made["kind"], made["begun"]) == (201, "maintenance", None)
    [event] = Event.objects.filter(verb="run.window_announced")
    assert event.object == f"cluster {run.cluster}"
    assert "by root: New disks. It is taken off its nodes then, and waits again in its old place." in event.message
    assert Event.objects.filter(verb="window.created", appcode="").count() == 1
    # To other nodes: some are told that they keep theirs.
    there = next(iter(elsewhere.layout["master"]))
    assert api.put(f"/clouds/training/windows/{made['id']}", body(there))[0] == 200
    verbs = ["run.window_announced", "run.window_withdrawn"]
    told = list(Event.objects.filter(verb__in=verbs).order_by("pk").values_list("verb", "object"))
    assert told[1:] == [(verbs[0], f"cluster {elsewhere.cluster}"), (verbs[1], f"cluster {run.cluster}")]
    assert api.delete(f"/clouds/training/windows/{made['id']}")[0] == 204
    assert api.delete(f"/clouds/training/windows/{made['id']}")[0] == 404
    assert Event.objects.filter(verb=verbs[1]).count() == 2
    titles = list(Mail.objects.order_by("pk").values_list("subject", flat=True))
    assert [each.partition(": ")[2].partition(" at ")[0] for each in titles] == [
        "loses its nodes", "loses its nodes", "keeps its nodes", "keeps its nodes",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "field", "words"),
    [
        ({"nodes": ["n0", "n7"]}, "nodes", "has no node n7"),
        ({"nodes": []}, "nodes", ""),
        ({"appcode": "ops-demo"}, "nodes", "n0: closed for maintenance already from"),
        ({"appcode": "nobody"}, "appcode", "There is no appcode"),
        ({"startsAt": "2020-01-01T00:00:00Z"}, "startsAt", "past"),
        ({"startsAt": "2099-01-01T00:00:00Z"}, "endsAt", "end after it has begun"),
        ({"endsAt": "2099-01-01T00:00:00Z"}, "endsAt", "a year"),
        ({"reason": ""}, "reason", ""),
        ({"repeat": "hourly"}, "repeat", ""),
        (
            {"repeat": "daily", "endsAt": f"{now() + 30 * HOUR:%Y-%m-%dT%H:%M:%SZ}"},
            "repeat",
            "longer than until the next",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_its_field(
    cloud: Told, people: Any, facts: dict[str, Any], field: str, words: str
) -> None:
    see(*nodes(2))
    api = api_of(people.root)
    assert api.post("/clouds/training/windows", body("n0"))[0] == 201
    status, answer = api.post("/clouds/training/windows", {**body("n0"), **facts})
    [error] = answer["errors"]
    assert (status, error["path"]) == (422, field)
    assert words in error["message"]
    # The same for the same, or at another time, is no conflict.
    assert api.post("/clouds/training/windows", body("n0"))[0] == 201
    assert (
        api.post("/clouds/training/windows", body("n0", starts=3 * HOUR, ends=4 * HOUR, appcode="ops-demo"))[0] == 201
    )


def test_where_a_cloud_orders_runs_itself_no_nodes_can_be_closed(cloud: Told, people: Any) -> None:
    see(*nodes(2))
    Cloud.objects.filter(name="training").update(settings={"nodes_on_demand": True})
    status, answer = api_of(people.root).post("/clouds/training/windows", body("n0"))
    assert (status, "does not choose the nodes" in answer["detail"]) == (409, True)


def test_of_one_that_has_begun_only_the_end_and_the_reason_can_be_changed(cloud: Told, people: Any) -> None:
    from clusters import tasks

    see(*nodes(2))
    api = api_of(people.root)
    made = api.post("/clouds/training/windows", body("n0"))[1]
    later(Window.objects.get(), HOUR)
    tasks.place_runs("training")
    address = f"/clouds/training/windows/{made['id']}"
    assert api.put(address, body("n1", startsAt=None))[0] == 409
    status, changed = api.put(address, body("n0", startsAt=None, ends=5 * HOUR, reason="More disks"))
    assert (status, changed["reason"], changed["begun"] is not None) == (200, "More disks", True)
    assert [each["endsAt"] for each in api.get("/clouds/training/windows")[1]["items"]] == [changed["endsAt"]]


def test_the_page_shows_what_will_happen_before_it_saves(cloud: Told, people: Any, as_person: Any) -> None:
    see(*nodes(2))
    run = running(people, "gang")
    web = as_person(people.root)
    node, at = next(iter(run.layout["master"])), now()
    typed = {
        "nodes": [node], "starts_at": "", "ends_at": f"{at + HOUR:%Y-%m-%dT%H:%M}", "ends_zone": "UTC", "reason": "New disks",
    }  # fmt: skip
    page = web.post("/admin/clouds/training/windows", typed).content.decode()
    assert "1 run with 8 GPUs will be given back" in page
    assert f"ops-demo/gang, run {run.number}" in page
    assert not Window.objects.exists()
    assert web.post("/admin/clouds/training/windows", {**typed, "repeat": "weekly", "save": "1"}).status_code == 302
    row = Window.objects.get()
    assert row.repeat == "weekly"
    assert (row.nodes, abs(row.starts_at - at) < dt.timedelta(minutes=1)) == ([node], True)
    assert (
        f"/admin/clouds/training/windows/{row.pk}/cancel" in web.get("/admin/clouds/training/windows").content.decode()
    )
    wrong = web.post(f"/admin/clouds/training/windows/{row.pk}", {**typed, "ends_at": "soon"}).content.decode()
    assert 'id="affected"' not in wrong


def test_everybody_sees_on_the_queue_which_nodes_are_closed_and_only_its_people_for_whom(
    cloud: Told, people: Any, as_person: Any
) -> None:
    see(*nodes(2))
    at = now()
    for name, appcode in (("n0", None), ("n1", people.flight)):
        Window.objects.create(
            cloud=Cloud.objects.get(name="training"),
            nodes=[name],
            starts_at=at,
            ends_at=at + HOUR,
            appcode=appcode,
            reason="New disks",
        )
    found = queue_of(people.bob)
    assert [(each["kind"], each["nodes"], each["appcode"]) for each in found["windows"]] == [
        ("maintenance", ["n0"], None), ("reservation", ["n1"], None),
    ]  # fmt: skip
    assert [(each["free"], each["closed"]) for each in found["nodes"]] == [(0, 8), (0, 8)]
    found = queue_of(people.root)
    assert [each["appcode"] for each in found["windows"]] == [None, "flight-demo"]
    assert [(each["free"], each["closed"]) for each in found["nodes"]] == [(0, 8), (8, 0)]
    page = " ".join(as_person(people.bob).get("/queue").content.decode().split())
    assert "Maintenance of n0 until" in page
    assert "n1 reserved for another appcode until" in page
    assert "flight-demo" not in page
