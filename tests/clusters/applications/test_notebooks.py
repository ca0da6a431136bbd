"""Runs and notebooks: opens the output of a run in a notebook that has it, or in one restarted with it after confirmation."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clusters.manifest.notebook import plain_notebook
from tests.api.client import Api, manifest
from tests.clusters.applications.test_tensorboard import errors
from tests.clusters.frameworks.test_notebook import notebook

TRAIN = "/appcodes/ops-demo/clusters/train"
LAB = "/appcodes/ops-demo/applications/lab"


@pytest.fixture
def lab(as_bob: Api, settings: Any) -> Api:
    """bob, with a notebook that waits for its first run to start."""
    spec = {"type": "jupyter", "image": "tensorflow", "flavor": "small", "storage": {"size": "1Gi"}}
    status, made = as_bob.post("/appcodes/ops-demo/applications", {"metadata": {"name": "lab"}, "spec": spec})
    assert status == 201, made
    return as_bob


def over(name: str, phase: str = "Stopped") -> None:
    """The cloud reports that the run is gone."""
    from django.db import transaction

    from clusters.runs.models import Run
    from clusters.runs.status.phase_update import refresh

    with transaction.atomic():
        run = Run.objects.select_related("cluster__appcode").filter(cluster__name=name).latest("number")
        run.gone = True
        refresh([run], timezone.now(), unsaved=["gone"])
    assert run.phase == phase


def running(name: str) -> None:
    from clusters.runs.models import Run

    Run.objects.filter(cluster__name=name, gone=False).update(
        phase="Running", admitted_at=timezone.now(), applied_at=timezone.now()
    )


def test_a_notebook_that_runs_without_it_is_ended_only_for_who_says_so_and_started_anew_with_it(lab: Api) -> None:
    from clusters.cluster import actions
    from clusters.runs.models import Cluster

    running("lab")
    status, answer = lab.post(f"{TRAIN}/notebook")
    assert (status, errors(answer)) == (
        422,
        {
            "application": "None shows them now; name one of lab, or make one by the manifest of an application, with them in "
            "its “runs”."
        },
    )
    assert lab.post(f"{TRAIN}/notebook", {"application": "lab"})[0] == 409
    assert Cluster.objects.get(name="lab").spec["runs"] == []
    status, made = lab.post(f"{TRAIN}/notebook", {"application": "lab", "restart": True})
    assert (status, made["spec"]["runs"], made["status"]["run"]) == (200, ["train/2"], 1)
    pk = Cluster.objects.get(name="lab").pk
    actions.deploy_next(pk)  # a wake-up that comes too early
    assert lab.get(LAB)[1]["status"]["run"] == 1
    over("lab")
    for _ in range(2):
        actions.deploy_next(pk)
    assert lab.get(LAB)[1]["status"]["run"] == 2
    running("lab")
    # Now the notebook has the run, and nothing more happens.
    assert lab.post(f"{TRAIN}/notebook") == (200, lab.get(LAB)[1])
    assert lab.post(f"{TRAIN}/notebook", {"runs": ["train/1"]})[0] == 422


def test_who_disables_it_meanwhile_is_believed(lab: Api) -> None:
    from clusters.cluster import actions
    from clusters.runs.models import Cluster

    running("lab")
    lab.post(f"{TRAIN}/notebook", {"application": "lab", "restart": True})
    assert lab.post(f"{LAB}/disable")[0] == 202
    over("lab")
    actions.deploy_next(Cluster.objects.get(name="lab").pk)
    assert lab.get(LAB)[1]["status"]["run"] == 1


def test_what_cannot_be_started_anew_is_not_ended_or_says_why_it_was_not(lab: Api) -> None:
    from clusters.catalog.models import Image
    from clusters.cluster import actions
    from clusters.runs.models import Cluster
    from portal.models import Event

    running("lab")
    assert lab.post(f"{TRAIN}/notebook", {"application": "lab", "restart": True})[0] == 200
    Image.objects.update(enabled=False)
    over("lab")
    actions.deploy_next(Cluster.objects.get(name="lab").pk)
    assert Event.objects.get(verb="cluster.not_restarted").message.startswith(
        "It was not started anew: The catalogue has no"
    )
    assert Cluster.objects.get(name="lab").next_by is None
    Image.objects.update(enabled=True)
    lab.post(f"{LAB}/deploy")
    running("lab")
    Image.objects.update(enabled=False)
    assert lab.post(f"{TRAIN}/notebook", {"application": "lab", "runs": ["train/1"], "restart": True})[0] == 422
    assert lab.get(LAB)[1]["status"]["phase"] == "Running"
    assert lab.get(LAB)[1]["spec"]["runs"] == ["train/2"]


def test_runs_that_are_gone_leave_it_and_it_is_started_with_the_rest(lab: Api) -> None:
    lab.post("/appcodes/ops-demo/clusters", manifest("old", output="results"))
    from clusters.runs.models import Run

    Run.objects.filter(cluster__name="old").update(started_at=timezone.now())
    running("lab")
    assert lab.post(f"{LAB}/disable")[0] == 202
    over("lab")
    assert lab.post(f"{TRAIN}/notebook", {"application": "lab", "runs": ["old/1", "train/1"]})[0] == 200
    running("lab")
    lab.delete("/appcodes/ops-demo/clusters/old")
    status, made = lab.post(f"{TRAIN}/notebook", {"application": "lab", "restart": True})
    assert (status, made["spec"]["runs"]) == (200, ["train/1", "train/2"])


def test_what_cannot_be_shown_is_refused_at_the_runs(lab: Api) -> None:
    lab.post("/appcodes/ops-demo/clusters", manifest("bare"))
    for asked, path, sentence in (
        ({"runs": ["train/9"], "application": "lab"}, "runs", "ops-demo has no run train/9."),
        ({"runs": ["bare/1"], "application": "lab"}, "runs", "Run bare/1 has no output datastore"),
        ({"runs": ["train"], "application": "lab"}, "runs", "“train” is no run"),
        ({"application": "train"}, "application", "ops-demo has no notebook “train”."),
    ):
        status, answer = lab.post(f"{TRAIN}/notebook", {**asked, "restart": True})
        assert status == 422, answer
        assert errors(answer)[path].startswith(sentence)


def test_the_page_says_what_it_takes_before_it_is_done(lab: Api, bob: Any, victor: Any) -> None:
    from clusters.runs.models import Cluster, Run

    page, client = "/clusters/ops-demo/train/notebook", Client()
    client.force_login(bob)
    said = client.get(page).content.decode()
    assert "Open train/2 in a notebook" in said
    assert "It runs without it. It is ended and started anew" in said
    # A POST without a choice shows the question too; without confirmation nothing ends.
    assert client.post(page).content.decode().count("Start anew") == said.count("Start anew") > 0
    client.post(page, {"application": "lab"})
    assert Cluster.objects.get(name="lab").spec["runs"] == []
    # The ending run of the notebook still answers, so the page links to the notebook only when the next one answers.
    waits = client.post(page, {"restart": "lab"}, follow=True)
    assert "opening=lab" in waits.redirect_chain[-1][0]
    assert "lab is start" in waits.content.decode()
    assert "apps.localhost" not in waits.content.decode()
    notebook = Cluster.objects.get(name="lab")
    Run.objects.filter(pk=notebook.current_run_id).update(
        phase="Running",
        spec={**notebook.spec, "runs": ["train/2"]},
        endpoints={"notebook": {"address": "x", "routed": True}},
    )
    Cluster.objects.filter(name="lab").update(next_by=None)
    opening = client.get(waits.redirect_chain[-1][0]).content.decode()
    assert "http://notebook-lab-ops-demo.apps.localhost" in opening
    assert "/lab/tree/elearn-runs/train/2" in opening
    # Several selected runs; then runs that do not exist.
    both = client.post(page, {"runs": ["train/1", "train/2"]}).content.decode()
    assert "Open train/1, train/2 in a notebook" in both
    assert both.count('name="runs"') == 2
    for wrong, sentence in (("train/9", "ops-demo has no run train/9."), ("train", "“train” is no run")):
        answer = client.post(page, {"runs": [wrong], "restart": "lab"}, follow=True)
        assert answer.redirect_chain == [("/clusters/ops-demo/train/runs", 302)]
        assert sentence in answer.content.decode()
    client.force_login(victor)
    assert client.get(page).status_code == client.post(page).status_code == 403


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files in the notebook's home by path, as its task returns them."""
    from clusters.applications import notebook_runs

    files: dict[str, bytes] = {}

    def answer(run: Any, role: str, argv: Any, *, user: Any) -> tuple[bytes, str, int]:
        if argv[0] == "find":
            return "".join(f"{n}.5 {path}\0" for n, path in enumerate(files)).encode(), "", 0
        path = argv[-1].removeprefix("/elearn/home/")
        return (files[path][: int(argv[2])], "", 0) if path in files else (b"", "head: No such file or directory", 1)

    monkeypatch.setattr(notebook_runs, "answer_of", answer)
    return files


def works(name: str) -> None:
    from clusters.runs.models import Run, Task

    running(name)
    run = Run.objects.get(cluster__name=name, gone=False)
    Task.objects.create(run=run, role="notebook", index=0, uid=f"{name}-0", phase="Running")


def test_a_notebook_runs_as_a_cluster_with_what_the_application_has(lab: Api, files: dict[str, bytes]) -> None:
    works("lab")
    files["work/Train it.ipynb"] = notebook("x = 1").encode()
    wanted = {
        "metadata": {"name": "nb"},
        "spec": {"notebook": "work/Train it.ipynb", "parameters": {"x": 2}, "output": "results"},
    }
    status, made = lab.post(f"{LAB}/run", wanted)
    assert status == 201, made
    assert lab.last.headers["Location"].endswith("/appcodes/ops-demo/clusters/nb")
    assert made["spec"]["notebook"] == {
        "path": "work/Train it.ipynb", "source": plain_notebook(notebook("x = 1")), "parameters": {"x": 2},
    }  # fmt: skip
    assert (made["spec"]["framework"], made["spec"]["image"], made["spec"]["retries"]) == ("notebook", "tensorflow", 0)
    assert made["spec"]["roles"]["master"]["flavor"] == "small"
    # Only one task at a time can mount a volume, and the application has it mounted.
    assert made["spec"]["home"] is None
    # The run's result opens in the notebook itself.
    from clusters.applications.notebooks import address_in
    from clusters.runs.models import Cluster

    cluster = Cluster.objects.get(name="lab")
    assert address_in(cluster, ["nb/1"]).endswith("/lab/tree/elearn-runs/nb/1/Train%20it.ipynb")
    assert address_in(cluster, ["nb/1", "train/1"]).endswith("/lab/tree/elearn-runs")


def test_what_cannot_be_run_is_refused_at_its_field(lab: Api, files: dict[str, bytes]) -> None:
    from clusters.runs.models import Cluster

    files |= {"a.ipynb": notebook("1").encode(), "text.ipynb": b"hello", "big.ipynb": b"x" * (9 * 2**20)}
    body: dict[str, Any] = {"notebook": "a.ipynb", "output": "results"}
    assert lab.post(f"{LAB}/run", {"metadata": {"name": "nb"}, "spec": body})[0] == 409  # the notebook is not running
    works("lab")
    count = Cluster.objects.count()
    for changes, path, sentence in (
        ({"notebook": "b.ipynb"}, "spec.notebook", "b.ipynb cannot be read in the home of lab: there is no such file."),
        ({"notebook": "../a.ipynb"}, "spec.notebook", "Give a path below the home"),
        ({"notebook": "text.ipynb"}, "spec.notebook", "This is no notebook"),
        ({"notebook": "big.ipynb"}, "spec.notebook", "big.ipynb has more than 8 MiB"),
        ({"output": None}, "spec.output", "Name a datastore"),
        ({"output": "nothing"}, "spec.output", "ops-demo has no datastore"),
        ({"flavor": "huge"}, "spec.flavor", "There is no flavor “huge”."),
        ({"parameters": {"a b": 1}}, "spec.parameters.a b", "“a b” is no name of a variable"),
        ({"home": "lab-home"}, "spec.home", "There is no such field."),
    ):
        status, answer = lab.post(f"{LAB}/run", {"metadata": {"name": "nb"}, "spec": body | changes})
        assert status == 422, answer
        ((where, said),) = errors(answer).items()
        assert (where.startswith(path), said.startswith(sentence)) == (True, True), (where, said)
    assert Cluster.objects.count() == count


def test_the_form_keeps_what_was_typed_and_names_the_cluster_after_the_notebook(
    lab: Api, files: dict[str, bytes], bob: Any
) -> None:
    from clusters.runs.models import Cluster

    page, client = "/applications/ops-demo/lab/run", Client()
    client.force_login(bob)
    assert "lab does not run" in client.get(page).content.decode()
    works("lab")
    assert "There is no file .ipynb" in client.get(page).content.decode()
    files |= {"old.ipynb": notebook("1").encode(), "Über/Train_2.ipynb": notebook("1").encode()}
    typed = {
        "notebook": "Über/Train_2.ipynb",
        "parameters": "rate = 0.5\nname=big one\n\n",
        "flavor": "small",
        "output": "results",
    }
    said = client.get(page).content.decode()
    assert said.index("Train_2.ipynb") < said.index("old.ipynb")
    wrong = client.post(page, typed | {"parameters": "rate"}).content.decode()
    assert "“rate” has no &#x27;=&#x27;" in wrong
    assert '<option value="Über/Train_2.ipynb" selected>' in wrong
    assert client.post(page, typed)["Location"] == "/clusters/ops-demo/train-2"
    assert Cluster.objects.get(name="train-2").spec["notebook"]["parameters"] == {"rate": 0.5, "name": "big one"}
