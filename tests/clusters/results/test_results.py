"""The table of results: rows of the database, pages and REST."""

from __future__ import annotations

import csv
import io
import math
import re
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from clusters.comparison.runs import numbers_of
from clusters.results import numbers
from clusters.results.actions import keep_view, write_notes
from clusters.results.models import Metric, RunMetric
from clusters.results.query import find, groups
from clusters.results.table import table_of
from clusters.results.view import View
from clusters.runs.models import Cluster, Run
from clusters.scalars.printed import scalars_of_log
from portal.errors import Invalid
from portal.models import Event


def run_of(people: Any, name: str, log: str = "", number: int = 1, **facts: Any) -> Run:
    """A run that is over, whose program printed `log`."""
    cluster, _ = Cluster.objects.get_or_create(
        appcode=people.ops,
        name=name,
        defaults={"spec": {"framework": "tensorflow", "mode": "batch", "roles": {}, "output": None}},
    )
    # One start for all, or a column tells them apart.
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    said = {
        "spec": cluster.spec, "resources": {}, "gpus": 1, "phase": "Succeeded", "gone": True, "created_by": people.bob,
        "started_at": now, "finished_at": now, "parameters": {},
    }  # fmt: skip
    run = Run.objects.create(cluster=cluster, number=number, **{**said, **facts})
    if log:
        numbers.keep(run, scalars_of_log(log.encode()), now, is_last=True)
    return run


def steps(*values: float, name: str = "loss") -> str:
    return "".join(f"step {n}: {name} = {value}\n" for n, value in enumerate(values, 1))


@pytest.fixture
def three(people: Any) -> Any:
    run_of(people, "a", steps(0.9, 0.1, 0.5), parameters={"LR": "0.1", "MODEL": "small"}, cost=3)
    run_of(people, "b", steps(0.8, 0.3), parameters={"LR": "0.02", "MODEL": "large"}, cost=1, tags=["baseline"])
    run_of(people, "c", steps(0.7, math.nan), parameters={"LR": "0.1", "MODEL": "small"}, cost=2, phase="Failed")
    run_of(people, "d", parameters={}, cost=0, created_by=people.alice, note="nothing came of it")
    return people


def names(people: Any, **said: Any) -> list[str]:
    found = find(people.ops, View.read({key: [value] for key, value in said.items()}), timezone.now())
    return [row.run.cluster.name for row in found.rows]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, "dcba"),
        ({"sort": "last:loss"}, "badc"),
        ({"sort": "-last:loss"}, "abdc"),
        ({"sort": "best:loss"}, "abcd"),
        ({"sort": "-max:loss"}, "abcd"),
        ({"sort": "param:LR"}, "bcad"),
        ({"sort": "param:MODEL"}, "bcad"),
        ({"sort": "-cost"}, "acbd"),
        ({"sort": "run"}, "abcd"),
        ({"where": "loss < 0.4"}, "b"),
        ({"where": "loss best < 0.4"}, "ba"),
        ({"where": "loss < 0.4 or state = failed"}, "cb"),
        ({"where": "LR = 0.02 or LR = 0.1 and cost > 2"}, "ba"),
        ({"where": "LR in (0.02, 0.1), cost < 3"}, "cb"),
        ({"where": "LR != 0.02 | 5"}, "dca"),
        ({"where": "params.LR = 0.1 and metrics.loss > 0.4"}, "a"),
        ({"where": "loss = NaN"}, "c"),
        ({"where": "loss != nan"}, "dba"),
        ({"where": "name = a* or name contains D"}, "da"),
        ({"where": "name = a.*"}, ""),
        ({"where": "user = bob, status != Failed"}, "ba"),
        ({"where": "took < 1 min, started >= today"}, "dcba"),
        ({"where": "started = yesterday"}, ""),
        ({"where": "started != yesterday, started < 2999-01-01"}, "dcba"),
        ({"where": "started <= 1 day ago"}, ""),
        ({"where": "loss > 0.1"}, "ba"),
        ({"where": "best:loss < 0.4"}, "ba"),
        ({"where": "LR = 1e-1"}, "ca"),
        ({"where": "LR != 0.1"}, "db"),
        ({"where": "MODEL ~ LARG"}, "b"),
        ({"where": "MODEL = small, cost > 2"}, "a"),
        ({"where": "loss < 1 and LR < 0.05"}, "b"),
        ({"where": "took < 1, duration = 0, Took >= 0"}, "dcba"),
        ({"where": "took > 10"}, ""),
        ({"where": "state = failed"}, "c"),
        ({"where": "state != Failed, who = bob"}, "ba"),
        ({"where": "by ~ ALI"}, "d"),
        ({"where": "name = b"}, "b"),
        ({"where": "cluster = b/1"}, "b"),
        ({"where": "run = b/2"}, ""),
        ({"where": "name != b"}, "dca"),
        ({"where": "tag = baseline"}, "b"),
        ({"where": "tags ~ SELIN"}, "b"),
        ({"where": "tag != baseline"}, "dca"),
        ({"where": "note ~ came of"}, "d"),
        ({"state": "failed"}, "c"),
        ({"who": "alice"}, "d"),
        ({"tag": "baseline"}, "b"),
        ({"search": "nothing alice"}, "d"),
        ({"state": "failed", "pin": "b/1,d/1"}, "dbc"),
        ({"cluster": "b"}, "b"),
        ({"of": "sweeps/x"}, ""),
    ],
)
def test_rows(three: Any, said: dict[str, str], wanted: str) -> None:
    assert "".join(names(three, **said)) == wanted


def test_conditions_that_mean_nothing_are_named_and_hide_nothing(three: Any) -> None:
    found = find(three.ops, View(where="loss < x, nonsense"), timezone.now())
    assert (found.total, len(found.notes)) == (4, 2)
    # In the words that were typed.
    notes = find(three.ops, View(where="loss <> 0.3, loss=<1, cost >x, state<3"), timezone.now()).notes
    assert [note.split("”")[0] for note in notes] == ["“loss <> 0.3", "“loss=<1", "“cost >x", "“state<3"]


def test_names_that_no_run_has_are_named_where_nothing_is_found(three: Any) -> None:
    now = timezone.now()
    notes = find(three.ops, View(where="lossy < 0.5, LR = 7, loss > 0, cost > 99, best:f1 > 0"), now).notes
    assert notes == [f"No run has a metric or parameter “{name}”." for name in ("lossy", "f1")]
    assert find(three.ops, View(where="loss > 5"), now).notes == []


def test_groups(three: Any) -> None:
    found, total, shown, _ = groups(three.ops, View(group="param:LR"), timezone.now())
    assert [(each.value, each.runs, each.cost, each.numbers) for each in found] == [
        ("0.1", 2, 5, {"loss": (0.5, 0.1)}),
        ("0.02", 1, 1, {"loss": (0.3, 0.3)}),
        (None, 1, 0, {}),
    ]
    assert (total, shown) == (4, ["loss"])


def test_pages_of_rows_end_with_the_last_one(people: Any) -> None:
    for n in range(5):
        run_of(people, f"r{n}")
    page = find(people.ops, View(sort="run", page=99), timezone.now(), limit=2)
    assert ([row.name for row in page.rows], page.total) == (["r4/1"], 5)


def test_the_number_of_queries_does_not_depend_on_rows_and_metrics(people: Any) -> None:
    client = Client()
    client.force_login(people.victor)

    def asked() -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert client.get("/results/ops-demo/table", {"sort": "last:m0", "where": "m0 < 2"}).status_code == 200
        return len(queries)

    run_of(people, "one", steps(1, name="m0"))
    few = asked()
    for n in range(12):
        run_of(people, f"more{n}", "".join(steps(1, name=f"m{m}") for m in range(9)), parameters={"LR": str(n)})
    assert asked() == few


@pytest.mark.parametrize(
    ("asked", "most"), [("", 3), ("sort=-last:m0", 4), ("where=m0 < 2&c=last:m0", 3), ("where=m0 > 9", 6)]
)
def test_a_table_takes_few_queries(people: Any, asked: str, most: int) -> None:
    for n in range(3):
        run_of(people, f"r{n}", steps(1, name="m0"))
    with CaptureQueriesContext(connection) as queries:
        table_of(people.ops, View.of_query(asked))
    assert len(queries) <= most, [each["sql"] for each in queries]


def test_a_pinned_run_is_not_counted_as_a_match_in_silence(three: Any, as_person: Any) -> None:
    client = as_person(three.victor)
    assert "2 runs, 1 pinned<" in client.get("/results/ops-demo/table?tag=baseline&pin=a/1").content.decode()
    assert "1 run<" in client.get("/results/ops-demo/table?tag=baseline").content.decode()


def test_columns_stay_while_filters_change(three: Any, as_person: Any) -> None:
    def columns(query: str) -> list[str]:
        page = as_person(three.victor).get(f"/results/ops-demo/table?{query}")
        shown = [column.key for column in page.context["table"].columns.shown]
        return [key for key in shown if key != "started"]  # They may have started within one second.

    whole = columns("")
    assert whole == ["last:loss", "best:loss", "param:LR", "param:MODEL", "tags", "note", "who", "cost"]
    assert columns("state=Failed") == columns("where=loss < 0&sort=-cost") == whole
    # It has neither metrics nor parameters.
    assert columns("search=d") == whole[4:]
    assert columns("state=Failed&c=note") == ["note"]
    text = b"".join(as_person(three.victor).get("/results/ops-demo/csv?state=Failed")).decode()
    assert text.splitlines()[0].startswith(
        "run,state,last:loss,best:loss,best:loss step,param:LR,param:MODEL,tags,note,who,"
    )


def test_the_state_is_said_once_a_row(three: Any, as_person: Any) -> None:
    client = as_person(three.victor)
    for query, words in (("", 4), ("c=state", 4)):
        assert client.get(f"/results/ops-demo/table?{query}").content.count(b'class="state state-') == words


def test_the_header_names_the_appcode_of_the_page(three: Any, as_person: Any) -> None:
    client = as_person(three.victor)
    for address in ("/results/ops-demo", "/appcodes/ops-demo/compare"):
        page = client.get(address).content.decode()
        assert '<span class="visually-hidden">Appcode </span>ops-demo</span>' in page
        assert 'hx-get="/frame/appcodes?appcode=ops-demo&amp;next=/results"' in page
    menu = client.get("/frame/appcodes?appcode=ops-demo&next=/results").content.decode()
    assert "All appcodes" not in menu
    assert 'value="ops-demo" aria-current="true"' in menu
    assert "All appcodes" in client.get("/frame/appcodes?next=/clusters").content.decode()


def test_what_is_read_later_stays_and_what_is_gone_goes(people: Any) -> None:
    run = run_of(people, "a", numbers_at=None)
    later, earlier = timezone.now(), run.created_at
    numbers.keep(run, scalars_of_log(steps(3, 2).encode()), later)
    numbers.keep(run, scalars_of_log(steps(3).encode()), earlier)
    assert RunMetric.objects.get().last == 2
    numbers.keep(run, scalars_of_log(steps(1, name="acc").encode()), timezone.now())
    assert [each.metric.name for each in RunMetric.objects.select_related("metric")] == ["acc"]
    # Names stay: another run may use them, and two workers may meet them at once.
    assert Metric.objects.count() == 2


def test_notes_are_of_developers_and_leave_one_event(people: Any) -> None:
    run = run_of(people, "a")
    write_notes(run, ["paper", "paper"], " good ", acting_user=people.bob)
    write_notes(run, ["paper"], "good", acting_user=people.bob)
    run.refresh_from_db()
    assert (run.tags, run.note) == (["paper"], "good")
    [event] = Event.objects.filter(verb="run.noted")
    assert (event.actor, event.message) == (people.bob, "Run 1: paper; good")
    for tags in (["a,b"], ["x" * 41], [" "], [str(n) for n in range(21)]):
        with pytest.raises(Invalid):
            write_notes(run, tags, "", acting_user=people.bob)
    with pytest.raises(PermissionDenied):
        write_notes(run, [], "", acting_user=people.victor)


def test_a_visit_begins_with_what_the_person_chose_and_else_with_the_view_of_the_appcode(three: Any) -> None:
    keep_view(three.ops, View(where="loss < 1", sort="-cost"), acting_user=three.bob)
    client = Client()
    client.force_login(three.victor)
    assert client.get("/results/ops-demo").url == "/results/ops-demo?where=loss%20%3C%201&sort=-cost"
    sent = {"query": "where=loss < 1&sort=cost", "c": ["last:loss", "param:LR"]}
    back = client.post("/results/ops-demo/columns", sent).url
    assert "c=last:loss&c=param:LR" in back
    assert "where" in back
    own = client.get("/results/ops-demo").url
    # The filter belonged to a question.
    assert own == "/results/ops-demo?sort=cost&c=last:loss&c=param:LR"
    client.post("/results/ops-demo/columns", {"reset": "1", "query": ""})
    assert "-cost" in client.get("/results/ops-demo").url
    assert client.post("/results/ops-demo/view", {"query": ""}).status_code == 403
    client.force_login(three.bob)
    client.post("/results/ops-demo/view", {"drop": "1"})
    page = client.get("/results/ops-demo")
    assert page.status_code == 200
    assert b"End this as the view" not in page.content, "nobody set one"


def test_ticked_runs_are_tagged_together_or_not_at_all(three: Any, as_person: Any) -> None:
    tags = lambda: {run.cluster.name: run.tags for run in Run.objects.select_related("cluster").exclude(tags=[])}  # noqa: E731
    client = as_person(three.bob)
    sent = {
        "runs": ["a/1", "b/1", "gone/9", "'; --"],
        "tags": "paper,  figure 2",
        "next": "/results/ops-demo?sort=cost",
    }
    assert client.post("/results/ops-demo/tags", sent).url == "/results/ops-demo?sort=cost"
    wanted = {"a": ["paper", "figure 2"], "b": ["baseline", "paper", "figure 2"]}
    assert tags() == wanted
    client.post("/results/ops-demo/tags", sent)
    assert tags() == wanted
    Run.objects.filter(cluster__name="b").update(tags=[str(n) for n in range(20)])
    client.post("/results/ops-demo/tags", {"runs": ["a/1", "b/1"], "tags": "one more"})
    assert tags()["a"] == ["paper", "figure 2"]
    assert as_person(three.victor).post("/results/ops-demo/tags", sent).status_code == 403


def test_members_find_views_by_the_names_that_developers_give_them(three: Any, as_person: Any) -> None:
    client = as_person(three.bob)
    client.post("/results/ops-demo/view", {"name": "  best  runs", "query": "where=loss < 1&sort=-cost&page=2"})
    client.post("/results/ops-demo/view", {"name": "plain", "query": ""})
    client = as_person(three.victor)
    page = client.get("/results/ops-demo?view=plain")
    assert page.context["named"] == [
        ("best runs", "where=loss%20%3C%201&sort=-cost&view=best%20runs"), ("plain", "view=plain"),
    ]  # fmt: skip
    assert page.context["view_name"] == "plain"
    assert 'href="?where=loss%20%3C%201&amp;sort=-cost&amp;view=best%20runs">' in page.content.decode()
    assert client.post("/results/ops-demo/view", {"name": "plain", "drop": "plain"}).status_code == 403
    # It is none with which members begin.
    assert client.get("/results/ops-demo").status_code == 200
    client = as_person(three.bob)
    # A typed name deletes no other view.
    client.post("/results/ops-demo/view", {"name": "typed", "drop": "best runs", "query": "sort=-cost"})
    assert client.get("/results/ops-demo").context["named"] == [("plain", "view=plain")]
    for name in ("", "x" * 61, "a\0b"):
        said = client.post("/results/ops-demo/view", {"name": name, "query": "sort=cost"}, follow=True)
        assert said.context["named"] == [("plain", "view=plain")], name
        assert [each.level_tag for each in said.context["messages"]] == ["error"]


def test_a_kept_view_says_how_its_charts_are_drawn(three: Any, as_person: Any) -> None:
    client, rows = as_person(three.bob), "where=loss%20%3C%201"
    for name, look in (("flat", ""), ("steep", "#view?log=loss&smooth=0.6"), ("odd", '#view?"><script>')):
        said = client.post("/results/ops-demo/view", {"name": name, "query": f"{rows}{look}"})
        assert said.url == f"/results/ops-demo?{rows}&view={name}{look if name == 'steep' else ''}"
    # Of views of the same rows, the address says which one is open.
    for name in ("flat", "odd", "steep"):
        assert client.get(f"/results/ops-demo?{rows}&view={name}").context["view_name"] == name
    assert client.get(f"/results/ops-demo?{rows}").context["view_name"] == "flat"
    assert client.get("/results/ops-demo?view=steep").context["view_name"] == ""
    # The view with which members begin has it, too.
    client.post("/results/ops-demo/view", {"query": f"{rows}#view?y=log"})
    begins = client.get("/results/ops-demo")
    assert begins.url == f"/results/ops-demo?{rows}#view?y=log"
    assert client.get(begins.url).context["is_common"]


def test_a_view_with_a_text_is_a_report(three: Any, as_person: Any) -> None:
    client, at = as_person(three.bob), {"name": "lr", "query": "where=loss < 1"}
    text = "# Result\r\n0.1 is **best**. <script>alert(1)</script> [x](javascript:alert(1)) ![y](http://evil/z.png)\n\n|a|b|\n|-|-|\n|1|2|"
    client.post("/results/ops-demo/view", at | {"text": text})
    client = as_person(three.victor)
    shown = client.get("/results/ops-demo?where=loss%20%3C%201")
    report = shown.context["report"]
    assert [part in report for part in ("<h3>Result</h3>", "<strong>best</strong>", "<td>1</td>")] == [True] * 3
    assert [part in report for part in ("<script", "<img", 'href="javascript')] == [False] * 3
    assert "Edit the text" not in shown.content.decode()
    assert client.get("/results/ops-demo?view=plain").context["report"] == ""
    assert client.post("/results/ops-demo/view", at | {"text": "mine"}).status_code == 403
    # Another query keeps the text, and an empty text removes it.
    bob = as_person(three.bob)
    bob.post("/results/ops-demo/view", {"name": "lr", "query": "where=loss < 2"})
    (view,) = bob.get("/api/v1/appcodes/ops-demo/results/views").json()["items"]
    assert (view["name"], view["text"]) == ("lr", text.replace("\r\n", "\n"))
    too_long = bob.post("/results/ops-demo/view", at | {"text": "x" * 20_001}, follow=True)
    assert [each.level_tag for each in too_long.context["messages"]][-1] == "error"
    bob.post("/results/ops-demo/view", at | {"text": ""})
    assert bob.get("/api/v1/appcodes/ops-demo/results/views").json()["items"][0]["text"] == ""


def test_the_csv_has_what_is_shown_of_all_rows(three: Any) -> None:
    client = Client()
    client.force_login(three.victor)
    asked = {"c": ["best:loss", "param:LR", "who"], "sort": "run"}
    text = b"".join(client.get("/results/ops-demo/csv", asked)).decode()
    assert list(csv.reader(io.StringIO(text))) == [
        ["run", "state", "best:loss", "best:loss step", "param:LR", "who"],
        ["a/1", "Succeeded", "0.1", "2", "0.1", "bob"],
        ["b/1", "Succeeded", "0.3", "2", "0.02", "bob"],
        ["c/1", "Failed", "0.7", "1", "0.1", "bob"],
        ["d/1", "Succeeded", "", "", "", "alice"],
    ]


def test_rest(three: Any) -> None:
    client = Client()
    client.force_login(three.victor)
    found = client.get(
        "/api/v1/appcodes/ops-demo/results", {"sort": "-last:loss", "where": "loss > 0", "limit": 1}
    ).json()
    [item] = found["items"]
    assert (found["total"], item["name"], item["parameters"]["LR"]) == (2, "a/1", "0.1")
    assert item["metrics"]["loss"] == {
        "last": 0.5, "step": 3, "smallest": {"value": 0.1, "step": 2}, "largest": {"value": 0.9, "step": 1},
    }  # fmt: skip
    assert client.get("/api/v1/appcodes/ops-demo/results", {"sort": "what"}).status_code == 422
    assert client.get("/api/v1/appcodes/ops-demo/results", {"where": "loss ?"}).json()["notes"]


def test_ticked_clusters_of_one_appcode_are_compared_and_equal_rows_are_gone(three: Any) -> None:
    client = Client()
    client.force_login(three.alice)
    for name in ("a", "b"):
        Cluster.objects.filter(name=name).update(run_count=1)
    ticked = client.post("/compare", {"cluster": ["ops-demo/a", "ops-demo/b"]})
    assert ticked.url == "/appcodes/ops-demo/compare?runs=b/1,a/1"
    assert client.post("/compare", {"cluster": ["ops-demo/a", "flight-demo/b"]}).status_code == 302
    assert client.post("/compare", {"cluster": ["flight-demo/b"]}).status_code == 404
    page = client.get(ticked.url)
    assert [each.path for each in page.context["differences"]] == ["option.LR", "option.MODEL"]
    assert [(row.name, [best for _, best in row.pairs]) for row in page.context["kept"]] == [
        ("loss", [("0.3", "2", False), ("0.1", "2", True)])
    ]
    for name in ("a", "b"):
        numbers.keep(Run.objects.get(cluster__name=name), scalars_of_log(steps(1).encode()), timezone.now())
    assert client.get(ticked.url).context["kept"] == []
    assert len(client.get(f"{ticked.url}&all=1").context["kept"]) == 1


def test_names_of_one_metric_are_one_row_of_a_comparison(people: Any, as_person: Any) -> None:
    run_of(people, "a", steps(0.5))
    run_of(people, "b", steps(0.4, name="train_loss"))
    client, address = as_person(people.victor), "/appcodes/ops-demo/compare?runs=a/1,b/1"
    run_of(people, "c", steps(0.3))
    run_of(people, "d")
    page = client.get(address)
    assert page.context["others"] == ["c/1", "d/1"], "those with numbers first"
    assert [(row.name, [last for last, _ in row.pairs]) for row in page.context["kept"]] == [
        ("loss · train_loss", [("0.5", "1", False), ("0.4", "1", True)])
    ]
    assert page.context["metrics"] == ["loss", "train_loss"]
    assert "Keep all names apart" in page.content.decode()
    page = client.get(f"{address}&apart=1")
    assert [row.name for row in page.context["kept"]] == ["loss", "train_loss"]
    assert "Draw alike names together" in page.content.decode()
    page = client.get(f"{address}&apart=1&all=1&join=loss").content.decode()
    assert '<a class="btn btn-small" href="?runs=a/1,b/1&amp;apart=1&amp;join=loss">Only what differs</a>' in page
    assert 'href="?runs=b/1&amp;all=1&amp;apart=1&amp;join=loss">Leave out' in page


def test_a_run_that_trials_share_leads_to_them(people: Any, as_person: Any) -> None:
    from clusters.sweeps.models import Sweep, Trial

    run, alone = run_of(people, "lr-1", steps(0.5)), run_of(people, "lr-2", steps(0.4))
    Cluster.objects.update(part_of="sweeps/lr")
    sweep = Sweep.objects.create(appcode=people.ops, name="lr", spec={})
    for number in (1, 2, 3):
        Trial.objects.create(sweep=sweep, number=number, parameters={}, cluster=run.cluster, index=number - 1)
    Trial.objects.create(sweep=sweep, number=4, parameters={}, cluster=alone.cluster)
    page = as_person(people.victor).get("/results/ops-demo?of=sweeps/lr").content.decode()
    assert re.findall(r'<a class="tag" href="([^"]+)"[^>]*>([^<]+)</a>', page) == [("/sweeps/ops-demo/lr", "3 trials")]


def test_charts_stand_above_the_rows_they_are_of(three: Any, as_person: Any) -> None:
    client = as_person(three.victor)
    page = client.get("/results/ops-demo?c=last:loss&c=best:loss&sort=last:loss")
    table = page.context["table"]
    # Those with numbers; d has none. A run keeps its colour whatever the order is.
    by_name = {line.name: line.series for line in table.lines}
    assert by_name["d/1"] == 0
    assert len({*by_name.values()}) == 4
    again = client.get("/results/ops-demo?c=last:loss&c=best:loss&sort=-last:loss").context["table"]
    assert {line.name: line.series for line in again.lines} == by_name
    assert "Parameters and loss" not in page.content.decode(), "two runs with a value say nothing"
    run_of(three, "e", steps(0.2), number=5, parameters={"LR": "3"})
    of_three = client.get("/results/ops-demo?c=last:loss&c=best:loss&c=param:LR&sort=last:loss")
    assert "Parameters and loss" in of_three.content.decode()
    Run.objects.filter(cluster__name="e").delete()
    assert table.charts[1] == "runs=b%2F1%2Ca%2F1%2Cc%2F1&metric=loss&brief=1"
    assert f'id="charts-{table.charts[0]}"' in page.content.decode()
    # Filters and pins choose what is drawn. The key tells the page whether it has those charts already.
    other = client.get("/results/ops-demo?c=last:loss&c=best:loss&where=LR+%3D+0.1&pin=b/1").context["table"]
    assert [line.name for line in other.drawn] == ["b/1", "c/1", "a/1"]
    assert other.charts[0] != table.charts[0]
    # A dot takes its run out of the charts, and puts it back.
    turned = {line.name: line.turned for line in table.lines}
    assert turned["d/1"] == "", "it has nothing to draw"
    without = client.get(f"/results/ops-demo?{turned['a/1']}").context["table"]
    assert {line.name: line.series for line in without.lines} == {**by_name, "a/1": 0}
    back = client.get(f"/results/ops-demo?{without.lines[1].turned}").context["table"]
    assert (without.lines[1].name, {line.name for line in back.drawn}) == ("a/1", {"a/1", "b/1", "c/1"})


def test_ten_runs_are_drawn_and_up_to_twenty_if_somebody_asks(people: Any, as_person: Any) -> None:
    for n in range(22):
        run_of(people, f"r{n}", steps(1 + n))
    client = as_person(people.victor)
    page = client.get("/results/ops-demo?c=last:loss")
    assert len(page.context["table"].drawn) == 10
    assert "10 of 22 runs drawn" in page.content.decode()
    all_ = client.get(f"/results/ops-demo?{page.context['table'].draw_more}").context["table"]
    assert len({line.series for line in all_.drawn}) == 20
    # No dot of another run takes one out without a word.
    assert [line.turned for line in all_.lines if not line.series] == ["", ""]
    assert all_.draw_more == ""


def test_who_turns_charts_off_keeps_them_off(three: Any, as_person: Any) -> None:
    client = as_person(three.victor)
    page = client.get("/results/ops-demo?search=a")
    turned = client.post("/results/ops-demo/columns?next=/results/ops-demo", {"turned": page.context["charts_turned"]})
    assert turned["Location"] == "/results/ops-demo?search=a&charts=0"
    assert client.get(turned["Location"]).context["table"].drawn == []
    assert client.get("/results/ops-demo")["Location"] == "/results/ops-demo?charts=0", "without the question of then"
    client.post("/results/ops-demo/columns", {"turned": "view=plain"})
    assert client.get("/results/ops-demo").context["table"].drawn


def test_lists_say_what_ended_runs_came_to(three: Any, as_person: Any) -> None:
    for cluster in Cluster.objects.all():
        Cluster.objects.filter(pk=cluster.pk).update(current_run=cluster.runs.get())
    Run.objects.filter(cluster__name="b").update(phase="Running", finished_at=None, gone=False)
    for url in ("/", "/clusters"):
        page = as_person(three.victor).get(url)
        said = {row.name: row.headline for row in page.context["rows"]}
        assert said == {"a": (("loss", "0.5"),), "b": (), "c": (("loss", "NaN"),), "d": ()}, (
            "b lives: its value may be old"
        )
        assert page.content.decode().count('<span class="headline"') == 2


def test_numbers_that_take_too_long_are_left_out_with_a_sentence(people: Any) -> None:
    runs = [run_of(people, name, steps(1)) for name in ("a", "b")]
    found, said = numbers_of(runs, -1)
    assert [each.curves for each in found] == [(), ()]
    assert [sentence.partition(" are not read")[0] for sentence in said] == ["The numbers of a/1", "The numbers of b/1"]


def test_no_value_of_a_failed_run_is_the_best(three: Any, as_person: Any) -> None:
    # It failed early, at the best loss of all.
    run_of(three, "e", steps(0.01), phase="Failed", parameters={"LR": "0.1"})
    client = as_person(three.victor)
    table = client.get("/results/ops-demo?c=best:loss&c=param:LR").context["table"]
    assert [line.name for line in table.lines if line.cells[0].is_best] == ["a/1"]
    [tenth] = [
        line for line in client.get("/results/ops-demo?group=param:LR").context["table"].groups if line.label == "0.1"
    ]
    # Of three runs, two of which failed.
    assert [cell.text for cell in tenth.cells[:3]] == ["3", "0.5", "0.1"]
    page = client.get("/appcodes/ops-demo/compare?runs=a/1,b/1,e/1")
    assert [is_best for _, _, is_best in page.context["kept"][0].best] == [True, False, False]


def test_groups_stand_by_value_and_lead_to_other_groups_and_their_runs(three: Any, as_person: Any) -> None:
    run_of(three, "e", steps(0.3, math.nan), parameters={"LR": "10", "MODEL": "a, b"})
    client = as_person(three.victor)
    page = client.get("/results/ops-demo?group=param:LR")
    table = page.context["table"]
    assert [line.label for line in table.groups] == ["0.02", "0.1", "10", "none"]
    # All of its runs ended with NaN.
    assert table.groups[2].cells[1].text == "NaN"
    assert table.groups[1].url == "where=LR%20%3D%200.1"
    assert [run.name for run in client.get(f"/results/ops-demo?{table.groups[1].url}").context["table"].lines] == [
        "c/1",
        "a/1",
    ]
    assert ("group=param:MODEL", "MODEL", False) in page.context["group_links"]
    models = client.get("/results/ops-demo?group=param:MODEL").context["table"].groups
    assert {line.label: bool(line.url) for line in models} == {
        "a, b": False,
        "large": True,
        "small": True,
        "none": False,
    }


def test_a_grouped_table_has_the_mean_curve_of_each_group(people: Any, as_person: Any, monkeypatch: Any) -> None:
    printed = {}
    for n, (rate, values) in enumerate(
        [("0.1", (0.8, 0.4)), ("0.1", (0.6, 0.2)), ("0.02", (0.9, 0.8)), (None, (0.5,))]
    ):
        run = run_of(people, f"r{n}", steps(*values), parameters={"LR": rate} if rate else {})
        printed[run.pk] = scalars_of_log(steps(*values).encode())
    run_of(people, "silent", parameters={"LR": "0.02"})
    monkeypatch.setattr("clusters.comparison.runs.scalars_of", lambda run: printed[run.pk])
    client = as_person(people.victor)
    page = client.get("/results/ops-demo?group=param:LR")
    table = page.context["table"]
    key, query = table.charts
    assert f'id="charts-{key}"' in page.content.decode()
    made = client.get(f"/appcodes/ops-demo/compare/groups?{query}").context["metrics"]
    assert [metric.chart.title for metric in made] == ["loss"]
    lines = {line.label: line for line in made[0].chart.lines}
    # The run that told nothing is one of its group, and has no curve.
    assert {*lines} == {"LR = 0.1", "LR = 0.02 (1 of 2 runs)", "LR = none"}
    tenth = lines["LR = 0.1"]
    assert (tenth.latest, tenth.smallest, tenth.largest) == ("0.3", "0.3", "0.7")
    assert tenth.band
    # The dot of a group has the colour of its line, by the order of the values.
    assert {line.label: line.series for line in table.groups} == {"0.02": 1, "0.1": 2, "none": 3}
    assert (tenth.series, lines["LR = 0.02 (1 of 2 runs)"].series) == (2, 1)
    # A condition of the view counts for the curves, too, and the newest runs are read.
    for n in range(60):
        run = run_of(people, f"many{n}", steps(n), parameters={"LR": "0.1"})
        printed[run.pk] = scalars_of_log(steps(n).encode())
    query = client.get("/results/ops-demo?group=param:LR&where=loss+%3E+0.25").context["table"].charts[1]
    chart = client.get(f"/appcodes/ops-demo/compare/groups?{query}").context["metrics"][0].chart
    assert chart.lines[0].label == "LR = 0.1 (13 of 60 runs)"
    assert (chart.lines[0].latest, chart.lines[0].smallest) == ("53", "53")
    assert client.get("/results/ops-demo?group=param:LR&charts=0").context["table"].has_curves is False


def test_runs_of_an_appcode_take_one_colour_after_the_other(make_cluster: Any) -> None:
    colours = [make_cluster(f"c{n}", phase="Succeeded").current_run.colour for n in range(12)]
    assert colours == [*range(10), 0, 1]
