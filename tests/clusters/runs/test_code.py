"""Runs whose program comes from a real Git server, on the real node agent."""

import json
import threading
from types import SimpleNamespace

import pytest

from clusters.clouds.bulkhead import PutOff
from clusters.clouds.registry import cloud
from clusters.cluster import actions
from clusters.cluster.api.documents import to_manifest
from clusters.git_tokens.actions import GitTokenSpec, save_token
from clusters.manifest.code import CodeSpec
from clusters.runs import code as run_code
from clusters.runs import reconcile
from clusters.runs.models import Run
from portal.errors import Invalid
from portal.models import Event
from portal.network.outgoing import Rules
from tests.gitserver import git_server

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def server(tmp_path):
    with git_server(tmp_path) as made:
        yield made


def log_of(run):
    return cloud("local").log(reconcile.run_ref(run), "master", 0, attempt=0).data.decode()


def current(cluster):
    return Run.objects.get(current_of=cluster)


def test_a_run_keeps_its_commit_and_the_next_one_starts_there_again(loop, people, manifest, server):
    repository = server.repository()
    first = repository.commit({"work/go.sh": "echo one; pwd; env; cat .git/config; touch /elearn/code/x"})
    server.login = "oauth2:very-secret"
    code = {"git": repository.url, "ref": "main", "path": "work"}
    cluster = actions.create_cluster(manifest("own", "sh go.sh; exit 0", code=code), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert run.phase == "Failed"
    assert "wants a name and a token" in run.message

    host = repository.url.split("/")[2]
    said = GitTokenSpec(name="git", token="x")
    assert save_token(people.ops, "git.example.com:443", said, acting_user=people.bob).host == "git.example.com"
    save_token(people.ops, host, GitTokenSpec(name="oauth2", token="very-secret"), acting_user=people.bob)
    actions.deploy(cluster, acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert (run.phase, run.code) == ("Succeeded", {"commit": first})
    said = log_of(run)
    assert said.startswith("one\n/elearn/work/work\n")
    assert "Read-only file system" in said
    assert "very-secret" not in said

    second = repository.commit({"work/go.sh": "echo two"})
    cluster.refresh_from_db()
    actions.deploy(cluster, acting_user=people.bob)
    assert loop.until_phase(cluster, "Succeeded", "Failed").code == {"commit": first}
    actions.deploy(cluster, acting_user=people.bob, newest=True)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert (run.phase, run.code) == ("Succeeded", {"commit": second})
    assert log_of(run) == "two\n"
    cluster.refresh_from_db()
    document = to_manifest(cluster)
    assert (document["spec"]["code"], document["status"]["code"]["commit"]) == (code, second)
    told = list(Event.objects.values_list("message", "data"))
    assert "very-secret" not in json.dumps([document, told], default=str)


def test_a_server_that_is_away_is_asked_again_and_a_closed_one_never(people, catalogue, manifest, server, settings):
    repository = server.repository()
    repository.commit({"a": "1"})
    away = actions.create_cluster(manifest("away", code={"git": "http://127.0.0.1:1/x.git"}), acting_user=people.bob)
    reconcile.reconcile(current(away).pk)
    run = current(away)
    assert (run.phase, run.message, run.code) == (
        "Queued", "The code cannot be fetched: 127.0.0.1:1 cannot be reached. It is asked again.", {},
    )  # fmt: skip
    settings.OUTGOING = Rules()
    with pytest.raises(Invalid) as caught:
        actions.create_cluster(manifest("closed", code={"git": repository.url}), acting_user=people.bob)
    [error] = caught.value.errors
    assert (error.path, "the portal's own machine" in error.message) == (("spec", "code", "git"), True)
    assert server.asked == []


def test_an_appcode_whose_server_is_slow_keeps_no_other_waiting(monkeypatch):
    asked, go = threading.Semaphore(0), threading.Event()

    def resolve(url, *_):
        asked.release()
        return "" if "fast" in url else str(go.wait(60))

    def ask(appcode, url="https://slow/x"):
        return run_code.commit_of(SimpleNamespace(cluster=SimpleNamespace(appcode_id=appcode)), CodeSpec(git=url))

    monkeypatch.setattr(run_code.git, "resolve", resolve)
    monkeypatch.setattr(run_code, "_login", lambda *_: None)
    waits = threading.Thread(target=ask, args=(1,))
    waits.start()
    try:
        assert asked.acquire(timeout=60)
        with pytest.raises(PutOff):
            ask(1)
        assert ask(2, "https://fast/x") == ""
    finally:
        go.set()
        waits.join()
    assert ask(1) == "True"
