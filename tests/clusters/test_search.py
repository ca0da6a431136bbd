"""The search: objects with what can be done with them and their tabs, in whatever words and order people type."""

from __future__ import annotations

import datetime as dt
from typing import Any
from urllib.parse import unquote_plus

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing.sentences import costs
from clusters.results.models import Metric
from clusters.runs.models import Cluster, Run
from clusters.sentences import SENTENCES, training
from portal.pages.help_page import ANSWERS

PAGE, DEPLOY = "/clusters/ops-demo/show1", "/clusters/ops-demo/show1/deploy"


@pytest.fixture
def found(client: Any, people: Any) -> Any:
    """found("stop show1") → {group: [(title, address), …]}, as alice or another user sees it."""

    def find(typed: str, user: Any = None) -> dict[str, list[tuple[str, str]]]:
        client.force_login(user or people.alice)
        groups = client.get("/search", {"q": typed}).context["groups"]
        return {group.title: [(hit.title, hit.url) for hit in group.hits] for group in groups}

    return find


@pytest.fixture
def show1(make_cluster: Any) -> Any:
    return make_cluster("show1", phase="Succeeded")


def test_what_cannot_be_stopped_says_so_and_what_can_be_done(found: Any, show1: Any, people: Any) -> None:
    actions = found("stop show1")
    assert actions["Actions"] == [("show1 has ended; nothing to stop", PAGE), ("Re-Deploy show1", DEPLOY)]
    assert actions["Clusters"] == [("show1", PAGE)]
    assert found("stop show1", people.victor) == {
        "Actions": [("show1 has ended; nothing to stop", PAGE)],
        "Clusters": [("show1", PAGE)],
    }
    assert found("stop show1", people.mallory).keys() == {"Help"}
    assert "Actions" not in found("stop"), "without a name nobody asks for what has ended"


def test_what_runs_is_stopped_before_it_is_deployed_again(found: Any, make_cluster: Any) -> None:
    make_cluster("show1", phase="Running")
    assert found("redeploy show1")["Actions"] == [
        ("show1 has not ended yet; stop it first", PAGE),
        ("Stop show1", f"{PAGE}/disable"),
    ]


def test_an_ended_one_of_a_similar_name_does_not_hide_what_can_be_stopped(found: Any, make_cluster: Any) -> None:
    make_cluster("show2", phase="Succeeded")
    make_cluster("show3", phase="Running")
    assert [title for title, _ in found("stop sho")["Actions"]] == ["Stop show3"]
    assert found("stop show2")["Actions"][0][0] == "show2 has ended; nothing to stop"


@pytest.mark.parametrize(
    "typed", ["redeploy show1", "re-deploy show1", "deploy show1", "show1 rerun", "start the show1"]
)
def test_a_verb_has_several_words_in_any_order(found: Any, show1: Any, typed: str) -> None:
    assert ("Re-Deploy show1", DEPLOY) in found(typed)["Actions"]


@pytest.mark.parametrize(
    ("typed", "tab"),
    [
        ("show1 logs", "logs"),
        ("logs of show1", "logs"),
        ("show1 metrics", "metrics"),
        ("show1 loss", "metrics"),
        ("cost show1", "usage"),
    ],
)
def test_an_object_and_the_name_of_a_tab_lead_there(found: Any, show1: Any, typed: str, tab: str) -> None:
    assert found(typed)["Actions"][0][1] == f"{PAGE}/{tab}"


def test_a_cluster_is_cloned_and_swept_over(found: Any, show1: Any, people: Any) -> None:
    assert ("Sweep over show1", "/sweeps/new?from=ops-demo/show1") in found("sweep show1")["Actions"]
    assert ("Clone show1", "/clusters/new?clone=ops-demo/show1") in found("clone show1")["Actions"]
    assert "Actions" not in found("sweep show1", people.victor)


@pytest.mark.parametrize("typed", ["log metric", "how do I log a metric"])
def test_questions_lead_to_help(found: Any, typed: str) -> None:
    assert ("Print numbers", "/help#print-numbers") in found(typed)["Help"]


def test_a_metric_leads_to_the_results_with_the_best_first(found: Any, show1: Any, people: Any, client: Any) -> None:
    Metric.objects.create(appcode=people.ops, name="val_loss")
    [(name, url)] = found("val_loss")["Metrics"]
    assert (name, url) == ("val_loss", "/results/ops-demo?sort=best:val_loss")
    assert client.get(url).status_code == 200
    assert "Metrics" not in found("val_loss", people.mallory)


def test_an_object_that_is_called_like_a_verb_is_found_first(found: Any, make_cluster: Any) -> None:
    make_cluster("runner", phase="Succeeded")
    for n in range(6):
        make_cluster(f"other{n}", phase="Succeeded")
    assert next(iter(found("runner").values()))[0][0] == "runner"
    assert found("ops-demo run")["Clusters"][0][0] == "runner"


def test_help_explains_words_and_pages_are_found_by_what_is_done_there(found: Any) -> None:
    assert ("GPU-hour", "/help#gpu-hour") in found("gpu-hour")["Help"]
    assert ("MLflow", "/help#mlflow") in found("mlflow")["Help"]
    assert ("New cluster", "/clusters/new") in found("create a cluster")["Go to"]


def test_runs_of_two_clusters_are_compared(found: Any, make_cluster: Any, people: Any, client: Any) -> None:
    for name in ("mnist-1", "mnist-2"):
        make_cluster(name, phase="Succeeded")
    for typed in ("compare mnist-1 mnist-2", "Compare mnist-1 with mnist-2", "compare mnist-1 vs mnist-2 gone"):
        [(title, url)] = found(typed)["Go to"]
        assert (title, url) == (
            "Compare mnist-1 and mnist-2",
            "/appcodes/ops-demo/compare?runs=mnist-1/1,mnist-2/1",
        )
    assert client.get(url).status_code == 200
    assert found("compare mnist-1 mnist-2", people.mallory)["Go to"] == [("Results", "/results")]
    assert found("compare mnist-1 gone") == {"Clusters": [("mnist-1", "/clusters/ops-demo/mnist-1")]}


@pytest.mark.parametrize(
    ("typed", "phase"), [("failed", "Failed"), ("running jobs", "Running"), ("queued", "Queued"), ("crashed", "Failed")]
)
def test_a_state_leads_to_what_is_in_it(found: Any, show1: Any, client: Any, typed: str, phase: str) -> None:
    to = found(typed)["Go to"]
    assert (phase, f"/?phase={phase}") in to
    assert (f"{phase} runs", f"/results?state={phase}") in to
    assert client.get(f"/results?state={phase}").url == f"/results/ops-demo?state={phase}"


def test_an_error_leads_to_the_last_runs_that_failed_with_it(
    found: Any, make_cluster: Any, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cluster("old", phase="Failed", run={"message": "KeyError: 'x' (master-0, exit code 1)"})
    make_cluster("fine", phase="Succeeded", run={"message": "KeyError: 'x'"})
    make_cluster("other", phase="Failed", run={"message": "ValueError: no"})
    make_cluster("new", phase="Failed", run={"message": "KeyError: 'label'\nlines of the log"})
    make_cluster(
        "full", phase="Failed", run={"message": "CUDA out of memory. Tried to allocate", "reason": "TaskFailed"}
    )
    every = ("Failed", "/?phase=Failed")
    new, old = ((f"{name} failed", f"/clusters/ops-demo/{name}") for name in ("new", "old"))
    assert found("KeyError")["Go to"] == [new, old, every]
    assert found("keyerror old")["Go to"] == [old, every]
    assert found("KeyError", people.mallory)["Go to"] == [every]
    make_cluster("killed", phase="Failed", run={"message": "It was killed.", "reason": "OOMKilled"})
    full, killed = ((f"{name} failed", f"/clusters/ops-demo/{name}") for name in ("full", "killed"))
    assert found("out of memory")["Go to"] == [killed, full, every]
    assert found("oom")["Go to"] == [killed, every]
    assert "Go to" not in found("keyer")
    monkeypatch.setattr("clusters.sentences.MOST_LOOKED_AT", 2)
    assert found("KeyError")["Go to"] == [every], "it looks at the newest only"
    assert found("oom")["Go to"] == [killed, every]


ANSWERED = (
    ("pip", "Install packages", "/clusters/new#id_requirements"),
    ("pip install", "Install packages", "/clusters/new#id_requirements"),
    ("ModuleNotFoundError", "Install packages", "/clusters/new#id_requirements"),
    ("stop billing", "Stop paying", "/?phase=Queued,Starting,Running"),
    ("how much did I spend", "See what was spent", "/billing"),
    ("most expensive", "Find what costs most", "/clusters?sort=-cost"),
    ("sort by cost", "Find what costs most", "/clusters?sort=-cost"),
    ("invite", "Invite somebody", "/appcodes"),
    ("add a member", "Invite somebody", "/appcodes"),
    ("api token", "Make an API token", "/profile#tokens"),
    ("upload data", "Upload data", "/datastores"),
    ("download output", "Download output", "/datastores"),
    ("quota", "Get more GPUs", "/appcodes"),
    ("more gpus", "Get more GPUs", "/appcodes"),
    ("why is my job waiting", "See why a run waits", "/queue"),
    ("out of memory", "Avoid running out of memory", "/clusters/new#id_master_flavor"),
    ("KeyError", "See why a run failed", "/?phase=Failed"),
    ("terminal", "Open a terminal", "/?phase=Running"),
    ("how do I train a model", "Train a model", "/clusters/new"),
    ("distributed training", "Train on several GPUs or machines", "/clusters/new#id_worker_count"),
    ("several gpus", "Train on several GPUs or machines", "/clusters/new#id_worker_count"),
    ("multi node", "Train on several GPUs or machines", "/clusters/new#id_worker_count"),
    ("TF_CONFIG", "Train on several GPUs or machines", "/clusters/new#id_worker_count"),
    ("use pytorch instead of tensorflow", "Use PyTorch", "/clusters/new#id_framework"),
    ("share my results with a colleague", "Share results", "/results"),
    ("export results as csv", "Share results", "/results"),
    ("best run", "Find the best run", "/results"),
    ("hyperparameter search", "Find the best parameters", "/sweeps/new"),
    ("run every night", "Train every night", "/schedules/new"),
    ("set an environment variable", "Set a variable", "/clusters/new#id_env"),
    ("clean up", "Clean up", "/clusters"),
    ("filter", "Filter runs", "/results"),
    ("colours", "Tell curves apart", "/results"),
)


def test_what_newcomers_type_leads_to_where_it_is_done(found: Any, show1: Any, client: Any) -> None:
    for typed, title, address in ANSWERED:
        assert (title, address) in found(typed)["Help"], typed
        assert client.get(address.partition("#")[0], follow=True).status_code == 200
        page = client.get("/help", {"search": typed}).content.decode()
        assert title in page, typed
        assert address.replace("&", "&amp;") in page, typed


def test_fields_that_help_leads_to_are_there(client: Any, people: Any, page_catalogue: None) -> None:
    client.force_login(people.alice)
    for page in ("/clusters/new", "/profile"):
        text = client.get(page).content.decode()
        for each in ANSWERS:
            if each.url and each.url.startswith(f"{page}#"):
                assert f'id="{each.url.partition("#")[2]}"' in text


@pytest.fixture
def several(make_cluster: Any) -> None:
    """Clusters whose names are words of searches."""
    make_cluster("hello", phase="Succeeded")
    make_cluster("hello-gpu", phase="Running")
    make_cluster("bad-py", phase="Failed", run={"message": "SyntaxError: invalid syntax"})
    make_cluster("big", phase="Queued")


FIRST = (
    ("hello gpu", ("hello-gpu", "/clusters/ops-demo/hello-gpu")),
    ("hello-gpu", ("hello-gpu", "/clusters/ops-demo/hello-gpu")),
    ("stop hello gpu", ("Stop hello-gpu", "/clusters/ops-demo/hello-gpu/disable")),
    ("costs", ("Costs", "/billing")),
    ("gpu", ("New cluster", "/clusters/new")),
    ("open notebook", ("My notebook", "/applications/notebook")),
    ("notebook", ("My notebook", "/applications/notebook")),
    ("new notebook", ("New notebook or application", "/applications/new")),
    ("run pytorch on 2 gpus", ("New cluster", "/clusters/new")),
    ("new cluster pytorch 2 gpus", ("New cluster", "/clusters/new")),
    ("please run a quick resnet job", ("New cluster", "/clusters/new")),
    ("how much did I spend this month", ("Costs this month", "/billing")),
    ("How much did I spend this month?", ("Costs this month", "/billing")),
    ("why did bad-py fail", ("Overview of bad-py", "/clusters/ops-demo/bad-py")),
    ("why did bad py fail?", ("Overview of bad-py", "/clusters/ops-demo/bad-py")),
    ("why is hello-gpu slow", ("hello-gpu", "/clusters/ops-demo/hello-gpu")),
    ("why is big waiting", ("Overview of big", "/clusters/ops-demo/big")),
    ("why doesn't big start?", ("Overview of big", "/clusters/ops-demo/big")),
    ("big stuck", ("Overview of big", "/clusters/ops-demo/big")),
    ("why did hello-gpu stop", ("hello-gpu", "/clusters/ops-demo/hello-gpu")),
    ("what is running on the GPUs", ("Queue", "/queue")),
    ("who uses the GPUs?", ("Queue", "/queue")),
    ("free gpus", ("Queue", "/queue")),
    ("who is using the gpus", ("Queue", "/queue")),
    ("invite bob to ops-demo", ("Members of ops-demo", "/appcodes/ops-demo#members")),
    ("add bob to ops-demo", ("Members of ops-demo", "/appcodes/ops-demo#members")),
    ("remove bob from ops-demo", ("Members of ops-demo", "/appcodes/ops-demo#members")),
    ("who can see ops-demo?", ("Members of ops-demo", "/appcodes/ops-demo#members")),
    ("help mlflow", ("MLflow", "/help#mlflow")),
    ("share it with my new colleague", ("Invite somebody", "/appcodes")),
    ("start a notebook with 1 GPU", ("New notebook or application", "/applications/new")),
    ("invite alice", ("Members of ops-demo", "/appcodes/ops-demo#members")),
    ("share a chart", ("Share results", "/results")),
    ("sign out", ("Sign out", "/accounts/logout/")),
    ("log out", ("Sign out", "/accounts/logout/")),
    ("logout", ("Sign out", "/accounts/logout/")),
)  # fmt: skip


def test_the_first_result_is_what_was_meant(found: Any, several: None) -> None:
    for typed, first in FIRST:
        assert next(iter(found(typed).values()))[0] == first, typed


@pytest.mark.parametrize("typed", ["log", "sign", "ter", "rem", "del", "out", "res", "log out of memory"])
def test_nothing_acts_or_signs_out_before_its_word_is_typed(found: Any, several: None, client: Any, typed: str) -> None:
    found(typed)
    for group in client.get("/search", {"q": typed}).context["groups"]:
        assert not [hit.title for hit in group.hits if hit.button], typed


def test_a_page_is_found_before_an_object_that_only_contains_its_name(found: Any, make_cluster: Any) -> None:
    make_cluster("queue", phase="Succeeded")
    make_cluster("my-costs", phase="Succeeded")
    assert [group for group in found("costs") if group not in ("Actions", "Help")] == ["Go to", "Clusters"]
    assert next(iter(found("queue"))) == "Go to", "both are called so"
    make_cluster("waiting", phase="Succeeded")
    assert next(iter(found("waiting"))) == "Clusters", "only words of the page"


@pytest.mark.parametrize("typed", ["qwertz", "quux < ", "costs of qwertz", "hello-gpu"])
def test_where_little_is_found_the_search_of_help_follows(found: Any, several: None, client: Any, typed: str) -> None:
    found(typed)
    for path in ("/search", "/search/palette"):
        page = client.get(path, {"q": typed})
        [last] = page.context["further"]
        assert last.title == f"Search Help for “{typed.strip()}”"
        assert last.title.replace("<", "&lt;") in page.content.decode()
        assert client.get(last.url).context["words"] == typed.strip()
    found("cluster")
    assert not client.get("/search", {"q": "cluster"}).context["further"]


TOPICS = (
    ("resume from checkpoint", "recipes", "Checkpoints: resume after a retry"),
    ("resume", "recipes", "Checkpoints: resume after a retry"),
    ("docker image", "answers", "Use another Docker image"),
    ("how do I log images", "recipes", "Images and tables"),
    ("savefig", "recipes", "Images and tables"),
    ("write a report", "answers", "Write a report"),
    ("alert", "answers", "Get alerts"),
    ("alerts", "answers", "Get alerts"),
    ("notification", "answers", "Get alerts"),
    ("gpu utilization", "answers", "See what the machine did"),
    ("mlflow", "recipes", "MLflow"),
    ("help mlflow", "recipes", "MLflow"),
    ("vs code", "answers", "Use VS Code"),
    ("delete account", "answers", "Delete an account"),
    ("delete my account forever", "answers", "Delete an account"),
    ("torchrun", "answers", "Train on several GPUs or machines"),
    ("log metrics from pytorch", "recipes", "TensorBoard summaries from PyTorch"),
    ("how do I use git", "answers", "Run code from Git"),
    ("filter", "answers", "Filter runs"),
    ("tag", "answers", "Tag runs"),
    ("group", "answers", "Group runs"),
    ("view", "answers", "Save a view"),
    ("confusion matrix", "answers", "Look at figures"),
    ("MultiWorkerMirroredStrategy", "recipes", "Several GPUs or machines"),
)


def test_help_finds_a_topic_by_most_of_the_words(found: Any, show1: Any, client: Any) -> None:
    for typed, part, first in TOPICS:
        in_search = found(typed)["Help"]
        context = client.get("/help", {"search": typed}).context
        best = context[part][0]
        assert getattr(best, "question", getattr(best, "title", "")) == first, typed
        assert part == "answers" or not context["answers"], f"nothing stands before it: {typed}"
        assert in_search[0][0] == first, typed
        assert 0 < len(context["answers"]) + len(context["recipes"]) < 8, typed


def test_keys_are_found_by_what_people_call_them(found: Any, client: Any) -> None:
    assert found("keyboard shortcuts")["Help"] == [("Keys", "/help#keys")]
    assert 'id="keys"' in client.get("/help").content.decode()


def test_quota_and_budget_lead_there(found: Any, show1: Any) -> None:
    assert ("Appcodes", "/appcodes") in found("gpu quota")["Go to"]
    assert ("Quota of ops-demo", "/appcodes/ops-demo") in found("gpu quota ops-demo")["Actions"]
    assert ("Budget of ops-demo", "/budgets?appcode=ops-demo") in found("budget ops-demo")["Actions"]


def test_results_are_sorted_by_a_metric(found: Any, people: Any) -> None:
    Metric.objects.create(appcode=people.ops, name="accuracy")
    for typed in ("sort by accuracy", "best accuracy"):
        assert found(typed)["Metrics"] == [("accuracy", "/results/ops-demo?sort=-best:accuracy")]


def test_thousands_of_objects_cost_no_more_queries(found: Any, make_cluster: Any) -> None:
    one = make_cluster("show0", phase="Succeeded")
    all_typed = (
        "show",
        "run show1",
        "demo results start",
        "stop show7",
        "compare show1 show2 show3",
        "failed",
        "KeyError show",
    )

    def queries(typed: str) -> int:
        found(typed)
        with CaptureQueriesContext(connection) as captured:
            found(typed)
        return len(captured)

    before = {typed: queries(typed) for typed in all_typed}
    clusters = Cluster.objects.bulk_create(
        Cluster(appcode=one.appcode, name=f"show{n}", spec=one.spec, created_by=one.created_by) for n in range(1, 2000)
    )
    run = one.current_run
    runs = Run.objects.bulk_create(
        Run(cluster=each, number=1, spec=run.spec, resources={}, gpus=0, phase=run.phase, gone=True)
        for each in clusters
    )
    for each, its in zip(clusters, runs, strict=True):
        each.current_run = its
    Cluster.objects.bulk_update(clusters, ["current_run"])
    assert {typed: queries(typed) for typed in all_typed} == before


# What is typed, the title of the first result, and its address. Today is 2026-03-04, a Wednesday.
SAID = (
    ("loss < 0.1", "Results where loss < 0.1", "/results?where=loss < 0.1"),
    ("runs with loss < 0.1", "Results where loss < 0.1", "/results?where=loss < 0.1"),
    ("runs whose loss is below 0.1", "Results where loss < 0.1", "/results?where=loss < 0.1"),
    ("accuracy at least 90", "Results where accuracy >= 90", "/results?where=accuracy >= 90"),
    ("val_loss<0.1 and LR = 1e-3", "Results where val_loss<0.1 and LR = 1e-3", "/results?where=val_loss<0.1 and LR = 1e-3"),
    ('runs where note ~ "new data"', 'Results where note ~ "new data"', '/results?where=note ~ "new data"'),
    ("runs with best loss < 0.1", "Results where best loss < 0.1", "/results?where=best loss < 0.1"),
    ("my runs that took more than 10 min", "My runs where took > 10 min", "/results?who=alice&where=took > 10 min"),
    ("runs where started > 7 days ago", "Results where started > 7 days ago", "/results?where=started > 7 days ago"),
    ("failed runs yesterday", "Failed runs yesterday",
     "/results?state=Failed&where=started >= 2026-03-03 and started < 2026-03-04"),
    ("What failed today?", "Failed runs today", "/results?state=Failed&where=started >= 2026-03-04 and started < 2026-03-05"),
    ("my runs since 2026-03-01", "My runs since 2026-03-01",
     "/results?who=alice&where=started >= 2026-03-01 and started < 2026-03-05"),
    ("how many runs failed last week", "Failed runs last week",
     "/results?state=Failed&where=started >= 2026-02-23 and started < 2026-03-02"),
    ("my runs", "My runs", "/results?who=alice"),
    ("runs I started", "My runs", "/results?who=alice"),
    ("bob's runs", "Results by bob", "/results?who=bob"),
    ("runs by bob in ops-demo", "Results by bob in ops-demo", "/results/ops-demo?who=bob"),
    ("runs tagged baseline", "Results tagged baseline", "/results?tag=baseline"),
    ("Runs of show1 with the tag Best-2 and loss < 0.1", "Results of show1 tagged Best-2 where loss < 0.1",
     "/results?search=show1&tag=Best-2&where=loss < 0.1"),
    ("my failed runs", "My failed runs", "/results?state=Failed&who=alice"),
    ("my clusters", "My clusters", "/clusters?owner=alice"),
    ("bob's running clusters", "Running clusters by bob", "/clusters?phase=Running&owner=bob"),
    ("stop all", "Choose what to stop: my living clusters", "/clusters?phase=Queued,Starting,Running&owner=alice"),
    ("kill everything", "Choose what to stop: my living clusters",
     "/clusters?phase=Queued,Starting,Running&owner=alice"),
    ("stop my queued jobs", "Choose what to stop: my queued clusters", "/clusters?phase=Queued&owner=alice"),
    ("stop all in ops-demo", "Choose what to stop: living clusters in ops-demo",
     "/clusters?phase=Queued,Starting,Running&appcode=ops-demo"),
    ("delete failed runs", "Choose what to delete: my failed clusters", "/clusters?phase=Failed&owner=alice"),
    ("rerun all failed", "Choose what to re-deploy: my failed clusters", "/clusters?phase=Failed&owner=alice"),
    ("rerun show1 with LR=0.3", "Change show1: LR=0.3", "/clusters/ops-demo/show1/change?set=LR=0.3"),
    ("run show1 again with LR = 0.3, EPOCHS=5.", "Change show1: LR=0.3, EPOCHS=5",
     "/clusters/ops-demo/show1/change?set=LR=0.3&set=EPOCHS=5"),
    ("set LR to 0.3 in show1", "Change show1: LR=0.3", "/clusters/ops-demo/show1/change?set=LR=0.3"),
    ("rerun lives with LR=0.3", "Copy lives: LR=0.3", "/clusters/new?clone=ops-demo/lives&set=LR=0.3"),
    ("best run", "Results: loss, the best first", "/results/ops-demo?sort=best:loss"),
    ("my worst run", "My runs: loss, the worst first", "/results/ops-demo?who=alice&sort=-best:loss"),
    ("cheapest runs", "Results: the cheapest first", "/results/ops-demo?sort=cost"),
    ("most expensive run", "Results: the most expensive first", "/results/ops-demo?sort=-cost"),
    ("longest run", "Results: the longest first", "/results/ops-demo?sort=-duration"),
    ("latest run", "Overview of lives", "/clusters/ops-demo/lives"),
    ("stop all my runs", "Choose what to stop: my living clusters", "/clusters?phase=Queued,Starting,Running&owner=alice"),
    ("my last run", "Overview of lives", "/clusters/ops-demo/lives"),
    ("logs of my last run", "Logs of lives", "/clusters/ops-demo/lives/logs"),
    ("compare my last two runs", "Compare lives and show1", "/appcodes/ops-demo/compare?runs=lives/1,show1/1"),
    ("cost of ops-demo", "Costs of ops-demo", "/billing/ops-demo"),
    ("spend ops-demo", "Costs of ops-demo", "/billing/ops-demo"),
    ("costs last month", "Costs last month", "/billing?from=2026-02-01&to=2026-02-28"),
    ("how much did I spend in January", "Costs January", "/billing?from=2026-01-01&to=2026-01-31"),
    ("cost of ops-demo this week", "Costs of ops-demo this week", "/billing/ops-demo?from=2026-03-02&to=2026-03-08"),
    ("costs of bob in the last 7 days", "Costs by bob last 7 days", "/dashboard?user=bob&from=2026-02-26&to=2026-03-04"),
)  # fmt: skip


def test_sentences_lead_to_lists_that_are_filtered_so(
    found: Any, make_cluster: Any, people: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cluster("show1", phase="Succeeded")
    make_cluster("lives", phase="Running")
    for name in ("loss", "learning_rate", "weights"):
        Metric.objects.create(appcode=people.ops, name=name)
    monkeypatch.setattr(timezone, "now", lambda: dt.datetime(2026, 3, 4, 12, tzinfo=dt.UTC))
    for typed, title, address in SAID:
        first = next(iter(found(typed).values()))[0]
        assert (first[0], unquote_plus(first[1])) == (title, address), typed
        assert client.get(first[1], follow=True).status_code == 200, typed
        # Who may see none of it is told nothing of it.
        for _, url in (hit for group in found(typed, people.mallory).values() for hit in group):
            assert not any(name in url for name in ("show1", "lives", "ops-demo", "alice", "bob")), typed


def test_a_sentence_with_a_word_that_means_nothing_is_none(people: Any) -> None:
    for typed in (
        "how do I start a run", "runs with", "bob", "yesterday", "runs of nobody-knows", "my secret runs", "stop billing",
        "delete account", "loss <", "loss <> 3", "rerun with LR=0.3", "add bob to ops-demo", "the last of us",
    ):  # fmt: skip
        for sentence in (*SENTENCES, costs):
            assert sentence is training or not sentence(people.alice, typed), typed
