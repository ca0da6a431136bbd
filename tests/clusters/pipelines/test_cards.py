"""Stages as cards of fields: the same pipeline as in YAML, edited by buttons, with errors beside the fields."""

from __future__ import annotations

import html
import re

import pytest

from clusters.cluster import actions as clusters
from clusters.pipelines.models import Pipeline
from clusters.pipelines.pages.cards import card_of, stages_of
from clusters.pipelines.pages.form import spec_of
from clusters.pipelines.pages.text import stages_in_short
from tests.clusters.forms import sent, wrong_fields

pytestmark = pytest.mark.django_db(transaction=True)

ROLES = {"master": {"flavor": "small"}}
PLAIN = {"image": "tensorflow", "command": "true", "roles": ROLES}
STAGES = [
    {"name": "fetch", "spec": {**PLAIN, "input": "digits", "output": "results", "env": {"A": " 1 ", "B": "x|y"}}},
    {
        "name": "prepare",
        "retries": 2,
        "after": ["fetch"],
        "spec": {
            **PLAIN, "command": "a\n  b # c\n", "input": {"from": "fetch"}, "output": "results", "timeLimit": 3600, "retries": 0,
            "hooks": [{"name": "check", "on": "before", "command": "true"}],
            "roles": {"master": {"flavor": "small"}, "worker": {"flavor": "one-gpu", "count": 3}},
        },
    },
    {"name": "copies", "spec": {**PLAIN, "framework": "parallel", "roles": {"worker": {"flavor": "small", "count": 4}}}},
    # Keys in the order in which PostgreSQL returns JSON.
    {"name": "served", "spec": {**PLAIN, "roles": {"ps": {"flavor": "tiny"}, **ROLES, "worker": {"flavor": "one-gpu"}}}},
    {"name": "other", "spec": {**PLAIN, "input": {"from": "elsewhere"}}},
    {"name": "one-run", "when": "always", "after": ["other"], "spec": {**PLAIN, "input": {"from": "elsewhere/3"}}},
    {"name": "part", "spec": {**PLAIN, "input": {"from": "prepare", "path": "a", "mode": "cache"}}},
    {
        "name": "search",
        "sweep": {
            "template": {**PLAIN, "command": "echo $lr", "input": {"from": "prepare"}, "output": "results"},
            "parameters": {"lr": {"type": "float", "low": 0.1, "high": 1}}, "goal": {"metric": "loss"}, "trials": 3,
        },
    },
    {"name": "final", "best": "search"},
    {"name": "tell", "when": "failed", "after": ["final", "part"], "spec": PLAIN},
]  # fmt: skip


def test_every_stage_is_the_same_from_its_card():
    spec = spec_of({"stages": STAGES})
    short = stages_in_short(spec, "ops-demo")
    names = [stage["name"] for stage in short]
    assert spec_of({"stages": stages_of([card_of(each, names) for each in short])}) == spec


def test_cards_are_added_moved_renamed_shown_as_yaml_and_saved(page_catalogue, people, as_person, manifest):
    client = as_person(people.bob)
    clusters.create_cluster(manifest("old", "echo old", image="tensorflow"), acting_user=people.bob)
    body = sent(client.get("/pipelines/new?appcode=ops-demo").content.decode(), "pipeline-form") | {"name": "nightly"}
    numbers = sorted(int(name.split("-")[1]) for name in body if name.endswith("-name"))

    def press(body, **button):
        page = client.post("/pipelines/new", body | button).content.decode()
        return page, sent(page, "pipeline-form")

    for _ in numbers:
        _, body = press(body, discard="0")
    assert not [name for name in body if name.startswith("stage-")]
    page, _ = press(body, save="1")
    assert "Give at least one stage." in page
    _, body = press(body, add="1", source="cluster:old")
    page, body = press(body, add="1", source="")
    assert re.search(r'id="stage-1-name"[^>]*autofocus', page)
    assert (body["stage-0-name"], body["stage-0-command"], body["stage-1-name"]) == ("old", "echo old", "stage")

    body |= {"stage-1-after": ["old"], "stage-0-name": "new", "stage-1-command": "echo 1"}
    _, body = press(body, up="1")
    assert (body["stage-0-after"], body["stage-1-name"]) == (["new"], "new"), "what it waits for was renamed"
    page, _ = press(
        body | {"stage-0-image": "gone", "stage-1-retries": "many", "stage-1-rest": "timeLimit: 5"}, check="1"
    )
    assert wrong_fields(page).keys() == {"stage-1-retries", "stage-1-rest"}
    page, _ = press(body | {"stage-0-image": "gone"}, check="1")
    assert wrong_fields(page) == {"stage-0-image": "The catalogue has no image “gone”."}

    as_yaml, text = press(body, to="yaml")
    assert "- name: stage\n  after:\n  - new\n" in html.unescape(as_yaml)
    page, _ = press(text | {"stages": "stages: ["}, to="form")
    assert wrong_fields(page).keys() == {"stages"}
    page, again = press(text, to="form")
    token = {"csrfmiddlewaretoken": ""}
    assert again | token == body | token
    assert client.post("/pipelines/new", again | {"save": "1"}).status_code == 302
    assert [
        (each["name"], each["after"], each["spec"]["command"]) for each in Pipeline.objects.get().spec["stages"]
    ] == [
        ("stage", ["new"], "echo 1"),
        ("new", [], "echo old"),
    ]


def test_clusters_that_are_ticked_become_stages(page_catalogue, people, as_person, manifest, stores):
    client = as_person(people.bob)
    for name, spec in (("a", {"output": "results"}), ("b", {"input": {"from": "a"}}), ("c", {})):
        clusters.create_cluster(manifest(name, image="tensorflow", **spec), acting_user=people.bob)
    chosen = {"cluster": ["ops-demo/a", "ops-demo/b"]}
    body = sent(client.post("/pipelines/new", chosen).content.decode(), "pipeline-form")
    assert (body["stage-1-input"], body.get("stage-1-after")) == ("stage:a", None)
    body = sent(
        client.post("/pipelines/new", {"cluster": ["ops-demo/a", "ops-demo/c"]}).content.decode(), "pipeline-form"
    )
    assert body["stage-1-after"] == ["a"]
    assert client.post("/pipelines/new", body | {"name": "two", "save": "1"}).status_code == 302
    for wrong in ({"cluster": ["ops-demo/a", "flight-demo/x"]}, {"cluster": ["ops-demo/none"]}):
        assert client.post("/pipelines/new", wrong)["Location"] == "/clusters"
    assert as_person(people.mallory).post("/pipelines/new", chosen)["Location"] == "/clusters"


def test_what_no_browser_sends_is_an_answer_too(page_catalogue, people, as_person):
    client = as_person(people.bob)
    stage = {"name": "a", "kind": "spec", "when": "succeeded", "rest": "input: {from: [x]}"}
    body = {"view": "form", "name": "n", "appcode": "ops-demo"} | {f"stage-0-{key}": stage[key] for key in stage}
    assert "stage-0-input" in wrong_fields(client.post("/pipelines/new", body | {"check": "1"}).content.decode())
    twice = {"stage-0-flavor": "small", "stage-0-role": "master", "stage-0-rest": "roles: {master: {flavor: one-gpu}}"}
    page = client.post("/pipelines/new", body | twice | {"check": "1"}).content.decode()
    assert wrong_fields(page) == {"stage-0-flavor": "It stands here and below, in the rest; say it once."}
    for sent_ in ({"up": "9" * 5000}, {"add": "1", "source": "cluster:\0"}, {"add": "1", "appcode": "\0"}):
        assert client.post("/pipelines/new", body | sent_).status_code == 200
    assert client.post("/pipelines/new", {"cluster": "ops-demo/\0"})["Location"] == "/clusters"
