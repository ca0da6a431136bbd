"""Hooks on pages: created from an example, ticked in a cluster's form, kept by Re-Deploy with changes."""

import re

import pytest

from clusters.hooks.models import Hook
from clusters.runs.models import Cluster, Run
from tests.clusters.forms import sent, wrong_fields

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_example_becomes_a_hook_that_a_cluster_has(page_catalogue, people, as_person):
    client = as_person(people.bob)
    page = client.get("/appcodes/ops-demo/hooks?example=save-model").content.decode()
    body = sent(page.replace('class="hook-form"', 'id="hook-form"'), "hook-form")
    for field, value, sentence in (
        ("time_limit", "5", "At least 60."),
        ("env", "PORTAL_RUN=1", "PORTAL_RUN is for the portal to set; choose another name."),
    ):
        refused = client.post("/appcodes/ops-demo/hooks", body | {field: value})
        assert wrong_fields(refused.content.decode()) == {field: sentence}
    assert client.post("/appcodes/ops-demo/hooks", body).status_code == 302
    hook = Hook.objects.get()
    assert (hook.name, hook.spec["on"], hook.spec["outputPath"]) == ("save-model", "success", "models/{name}/{run}")
    assert ("model-version.json" in hook.spec["command"], hook.spec["model"]) == (True, "{name}")

    body = sent(client.get("/clusters/new").content.decode())
    assert "hooks_used" not in body
    body |= {
        "name": "train",
        "command": "true",
        "hooks_used": ["save-model"],
        "hook_command": "echo done",
        "hook_on": "always",
    }
    more = '[{"use": "gone"}]'
    refused = client.post("/clusters/new", body | {"hooks": more, "hooks_used": ["save-model", "lost"]})
    assert wrong_fields(refused.content.decode()) == {
        "hooks_used": "ops-demo has no hook “lost”.",
        "hooks": "ops-demo has no hook “gone”.",
    }
    assert client.post("/clusters/new", body).status_code == 302
    cluster = Cluster.objects.get(name="train")
    assert [(each["name"], each["use"], each["on"], each["command"]) for each in cluster.spec["hooks"]] == [
        ("save-model", "save-model", None, None),
        ("after", None, "always", "echo done"),
    ]
    # The run keeps the hook as it was on submission.
    assert "model-version.json" in Run.objects.get().spec["hooks"][0]["command"]

    page = client.get("/clusters/ops-demo/train/change").content.decode()
    kept = sent(page)
    assert (kept["hooks_used"], kept["hook_command"], kept["hook_on"]) == (["save-model"], "echo done", "always")
    preview = client.post("/clusters/preview?change=ops-demo/train", kept).content.decode()
    assert "Hooks of the appcode" not in preview, "nothing has changed"
    page = client.get("/clusters/ops-demo/train").content.decode()
    section = page.partition("<h2>After the run</h2>")[2].partition("</table>")[0]
    assert re.findall(r'<td class="lead">(.*?)</td>', section) == ["save-model", "after"]
    assert "train" in client.get("/appcodes/ops-demo/hooks/save-model").content.decode().partition("Used by")[2][:200]


def test_a_new_team_ticks_what_most_teams_want(stores, page_catalogue, people, as_person):
    client = as_person(people.bob)
    page = client.get("/clusters/new").content.decode()
    body = sent(page) | {"name": "train", "command": "true", "output": "data"}
    ticked = body | {"hook_starters": ["check-data", "save-model", "copy-to", "notify"]}
    refused = client.post("/clusters/new", ticked).content.decode()
    assert wrong_fields(refused) == {
        "hook_copy_to": "Choose the datastore to copy to.",
        "hook_address": "Give the address to notify, like https://example.com/runs.",
    }
    answers = {"hook_copy_to": "gone", "hook_address": "https://example.com/runs"}
    refused = client.post("/clusters/new", ticked | answers).content.decode()
    assert wrong_fields(refused) == {"hook_copy_to": "ops-demo has no datastore “gone”."}
    assert client.post("/clusters/new", ticked | answers | {"hook_copy_to": "data"}).status_code == 302
    hooks = {each["name"]: each for each in Cluster.objects.get(name="train").spec["hooks"]}
    assert [(name, each["on"]) for name, each in hooks.items()] == [
        ("check-data", "before"),
        ("save-model", "success"),
        ("copy-to", "success"),
        ("notify", "always"),
    ]
    assert (hooks["copy-to"]["output"], hooks["notify"]["env"]) == ("data", {"URL": "https://example.com/runs"})
    kept = sent(client.get("/clusters/ops-demo/train/change").content.decode())
    assert kept["hook_starters"] == ["check-data", "save-model", "copy-to", "notify"]
    # The team's own version takes the place of the starter.
    client.post("/appcodes/ops-demo/hooks", {"name": "notify", "command": "true", "on": "always"})
    assert 'value="notify"' in client.get("/clusters/new").content.decode().partition('name="hooks_used"')[2]
    assert 'name="hook_starters" value="notify"' not in client.get("/clusters/new").content.decode()
