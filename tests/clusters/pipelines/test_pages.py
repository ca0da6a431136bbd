"""Pages of pipelines: written as YAML, validated as a manifest, shown as a graph."""

from __future__ import annotations

import pytest

from tests.clusters.forms import sent, wrong_fields

STAGES = """\
stages:
  - name: prepare
    spec: {image: tensorflow, command: "true", roles: {master: {flavor: small}}}
  - name: train
    after: [prepare]
    retries: 2
    spec: {image: tensorflow, command: "true", roles: {master: {flavor: small}}}
"""


def test_what_is_typed_is_judged_saved_run_and_shown(page_catalogue, people, as_person):
    from clusters.pipelines.loop import advance
    from clusters.pipelines.models import Pipeline, PipelineRun

    client = as_person(people.bob)
    body = sent(client.get("/pipelines/new").content.decode(), "pipeline-form") | {
        "appcode": "ops-demo",
        "name": "nightly",
        "view": "yaml",
    }
    for typed, sentence in (
        (
            "stages: [",
            "This is not YAML: did not find expected node content at line 2, column 1.",
        ),
        ("a: &x [1]\nstages: *x", "This is not YAML: aliases are not read."),
        ("[" * 5000, "This is not YAML that can be read here."),
        ("stages: !!bool perhaps", "This is not YAML: tags are not read."),
        (f"stages: 1{':1' * 300}.5", "This is not YAML that can be read here."),
        ("1: 2", "This YAML says what JSON cannot: Dict key must be str."),
        (
            STAGES.replace("image: tensorflow", "image: !!binary AA==", 1),
            "This is not YAML: tags are not read.",
        ),
        (
            STAGES.replace("retries: 2", '"\\ud800": 2'),
            "This is not YAML: found invalid Unicode character escape code at line ",
        ),
        (
            STAGES.replace("retries: 2\n    spec: {", "retries: 2\n    spec: {hooks: [{on: never, command: echo}], "),
            "stages.1.spec.hooks.0.on: One of &#x27;before&#x27;, &#x27;success&#x27;, &#x27;failure&#x27;",
        ),
        (
            STAGES.replace("[prepare]", "[nobody]"),
            "stages.1.after.0: There is no stage “nobody”; there are: prepare, train.",
        ),
        (
            STAGES.replace("image: tensorflow", "image: gone", 1),
            "stages.0.spec.image: The catalogue has no image “gone”.",
        ),
    ):
        page = client.post("/pipelines/new", body | {"stages": typed, "check": "1"}).content.decode()
        assert wrong_fields(page).keys() == {"stages"}
        assert sentence in page
    page = client.post("/pipelines/new", body | {"stages": STAGES, "check": "1"}).content.decode()
    assert "✓ It can be run." in page, wrong_fields(page)
    assert page.count('class="stage"') == 2
    assert not Pipeline.objects.exists()

    answer = client.post("/pipelines/new", body | {"stages": STAGES, "run": "1"})
    assert (answer.status_code, answer["Location"]) == (302, "/pipelines/ops-demo/nightly")
    advance(people.ops.pk, "nightly")
    page = client.get("/pipelines/ops-demo/nightly").content.decode()
    assert 'href="/clusters/ops-demo/nightly-prepare?run=1"' in page
    assert client.post("/pipelines/ops-demo/nightly/run", follow=True).content.decode().count("cancel it first") == 1
    # Save and run is atomic.
    form = sent(client.get("/pipelines/ops-demo/nightly/change").content.decode(), "pipeline-form")
    page = client.post(
        "/pipelines/ops-demo/nightly/change",
        form | {"view": "yaml", "stages": STAGES + "    when: always\n", "run": "1"},
    )
    assert "Run 1 of nightly has not ended yet; cancel it first. Nothing was saved" in page.content.decode()
    assert Pipeline.objects.get().spec == PipelineRun.objects.get().spec
    # A form saved unchanged keeps the pipeline's meaning.
    form = sent(client.get("/pipelines/ops-demo/nightly/change").content.decode(), "pipeline-form")
    assert client.post("/pipelines/ops-demo/nightly/change", form | {"save": "1"}).status_code == 302
    found = Pipeline.objects.get()
    assert found.spec == PipelineRun.objects.get().spec
    assert "command: &#x27;true&#x27;" in client.get("/pipelines/ops-demo/nightly").content.decode()


def test_more_pipelines_are_not_more_queries(page_catalogue, people, as_person, django_assert_max_num_queries):
    from clusters.pipelines.models import Pipeline, PipelineRun

    for number in range(20):
        made = Pipeline.objects.create(appcode=people.ops, name=f"p{number}", spec={}, created_by=people.bob)
        made.current_run = PipelineRun.objects.create(pipeline=made, number=1, spec={}, created_by=people.bob)
        made.save()
    client = as_person(people.bob)
    with django_assert_max_num_queries(8):
        assert client.get("/pipelines").content.decode().count("has never been run") == 0


@pytest.mark.parametrize("name", ["absent", "nightly"])
def test_what_is_not_theirs_is_not_there(people, as_person, name):
    from clusters.pipelines.models import Pipeline

    Pipeline.objects.create(appcode=people.ops, name="nightly", spec={}, created_by=people.bob)
    assert as_person(people.mallory).get(f"/pipelines/ops-demo/{name}").status_code == 404
