"""The first page: what each user sees and may do, what clusters cost, and that only changes are sent."""

from __future__ import annotations

import html
import json
import re

import pytest

from clusters.cluster.pages import list as listing
from clusters.cluster.pages import verbs
from clusters.runs.models import Cluster, Run

ROWS = "/clusters/rows"


def names(answer):
    return re.findall(r'href="/clusters/[^/]+/([^/"]+)" title="[^"]*"><b>', answer.content.decode())


@pytest.fixture
def some(make_cluster, people):
    make_cluster(
        "waits",
        phase="Queued",
        workers=2,
        run={"message": "It waits for quota: it needs 3 GPUs.", "reason": "QuotaExceeded"},
    )
    make_cluster("trains", phase="Running", ps=1, workers=2, by=people.bob, run={"gpu_rate": 3})
    make_cluster("done", phase="Succeeded", workers=100)
    make_cluster("broke", phase="Failed", run={"message": "worker-1 failed with exit code 3."})
    make_cluster("far", phase="Running", appcode="flight-demo", by=people.mallory, run={"gpu_rate": 1})


def test_everybody_sees_their_own(some, people, as_person):
    assert names(as_person(people.alice).get("/clusters")) == ["waits", "trains", "broke", "done"]
    assert names(as_person(people.victor).get("/clusters")) == ["waits", "trains", "broke", "done"]
    assert names(as_person(people.mallory).get("/clusters")) == ["far"]
    assert names(as_person(people.root).get("/clusters")) == ["waits", "far", "trains", "broke", "done"]


def test_a_row_tells_flavors_readiness_data_and_why_it_waits(some, people, as_person):
    page = as_person(people.alice).get("/clusters").content.decode()
    for text in (
        "100 of 100",
        "1 of 1",
        "2 of 2",
        "0 of 2",
        "Middle + 1 GPU",
        "It waits for quota: it needs 3 GPUs.",
        "failed with exit code 3",
    ):
        assert text in page


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("phase=Running", ["trains"]),
        ("phase=running,failed", ["trains", "broke"]),
        ("owner=bob", ["trains"]),
        ("search=TRAI", ["trains"]),
        ("search=ops bob", ["trains"]),
        ("search=%25", []),
        ("appcode=flight-demo", []),
        ("appcode=no+code", []),
        ("appcode=ops-demo&phase=Failed&search=bro", ["broke"]),
        ("phase=Lost", []),
        ("cursor=0", ["waits", "trains", "broke", "done"]),
        ("cursor=99999999999999999999999", ["waits", "trains", "broke", "done"]),
        ("cursor=x", ["waits", "trains", "broke", "done"]),
        ("search=a%00b", []),
    ],
)
def test_search_and_filters(query, found, some, people, as_person):
    assert names(as_person(people.alice).get(f"/clusters?{query}")) == found
    assert names(as_person(people.alice).get(f"{ROWS}?{query}")) == found


def test_pages_follow_each_other_without_gaps(make_cluster, people, as_person, monkeypatch):

    monkeypatch.setattr(listing, "ROWS", 2)
    for n in range(5):
        make_cluster(f"c{n}")
    client, seen, address = as_person(people.alice), [], "/clusters"
    while address:
        page = client.get(address)
        seen += names(page)
        more = re.search(r'rel="next" href="([^"]+)"', page.content.decode())
        address = more and "/clusters" + more[1]
    assert seen == ["c4", "c3", "c2", "c1", "c0"]


def test_actions_follow_the_phase_and_the_role(some, people, as_person):
    def actions(user, name):
        page = as_person(user).get("/clusters").content.decode()
        row = page.split(f'href="/clusters/ops-demo/{name}"')[1].split("</tr>")[0]
        verbs = re.findall(r'(?:formaction|href)="/clusters/ops-demo/[^/]+/(\w+)"', row)
        return verbs + ["clone"] * ("clone=" in row)

    assert actions(people.alice, "waits") == ["cancel", "template", "export", "delete", "clone"]
    assert actions(people.alice, "trains") == ["disable", "template", "export", "delete", "clone"]
    assert actions(people.bob, "done") == ["deploy", "change", "template", "export", "delete", "clone"]
    assert actions(people.victor, "trains") == ["template", "export"]


def test_nothing_changed_answers_304_and_a_change_does_not(some, people, as_person):
    from clusters.runs.models import Run

    client = as_person(people.alice)
    first = client.get(ROWS)
    etag = first["ETag"]
    again = client.get(ROWS, headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    Run.objects.filter(cluster__name="waits").update(phase="Starting", message="The program is starting.")
    changed = client.get(ROWS, headers={"If-None-Match": etag})
    assert changed.status_code == 200
    assert changed["ETag"] != etag
    assert "The program is starting." in changed.content.decode()


def test_one_persons_etag_says_nothing_to_another(some, people, as_person):
    etag = as_person(people.alice).get(ROWS)["ETag"]
    assert as_person(people.victor).get(ROWS, headers={"If-None-Match": etag}).status_code == 200


@pytest.mark.parametrize("address", ["/clusters", ROWS, "/clusters?search=c1&phase=Running"])
@pytest.mark.parametrize("who", ["alice", "root"])
def test_a_page_takes_five_queries_however_many_there_are(
    who, address, make_cluster, people, as_person, django_assert_max_num_queries
):
    for n in range(30):
        make_cluster(f"c{n}", phase="Running" if n % 2 else "Queued", workers=3)
    client = as_person(getattr(people, who))
    client.get(address)
    with django_assert_max_num_queries(5):
        client.get(address)


def test_what_was_spent_this_month_is_a_part_of_its_own(some, people, as_person):
    client = as_person(people.alice)
    for query, of in (("", "all appcodes"), ("?appcode=ops-demo", "ops-demo")):
        answer = client.get(f"/clusters/spent{query}")
        assert answer.status_code == 200
        page = answer.content.decode()
        assert "Spent in" in page
        assert f", {of}</span>" in page


def test_without_clusters_the_page_says_what_one_is(page_catalogue, people, as_person):
    page = as_person(people.alice).get("/clusters").content.decode()
    assert "No clusters yet" in page
    assert "/clusters/new?start=hello-gpu" in page
    assert "Nothing found" in as_person(people.alice).get("/clusters?search=x").content.decode()


def test_the_live_cost_grows_by_the_rate(make_cluster, people, as_person):
    import datetime as dt

    an_hour_ago = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    make_cluster(
        "dear",
        phase="Running",
        run={"usage_as_of": an_hour_ago, "cost": 5, "cost_rate": "0.01", "gpu_seconds": 0, "gpu_rate": 2},
    )
    page = as_person(people.alice).get("/clusters").content.decode()
    since = (dt.datetime.now(dt.UTC) - an_hour_ago).total_seconds()
    cost = re.search(r'<span class="money">([\d.]+)', page)
    assert cost
    assert 41 <= float(cost[1]) <= 5 + 0.01 * since + 0.005
    hours = re.search(r'data-label="GPU-hours" class="num">([\d.]+)', page)
    assert hours
    assert 2 <= float(hours[1]) <= 2 * since / 3600 + 0.05


@pytest.mark.parametrize(
    ("application", "notebook", "output", "home", "said", "unsaid"),
    [
        ("", False, True, False, "What is in /elearn/output is stored then", "home"),
        ("", False, False, False, "nothing that they wrote is kept", "is stored then"),
        ("Jupyter", True, False, True, "files in /elearn/home stay", "/elearn/output"),
        ("Jupyter", True, False, False, "all of its files are lost", "stay"),
        ("Web program", False, False, False, "its address answers nobody", "/elearn"),
    ],
)
def test_stop_says_what_stays_and_what_goes(application, notebook, output, home, said, unsaid):
    act = verbs.stop(application, notebook=notebook, output=output, home=home)
    assert (act.verb, act.label, act.yes) == ("disable", "Stop", "Stop")
    assert said in act.lost
    assert unsaid not in act.lost


def test_names_are_shown_as_text(make_cluster, people, as_person):
    make_cluster("demo", phase="Failed", run={"message": "<script>alert(1)</script>"})
    page = as_person(people.alice).get("/clusters").content.decode()
    assert "<script>alert" not in page


@pytest.mark.parametrize("sort", ["", "name", "-cost", "cost", "started", "-hours"])
def test_any_order_pages_without_gaps_and_living_ones_stand_first(sort, make_cluster, people, as_person, monkeypatch):
    monkeypatch.setattr(listing, "ROWS", 3)
    Cluster.objects.filter(pk=make_cluster("never").pk).update(current_run=None)
    for n, phase in enumerate(("Succeeded", "Running", "Failed", "Queued", "Running", "Stopped")):
        make_cluster(f"c{n}", phase=phase, run={"cost": n % 3, "gpu_seconds": n})
    client, seen, address = as_person(people.alice), [], f"/clusters?sort={sort}"
    while address:
        page = client.get(address)
        seen += names(page)
        more = re.search(r'rel="next" href="([^"]+)"', page.content.decode())
        address = more and "/clusters" + html.unescape(more[1])
    assert sorted(seen) == ["c0", "c1", "c2", "c3", "c4", "c5", "never"]
    if not sort:
        assert set(seen[:3]) == {"c1", "c3", "c4"}
    if sort == "name":
        assert seen == sorted(seen)
    if sort == "-cost":
        assert set(seen[:2]) == {"c2", "c5"}


def test_several_are_stopped_in_place_each_by_itself(some, people, as_person):
    client = as_person(people.alice)
    sent = {
        "cluster": ["ops-demo/waits", "ops-demo/trains", "ops-demo/done", "ops-demo/gone"],
        "next": "/?phase=Running",
    }
    asked = client.post("/clusters/disable-several", sent).content.decode()
    assert "Stop: 4 clusters?" in asked
    answer = client.post("/clusters/disable-several", sent | {"confirmed": "yes"}, headers={"HX-Request": "true"})
    said = [text for _, text in json.loads(answer["HX-Trigger"])["said"]]
    assert answer.status_code == 204
    assert said[0] == "2 clusters are stopping."
    assert "done does not run." in said
    assert "ops-demo/gone is not there any more." in said
    ended = Run.objects.filter(desired=Run.Desired.ENDED).values_list("cluster__name", flat=True)
    assert sorted(ended) == ["trains", "waits"]
    plain = client.post("/clusters/disable-several", sent | {"confirmed": "yes"})
    assert plain["Location"] == "/?phase=Running"


def test_of_several_a_viewer_and_an_outsider_stop_none(some, people, as_person):
    sent = {"cluster": ["ops-demo/trains"], "confirmed": "yes"}
    assert as_person(people.victor).post("/clusters/disable-several", sent).status_code == 403
    as_person(people.mallory).post("/clusters/disable-several", sent)
    assert not Run.objects.filter(desired=Run.Desired.ENDED).exists()


def test_what_one_may_no_longer_do_with_one_of_several_keeps_none_of_the_others_from_it(
    some, people, as_person, make_cluster
):
    from portal.models import Membership

    make_cluster("theirs", appcode="flight-demo", by=people.mallory, phase="Running")
    Membership.objects.update_or_create(user=people.alice, appcode=people.flight, defaults={"role": "viewer"})
    sent = {"cluster": ["flight-demo/theirs", "ops-demo/trains"], "confirmed": "yes"}
    answer = as_person(people.alice).post("/clusters/disable-several", sent, headers={"HX-Request": "true"})
    assert answer.status_code == 204
    assert [level for level, _ in json.loads(answer["HX-Trigger"])["said"]] == ["success", "error"]
    assert [run.cluster.name for run in Run.objects.filter(desired=Run.Desired.ENDED)] == ["trains"]


def test_a_poll_of_a_full_page_is_small(make_cluster, people, as_person):
    for n in range(listing.ROWS):
        make_cluster(f"a-name-of-some-length-{n}", phase="Running", ps=1, workers=4, run={"gpu_rate": 5, "cost": n})
    answer = as_person(people.alice).get(ROWS, headers={"Accept-Encoding": "gzip"})
    assert answer["Content-Encoding"] == "gzip"
    assert len(answer.content) <= 10_000
    again = as_person(people.alice).get(ROWS, headers={"Accept-Encoding": "gzip", "If-None-Match": answer["ETag"]})
    assert again.status_code == 304
