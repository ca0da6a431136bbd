"""The New Cluster form covers exactly what a manifest can hold, and reports errors at the right field."""

from __future__ import annotations

import datetime as dt
import json
import re
from types import SimpleNamespace

import pytest
import yaml
from django.template.loader import render_to_string
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusters.manifest.hook_starters import STARTERS
from tests.clusters.forms import sent, wrong_fields

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
COMMAND = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=200).filter(str.strip)
NAME = st.from_regex(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
ENDPOINT = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[a-z][a-z0-9]{0,9}", fullmatch=True),
        "port": st.integers(1024, 65535),
        "health": st.from_regex(r"/[a-z0-9/?=]{0,9}", fullmatch=True),
    }
)
FOLDER = st.lists(st.from_regex(r"[a-zü0-9_-]{1,8}", fullmatch=True), max_size=2).map("/".join)
SAID = {"path": FOLDER, "mode": st.sampled_from(["auto", "copy", "shard", "cache", "stream"])}
FOLDS = {"fold": st.integers(1, 2), "folds": st.integers(2, 9)}
INPUT = NAME | st.one_of(
    st.fixed_dictionaries({**source, **SAID, **more})
    for source in ({"datastore": NAME}, {"datastore": NAME, "version": NAME}, {"from": NAME})
    for more in ({}, FOLDS)
).filter(lambda said: said["mode"] != "stream" or not {"version", "folds"} & said.keys())
FILE = st.from_regex(r"([a-z]{1,3}/)?[A-Z0-9_-][A-Z0-9._-]{0,5}\.py", fullmatch=True)
FILES = st.dictionaries(FILE, TEXT, min_size=1, max_size=3)
REPOSITORY = st.fixed_dictionaries(
    {"git": st.just("https://git.example.com/team/x.git")},
    optional={"ref": st.from_regex(r"[A-Za-z0-9]{1,9}", fullmatch=True), "path": FOLDER},
)
HOOK_NAME = st.from_regex(r"[a-z][a-z0-9]{0,9}", fullmatch=True)
STARTED = st.sampled_from(list(STARTERS.values())).map(
    lambda each: each.hook("shelf", "https://example.com/x").model_dump(
        mode="json", by_alias=True, exclude_defaults=True
    )
)
HOOK = (
    STARTED
    | HOOK_NAME.map(lambda name: {"use": name})
    | st.fixed_dictionaries({"command": COMMAND, "on": st.sampled_from(["success", "failure", "always"])})
    | st.fixed_dictionaries(
        {"name": HOOK_NAME, "command": COMMAND},
        optional={"env": st.just({"A": "1 "}), "retries": st.just(0), "outputPath": st.just("m/{name}/{run}")},
    )
    | st.fixed_dictionaries({"use": HOOK_NAME, "on": st.just("always"), "command": COMMAND})
)
HOOKS = st.lists(HOOK, max_size=4, unique_by=lambda said: said.get("name") or said.get("use", "after"))
ACCESS = st.sampled_from(["members", "everybody"]).map(lambda to: {"to": to}) | st.lists(
    st.from_regex(r"[\w.@+-]{1,12}", fullmatch=True), min_size=1, max_size=3
).map(lambda people: {"to": "people", "people": people})
TIMES = st.datetimes(dt.datetime(1000, 1, 2), dt.datetime(9999, 12, 30), timezones=st.timezones())  # noqa: DTZ001


@st.composite
def manifests(draw):
    from clusters.frameworks import COMPUTING
    from clusters.manifest.env import RESERVED_ENV

    framework = draw(st.sampled_from(list(COMPUTING)))
    driver = COMPUTING[framework]
    mode = draw(st.sampled_from(driver.modes))
    roles = {}
    for role in driver.roles:
        # Without a master there are no parameter servers, and at least one worker.
        alone = driver.roles[0].leads and driver.roles[0].name not in roles and not role.leads
        if alone and role.kept_alive:
            continue
        least = 1 if role.leads or (alone and role.name == "worker") else role.least
        if role.least or (alone and role.name == "worker") or draw(st.booleans()):
            roles[role.name] = {"flavor": draw(NAME), "count": draw(st.integers(least, role.most))}
            if driver.is_independent:
                roles[role.name]["atOnce"] = draw(st.none() | st.integers(1, role.most))
    single = [name for name, role in roles.items() if role["count"] == 1] if mode == "service" else []
    for number, name in enumerate(single):
        served = draw(st.lists(ENDPOINT, max_size=2, unique_by=lambda each: each["name"]))
        roles[name]["endpoints"] = [each | {"name": f"{each['name']}{number}"} for each in served]
    done = [each.name for each in driver.completions if roles.get(each.role, {"count": 0})["count"]]
    reserved = RESERVED_ENV | driver.reserved_env
    names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True).filter(lambda name: name not in reserved)
    spec = {
        "framework": framework,
        "image": draw(NAME),
        "requirements": draw(
            st.lists(st.sampled_from(["pandas>=2.2", "# why", "six ; python_version < '4'"]), max_size=3)
        ),
        "command": draw(COMMAND),
        "code": draw(st.none() | FILES.map(lambda files: {"files": files}) | REPOSITORY),
        "env": draw(st.dictionaries(names, TEXT, max_size=5)),
        "input": draw(st.none() | INPUT),
        "output": draw(st.none() | NAME),
        "outputPath": draw(st.from_regex(r"([A-Za-z0-9_-]|\{name\}|\{run\}|[a-z]/){0,12}", fullmatch=True)),
        "home": draw(st.none() | NAME),
        "mode": mode,
        "roles": roles,
        "completion": draw(st.sampled_from(done)),
        "access": draw(ACCESS),
        "retries": draw(st.none() | st.integers(0, 10)),
        "timeLimit": draw(st.none() | st.integers(60, 60 * 86400)),
        "priorityClass": draw(st.sampled_from(["urgent", "normal", "spare"])),
        "placement": draw(st.sampled_from(["pack", "spread"])),
        "scheduleAfter": draw(st.none() | TIMES),
        "hooks": draw(HOOKS),
    }
    if driver.runs_notebook:
        source = json.dumps({"cells": [], "metadata": {"title": draw(TEXT)}, "nbformat": 4, "nbformat_minor": 5})
        parameters = draw(st.dictionaries(st.sampled_from(["a", "b_1"]), TEXT | st.integers() | st.none(), max_size=2))
        spec |= {"output": draw(NAME), "notebook": {"path": "a/b.ipynb", "source": source, "parameters": parameters}}
    return {"kind": "cluster", "metadata": {"name": draw(NAME), "appcode": draw(NAME)}, "spec": spec}


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(document=manifests())
def test_every_manifest_survives_the_form(document):
    from clusters.cluster.form.choices import Offer
    from clusters.cluster.form.data import fields_of
    from clusters.cluster.form.fields import ClusterForm
    from clusters.manifest.cluster import ClusterManifest

    manifest = ClusterManifest.model_validate(document)
    offer = Offer([], "", [], [], [])
    filled = ClusterForm(offer, initial=fields_of(manifest))
    filled.offer = SimpleNamespace(appcodes=[1], environments=())
    page = render_to_string(
        "clusters/cluster/new.html", {"form": filled, "user": SimpleNamespace(is_authenticated=False)}
    )
    form = ClusterForm(offer, sent(page))
    assert form.is_valid(), form.errors
    assert form.manifest == manifest


def test_the_command_is_kept_exactly_as_typed(page_catalogue, people, as_person):
    from clusters.runs.models import Cluster

    command = "\n  echo \"$HOME\" '$(date)' `id`\t\\\n  && echo Zürich 火 \n\n"
    body = sent(as_person(people.alice).get("/clusters/new").content.decode())
    answer = as_person(people.alice).post(
        "/clusters/new", body | {"name": "exact", "command": command.replace("\n", "\r\n")}
    )
    assert answer.status_code == 302
    assert Cluster.objects.get(name="exact").spec["command"] == command


def test_a_form_with_its_first_choices_needs_only_a_name_and_a_command(page_catalogue, people, as_person):
    client = as_person(people.bob)
    body = sent(client.get("/clusters/new").content.decode())
    answer = client.post("/clusters/new", body | {"name": "first", "command": "true"})
    assert (answer.status_code, answer["Location"]) == (302, "/clusters/ops-demo/first")


BAD = [
    ({"name": "Not_a_label"}, "name"),
    ({"name": "-x"}, "name"),
    ({"name": "a" * 41}, "name"),
    ({"name": ""}, "name"),
    ({"name": "taken"}, "name"),
    ({"appcode": "flight-demo"}, "appcode"),
    ({"appcode": "no-such"}, "appcode"),
    ({"image": "no-such"}, "image"),
    ({"image": "container-only"}, "image"),
    ({"image": "a\0b"}, "image"),
    ({"image": ""}, "image"),
    ({"input": "of-another"}, "input"),
    ({"output": "of-another"}, "output"),
    ({"command": ""}, "command"),
    ({"command": " \n "}, "command"),
    ({"command": "x" * 70_000}, "command"),
    ({"command": "a\0b"}, "command"),
    ({"env": "NO_EQUALS"}, "env"),
    ({"env": "A=1 | A=2"}, "env"),
    ({"env": "1A=1"}, "env"),
    ({"env": "TF_CONFIG={}"}, "env"),
    ({"env": '{"A": 1}'}, "env"),
    ({"env": '{"A": '}, "env"),
    ({"env": "{" * 5000}, "env"),
    ({"master_flavor": ""}, "master_flavor"),
    ({"master_flavor": "no-such"}, "master_flavor"),
    ({"worker_flavor": "small", "worker_count": "-1"}, "worker_count"),
    ({"worker_flavor": "small", "worker_count": "10000"}, "worker_count"),
    ({"worker_flavor": "small", "worker_count": "two"}, "worker_count"),
    ({"worker_flavor": "small", "worker_count": "9" * 5000}, "worker_count"),
    ({"worker_flavor": "middle-1-gpu", "worker_count": "1000"}, "worker_count"),
    ({"worker_flavor": "", "worker_count": "2"}, "worker_flavor"),
    ({"ps_flavor": "small", "ps_count": "1", "framework": "pytorch"}, "ps_count"),
    ({"completion": "workers"}, "completion"),
    ({"completion": "nobody"}, "completion"),
    ({"framework": "caffe"}, "framework"),
    ({"mode": "forever"}, "mode"),
    ({"retries": "11"}, "retries"),
    ({"time_limit": "5", "time_limit_unit": "seconds"}, "time_limit"),
    ({"time_limit": "soon"}, "time_limit"),
    ({"schedule_after": "tomorrow"}, "schedule_after"),
    ({"output_path": "../escape"}, "output_path"),
    ({"output_path": "/absolute"}, "output_path"),
    ({"evaluator_flavor": "small", "evaluator_count": "2"}, "evaluator_count"),
]


@pytest.mark.parametrize(("typed", "field"), BAD, ids=lambda value: value if isinstance(value, str) else None)
def test_bad_input_is_refused_at_its_field(typed, field, make_cluster, stores, people, as_person):
    from clusters.runs.models import Cluster

    make_cluster("taken")
    client = as_person(people.alice)
    body = sent(client.get("/clusters/new").content.decode()) | {"name": "fresh", "command": "true"}
    answer = client.post("/clusters/new", body | typed)
    page = answer.content.decode()
    assert answer.status_code == 200
    assert list(wrong_fields(page)) == [field]
    assert Cluster.objects.count() == 1
    # Nothing typed is lost, except NUL characters, which no text field can hold.
    kept = sent(page)
    for name, value in (body | typed).items():
        assert (
            name == "csrfmiddlewaretoken"
            or "\0" in value
            or kept[name].replace("\r\n", "\n") == value.replace("\r\n", "\n")
        )


def test_every_error_is_told_at_once(page_catalogue, people, as_person):
    client = as_person(people.alice)
    body = sent(client.get("/clusters/new").content.decode())
    page = client.post("/clusters/new", body | {"name": "Ä", "env": "x", "retries": "99"}).content.decode()
    wrong = wrong_fields(page)
    assert list(wrong) == ["name", "command", "env", "retries"]
    assert (wrong["command"], wrong["retries"]) == ("Fill this in.", "At most 10.")
    # What only the database knows is said in the same answer as what the manifest says by itself.
    client.post("/clusters/new", body | {"name": "taken", "command": "true"})
    typed = {"name": "taken", "command": "true", "env": "1A=2", "output": "gone"}
    page = client.post("/clusters/new", body | typed).content.decode()
    assert list(wrong_fields(page)) == ["name", "env", "output"]
    page = client.post("/clusters/new", body | typed | {"env": ""}).content.decode()
    assert list(wrong_fields(page)) == ["name", "output"]
    page = client.post("/clusters/new", body | {"name": "Ä", "command": "true", "retries": "99"}).content.decode()
    assert '<details class="fold panel" open>' in page


def test_a_card_runs_in_an_appcode_without_any_data(page_catalogue, people, as_person):
    from clusters.catalog.models import Image
    from clusters.runs.models import Cluster
    from datastores.models import Datastore

    client = as_person(people.alice)
    page = client.get("/clusters/new").content.decode()
    assert "Start from a template or an example in" in page
    assert '<details class="starters panel" open>' in page
    refused = client.post("/clusters/new", {"appcode": "ops-demo"}).content.decode()
    assert "Start from a template or an example in" in refused
    for name, gpus in (("hello-gpu", 1), ("parameter-servers", 3), ("all-reduce", 2), ("hello-gpu", 1)):
        answer = client.post("/clusters/start", {"start": name, "appcode": "ops-demo"})
        assert answer.status_code == 302
        made = Cluster.objects.latest("pk")
        assert (made.spec["input"], made.spec["output"], made.current_run.gpus) == (None, None, gpus)
    assert made.name == "hello-gpu-2"
    assert '<details class="starters panel">' in client.get("/clusters/new").content.decode(), "known by now"
    # Where there is a place for results, they are kept.
    Datastore.objects.create(appcode=people.ops, name="our-results", kind="local", spec={"path": "/data"})
    Datastore.objects.create(appcode=people.ops, name="holy-data", kind="local", spec={"path": "/data/holy"})
    kept = sent(client.get("/clusters/new?start=parallel").content.decode())
    assert (kept["output"], "--output /elearn/output/$TASK_INDEX" in kept["command"]) == ("our-results", True)
    Datastore.objects.all().delete()
    body = sent(client.get("/clusters/new?start=parameter-servers").content.decode())
    assert (body["name"], body["ps_count"], body["worker_count"]) == ("parameter-servers-2", "1", "2")
    assert client.post("/clusters/start", {"start": "nothing", "appcode": "ops-demo"}).status_code == 404
    assert "Start from a template" not in client.get("/clusters/new?clone=ops-demo/hello-gpu").content.decode()
    hello = {"start": "hello-gpu", "appcode": "ops-demo"}
    people.ops.gpu_quota = 0
    people.ops.save()
    client.post("/clusters/start", hello)
    assert Cluster.objects.latest("pk").current_run.gpus == 0
    # An example without a suitable image shows the error in the form; users start it only in appcodes where they may deploy.
    Image.objects.filter(name="tensorflow").update(enabled=False)
    assert "No image on offer has TensorFlow" in client.post("/clusters/start", hello).content.decode()
    made = Cluster.objects.count()
    assert as_person(people.victor).post("/clusters/start", hello).status_code == 403
    assert as_person(people.mallory).post("/clusters/start", hello).status_code == 404
    assert Cluster.objects.count() == made


def test_a_clone_is_the_same_under_the_next_free_name(make_cluster, people, as_person, stores):
    make_cluster("demo", workers=3, env={"A": " spaces "}, input="data", timeLimit=7200)
    make_cluster("demo-2")
    client = as_person(people.bob)
    body = sent(client.get("/clusters/new?clone=ops-demo/demo").content.decode())
    assert (body["name"], body["worker_count"], body["input"]) == ("demo-3", "3", "data")
    assert client.post("/clusters/new", body).status_code == 302
    from clusters.runs.models import Cluster

    first, clone = Cluster.objects.get(name="demo"), Cluster.objects.get(name="demo-3")
    assert first.spec == clone.spec


def test_redeploy_with_changes_makes_the_next_run(make_cluster, people, as_person):
    cluster = make_cluster("demo", phase="Failed", workers=1)
    client = as_person(people.alice)
    body = sent(client.get("/clusters/ops-demo/demo/change").content.decode())
    assert "name" not in body
    answer = client.post("/clusters/ops-demo/demo/change", body | {"command": "echo again"})
    assert answer.status_code == 302
    cluster.refresh_from_db()
    assert (cluster.run_count, cluster.current_run.spec["command"]) == (2, "echo again")


def test_changes_while_a_run_is_alive_change_nothing_and_lose_nothing(make_cluster, people, as_person):
    cluster = make_cluster("demo", phase="Running")
    client = as_person(people.alice)
    body = sent(client.get("/clusters/ops-demo/demo/change").content.decode())
    page = client.post("/clusters/ops-demo/demo/change", body | {"command": "echo typed"}).content.decode()
    assert "has not ended yet" in page
    assert sent(page)["command"] == "echo typed"
    cluster.refresh_from_db()
    assert (cluster.run_count, cluster.spec["command"]) == (1, "true")


def test_a_run_that_waits_gives_way_to_the_changed_one(make_cluster, people, as_person):
    cluster = make_cluster("demo", phase="Queued", workers=1)
    client = as_person(people.alice)
    form = client.get("/clusters/ops-demo/demo/change").content.decode()
    assert "Run 1 waits. With your changes it is ended" in form
    assert client.post("/clusters/ops-demo/demo/change", sent(form) | {"command": "echo less"}).status_code == 302
    cluster.refresh_from_db()
    assert (cluster.run_count, cluster.current_run.spec["command"]) == (2, "echo less")
    assert cluster.runs.get(number=1).phase == "Stopped"


def test_the_preview_tells_tasks_gpus_and_cost_before_there_is_a_name(page_catalogue, people, as_person):
    from django.utils import timezone

    from billing.models import Price

    Price.objects.create(
        sku="gpu", per_hour="2", valid_from=timezone.now().replace(microsecond=0) - dt.timedelta(days=1)
    )
    client = as_person(people.alice)
    body = sent(client.get("/clusters/new").content.decode())
    assert body["master_flavor"] == "middle-1-gpu"
    body |= {"master_flavor": "small", "worker_flavor": "middle-1-gpu", "worker_count": "3"}
    body |= {"time_limit": "120 min", "time_limit_unit": "hours"}
    page = client.post("/clusters/preview", body).content.decode()
    assert "<dd>4</dd>" in page
    assert "<dd>3</dd>" in page
    assert "6.00" in page
    assert "12.00" in page
    assert "Still needed: Name, Command." in page
    # Spare GPUs have a price of their own; cores and memory keep theirs.
    Price.objects.create(
        sku="spare-gpu", per_hour="0.5", valid_from=timezone.now().replace(microsecond=0) - dt.timedelta(hours=1)
    )
    assert "6.00" in client.post("/clusters/preview", body).content.decode()
    page = client.post("/clusters/preview", body | {"priority_class": "spare"}).content.decode()
    assert "1.50" in page
    assert "3.00" in page
    assert "6.00" not in page


def test_the_preview_of_redeploy_has_the_estimate_and_what_differs(make_cluster, people, as_person):
    make_cluster("demo", phase="Failed", workers=1)
    client = as_person(people.alice)
    body = sent(client.get("/clusters/ops-demo/demo/change").content.decode())
    address = "/clusters/preview?change=ops-demo/demo"
    page = client.post(address, body).content.decode()
    assert "Nothing differs." in page
    assert "<dt>Tasks</dt><dd>2</dd>" in page
    page = client.post(address, body | {"worker_count": "3", "master_flavor": "small"}).content.decode()
    assert "<dt>How many workers</dt><dd><del>1</del> → <ins>3</ins></dd>" in page
    assert "<del>Middle + 1 GPU · 1 core, 2 GiB</del> → <ins>Small" in page
    assert "curl -X PUT http://testserver/api/v1/appcodes/ops-demo/clusters/demo" in page
    assert client.post("/clusters/preview?change=ops-demo/nothing", body).status_code == 404
    assert as_person(people.mallory).post(address, body).status_code == 404


def differs(page: str) -> str:
    return page[page.index('id="differences"') :].partition("</section>")[0]


def test_redeploy_compares_files_by_their_lines_and_not_by_how_json_is_written(make_cluster, people, as_person):
    lines = [f"x{n} = {n}" for n in range(40)]
    code = {"files": {"train.py": "\n".join(lines), "same.txt": "same"}}
    hook = {"on": "failure", "command": "date", "timeLimit": 60}
    make_cluster("demo", phase="Failed", code=code, hooks=[hook], command="echo " + "a" * 300 + " --lr 1")
    client = as_person(people.alice)
    address = "/clusters/preview?change=ops-demo/demo"
    body = sent(client.get("/clusters/ops-demo/demo/change").content.decode())
    # As JSON.stringify of a browser writes it.
    body |= {name: json.dumps(json.loads(body[name]), separators=(",", ":")) for name in ("code_files", "hooks")}
    assert "Nothing differs." in differs(client.post(address, body).content.decode())
    lines[20] = "x20 = 21"
    files = {"train.py": "\n".join(lines), "same.txt": "same"}
    page = differs(client.post(address, body | {"code_files": json.dumps(files)}).content.decode())
    assert "<code>train.py</code>" in page
    assert "same.txt" not in page
    shown = re.findall(r'<span class="(plus|minus|same)">. (.*?)</span>', page)
    assert shown == [
        ("same", "…"), ("same", "x18 = 18"), ("same", "x19 = 19"), ("minus", "x20 = 20"), ("plus", "x20 = 21"),
        ("same", "x21 = 21"), ("same", "x22 = 22"),
    ]  # fmt: skip
    hooks = json.dumps([json.loads(body["hooks"])[0] | {"command": "whoami"}])
    page = differs(client.post(address, body | {"hooks": hooks}).content.decode())
    assert "whoami" in page
    assert "<pre" in page
    assert "code" not in re.findall(r"<dt>(.*?)</dt>", page)
    # Of a long line, the place that differs is shown.
    page = differs(client.post(address, body | {"command": "echo " + "a" * 300 + " --lr 2"}).content.decode())
    assert "--lr 1</del>" in page
    assert "--lr 2</ins>" in page
    page = differs(client.post(address, body | {"command": "pip list\necho " + "a" * 300 + " --lr 1"}).content.decode())
    assert '<span class="plus">+ pip list</span>' in page


def test_the_preview_judges_what_is_typed_and_nothing_else(make_cluster, people, as_person):
    make_cluster("taken")
    client = as_person(people.alice)
    body = sent(client.get("/clusters/new").content.decode()) | {"name": "free", "command": "true"}
    page = client.post("/clusters/preview", body | {"name": "taken"}).content.decode()
    assert (
        '<b><a href="#id_name">Name</a></b><span>: ops-demo already has a cluster “taken”; choose another name.' in page
    )
    # What the run costs and needs does not hang on these: the numbers are there, and no promise.
    for wrong in ({"name": "taken"}, {"retries": "x"}, {"env": "1A=1"}):
        page = client.post("/clusters/preview", body | wrong).content.decode()
        assert "<dt>Tasks</dt><dd>1</dd>" in page
        assert "Starts now" not in page
    page = client.post("/clusters/preview", body | {"master_flavor": "gone"}).content.decode()
    assert '<div class="is-old">\n  <div id="estimate" hx-preserve>' in page
    assert "Starts now" not in page
    page = client.post("/clusters/preview", body | {"name": "", "master_flavor": "small"}).content.decode()
    assert "Would start now" in page
    # A run beyond the quota is priced as it was typed.
    many = {"worker_flavor": "middle-1-gpu", "worker_count": "11"}
    page = client.post("/clusters/preview", body | many).content.decode()
    assert "<dt>GPUs</dt><dd>12</dd>" in page
    assert "It needs 12 GPUs, and the quota of ops-demo is 8." in page
    assert "Starts now" not in page
    page = client.post("/clusters/preview", body | {"schedule_after": "2020-01-01T10:00"}).content.decode()
    assert "The time to start at is past (2020-01-01 10:00 UTC)" in page
    page = client.post("/clusters/preview", body | {"master_flavor": "small"}).content.decode()
    assert "It asks for no GPU." in page
    assert "It installs" not in page
    page = client.post("/clusters/preview", body | {"requirements": "six\nleaf>=1"}).content.decode()
    assert "✓ Starts now</b> It installs 2 packages first." in page
    assert '<div id="estimate">' in page


def test_whom_the_quota_keeps_reads_who_holds_it_and_asks_for_more(
    make_cluster, people, as_person, monkeypatch, django_capture_on_commit_callbacks
):
    from clusters import wakeups
    from clusters.catalog.models import Flavor
    from portal.actions import requests
    from portal.manifests.appcode import Granted
    from tests.api.client import api_of

    now = dt.datetime.now(dt.UTC)
    for number, workers in enumerate((1, 0, 0, 1), 1):
        make_cluster(f"holds-{number}", phase="Running", workers=workers, run={"admitted_at": now})
    client = as_person(people.alice)
    body = sent(client.get("/clusters/new?appcode=ops-demo").content.decode()) | {"name": "more", "command": "true"}
    body |= {"worker_flavor": "middle-1-gpu", "worker_count": "2"}
    page = client.post("/clusters/preview", body).content.decode()
    named = [
        f'<a href="/clusters/ops-demo/holds-{n}?run=1">holds-{n}/1</a> ({gpus})'
        for n, gpus in ((1, "2 GPUs"), (4, "2 GPUs"), (2, "1 GPU"))
    ]
    held = f"needs 3 GPUs, 2 of 8 of ops-demo are free; held by {', '.join(named)} and 1 more run."
    assert held in page
    larger = "/appcodes/ops-demo/request?gpus="
    assert f'href="{larger}9"' in page
    assert larger not in as_person(people.bob).post("/clusters/preview", body).content.decode()
    # A request beyond the quota is refused with a link to the quota request page at the field, and in REST.
    client = as_person(people.alice)
    body["worker_count"] = "11"
    page = client.post("/clusters/new", body).content.decode()
    assert list(wrong_fields(page)) == ["worker_count"]
    assert f'<a href="{larger}12" target="_blank">Request quota</a>' in page
    assert f'<a href="{larger}12"' in client.post("/clusters/preview", body).content.decode()
    spec = {
        "image": "tensorflow",
        "command": "true",
        "roles": {"master": {"flavor": "middle-1-gpu"}, "worker": {"flavor": "middle-1-gpu", "count": 11}},
    }
    refused = {"kind": "cluster", "metadata": {"name": "more"}, "spec": spec}
    status, problem = api_of(people.bob).post("/appcodes/ops-demo/clusters", refused)
    assert (status, problem["errors"][0]["see"].endswith(f"{larger}12")) == (422, True)
    served = [{"name": "web", "port": 8080}]
    spec = {"type": "web", "image": "tensorflow", "flavor": "nine", "command": "true", "endpoints": served}
    Flavor.objects.create(name="nine", title="Nine", cpu_milli=1000, memory_mb=1024, gpus=9)
    refused = {"kind": "application", "metadata": {"name": "more"}, "spec": spec}
    (error,) = api_of(people.bob).post("/appcodes/ops-demo/applications", refused)[1]["errors"]
    assert (error["path"], error["see"].endswith(f"{larger}9")) == ("spec.flavor", True)
    asked = client.get(f"{larger}12").content.decode()
    assert re.search(r'name="gpus" value="12"', asked)
    assert (
        client.post("/appcodes/ops-demo/request", {"gpus": "12", "storage": "1024", "reason": "Two models"}).status_code
        == 302
    )
    # The pending request asks for more, so a link with fewer GPUs does not replace its number.
    assert re.search(r'name="gpus" value="12"', client.get(f"{larger}9").content.decode())
    refused_too = as_person(people.bob).get(f"{larger}12")
    assert (refused_too.status_code, "asked for by its owners: alice." in refused_too.content.decode()) == (403, True)
    client = as_person(people.alice)
    people.ops.refresh_from_db()
    woken = []
    monkeypatch.setattr(wakeups, "send", lambda *said, **_: woken.append(said))
    with django_capture_on_commit_callbacks(execute=True):
        requests.approve(people.ops, Granted(revision=people.ops.asked.revision), acting_user=people.root)
    assert ("clusters.tasks.admit_waiting", people.ops.pk) in woken
    # The machines still have too few GPUs; that is another sentence, without a link to the request page.
    page = client.post("/clusters/preview", body).content.decode()
    assert "Can never start" in page
    assert larger not in page


def test_who_waits_behind_others_asks_for_what_those_need_too(make_cluster, people, as_person):
    from clusters.runs import quota

    for name, workers in (("first", 7), ("second", 6), ("third", 1)):
        quota.admit(make_cluster(name, workers=workers).current_run.pk)
    page = as_person(people.alice).get("/clusters/ops-demo/third").content.decode()
    assert '"/appcodes/ops-demo/request?gpus=17"' in page


def test_a_framework_that_the_image_lacks_is_refused_before_it_runs(page_catalogue, people, as_person):
    from clusters.catalog.models import Image
    from clusters.catalog.software import why_not_in

    Image.objects.create(name="torch", title="Torch", environment="/opt/torch", frameworks=["pytorch", "jax"])
    client = as_person(people.alice)
    body = sent(client.get("/clusters/new").content.decode()) | {"name": "free", "command": "true"}
    for image, framework, refused in (
        ("torch", "tensorflow", True),
        ("torch", "pytorch", False),
        ("python", "pytorch", False),  # its frameworks are not recorded
    ):
        asked = body | {"image": image, "framework": framework}
        sentence = "“Torch” has no TensorFlow (it has: PyTorch, JAX); choose another image or framework."
        page = client.post("/clusters/preview", asked).content.decode()
        assert (f'<b><a href="#id_framework">Framework</a></b><span>: {sentence}' in page) == refused
    page = client.post("/clusters/new", body | {"image": "torch"}).content.decode()
    assert list(wrong_fields(page)) == ["framework"]
    assert not why_not_in(Image.objects.get(name="torch"), "web"), "what a web program needs people bring"
    # The form starts with a framework that the image has; examples set both themselves.
    for address, begun in (
        ("new", ("tensorflow", "tensorflow")),
        ("new?start=hello-gpu", ("tensorflow", "tensorflow")),
    ):
        form = sent(client.get(f"/clusters/{address}").content.decode())
        assert (form["image"], form["framework"]) == begun
    Image.objects.exclude(name="torch").update(enabled=False)
    assert sent(client.get("/clusters/new").content.decode())["framework"] == "pytorch"


def test_a_new_form_begins_the_same_on_every_visit(make_cluster, people, as_person):
    from portal.models import Appcode

    cluster = make_cluster("demo", by=people.bob)
    cluster.spec["roles"]["master"]["flavor"] = "small"
    cluster.save()
    for who in (people.bob, people.alice):
        assert sent(as_person(who).get("/clusters/new").content.decode())["master_flavor"] == "middle-1-gpu"
    Appcode.objects.update(gpu_quota=0, gpu_borrow=0)
    assert sent(as_person(people.bob).get("/clusters/new").content.decode())["master_flavor"] == "small"


def test_the_preview_says_what_can_never_fit(page_catalogue, people, as_person):
    client = as_person(people.alice)
    body = sent(client.get("/clusters/new").content.decode())
    page = client.post(
        "/clusters/preview", body | {"worker_flavor": "middle-1-gpu", "worker_count": "99"}
    ).content.decode()
    assert "quota of ops-demo is 8" in page


def test_the_curl_command_carries_quotes_and_newlines(page_catalogue, people, as_person):
    import html
    import subprocess

    command = "echo \"it's\" '$(x)'\necho $HOME"
    client = as_person(people.alice)
    body = sent(client.get("/clusters/new").content.decode()) | {"name": "quoted", "command": command}
    page = client.post("/clusters/preview", body).content.decode()
    curl = html.unescape(page.split('<pre id="curl-text">')[1].split("</pre>")[0])
    # The shell passes the manifest to curl unchanged; `cat` stands in for curl.
    script = "curl() { cat; }\n" + curl
    shown = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env={"TOKEN": "t"}).stdout
    assert json.loads(shown)["spec"]["command"] == command


def test_another_appcode_offers_its_own_datastores(page_catalogue, people, as_person, stores):
    from datastores.models import Datastore

    Datastore.objects.create(appcode=people.flight, name="only-flight", kind="nfs", spec={"server": "x", "path": "/x"})
    client = as_person(people.root)
    page = client.get("/clusters/datastores?appcode=flight-demo&input=data").content.decode()
    assert "only-flight" in page
    page = client.get("/clusters/datastores?appcode=ops-demo&input=only-flight").content.decode()
    assert "only-flight" not in page


def test_whoever_may_not_create_is_told_so(page_catalogue, people, as_person):
    assert "An appcode first" in as_person(people.victor).get("/clusters/new").content.decode()


def test_import_takes_what_export_writes(make_cluster, people, as_person, stores):
    from django.core.files.uploadedfile import SimpleUploadedFile

    from clusters.runs.models import Cluster

    make_cluster("demo", workers=2, env={"A": "1"}, output="results")
    client = as_person(people.alice)
    exported = client.get("/clusters/ops-demo/demo/export")
    assert 'filename="demo.json"' in exported["Content-Disposition"]
    document = json.loads(exported.content)
    document["metadata"]["name"] = "copy"
    file = SimpleUploadedFile("demo.json", json.dumps(document).encode())
    assert client.post("/clusters/import", {"file": file})["Location"] == "/clusters/ops-demo/copy"
    assert Cluster.objects.get(name="copy").spec == Cluster.objects.get(name="demo").spec


def test_a_viewer_may_not_import(page_catalogue, people, as_person, document):
    page = as_person(people.victor).post("/clusters/import", {"manifest": json.dumps(document("one"))}).content.decode()
    assert "metadata.appcode: You need to be developer or owner of ops-demo" in page


def test_import_of_several_makes_all_or_none(page_catalogue, people, as_person, document):
    from clusters.runs.models import Cluster

    client = as_person(people.alice)
    two = [document("one"), document("two", image="no-such")]
    page = client.post("/clusters/import", {"manifest": json.dumps(two)}).content.decode()
    assert "manifest 2.spec.image: The catalogue has no image" in page
    assert Cluster.objects.count() == 0
    two[1] = document("two")
    items = {"kind": "List", "items": two}
    assert client.post("/clusters/import", {"manifest": yaml.safe_dump(items)})["Location"] == "/clusters"
    assert Cluster.objects.count() == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "[" * 3000,
        '{"kind": "pod"}',
        "3",
        "null",
        "[null]",
        '{"a": "\\ud800"}',
        '{"kind":"cluster","spec":{}}',
    ],
)
def test_import_says_what_is_wrong(text, page_catalogue, people, as_person):
    answer = as_person(people.alice).post("/clusters/import", {"manifest": text})
    assert answer.status_code == 200
    assert "errorlist" in answer.content.decode()


def test_what_one_machine_does_not_need_is_behind_several_machines(page_catalogue, people, as_person):
    client = as_person(people.alice)

    def fold(page: str) -> tuple[bool, str]:
        start, _, rest = page.partition('<details class="fold" id="several"')
        assert 'name="master_flavor"' in start
        assert 'name="ps_flavor"' not in start
        head, _, inside = rest.partition(">")
        return " open " in head, inside.split("</details>")[0]

    is_open, inside = fold(client.get("/clusters/new").content.decode())
    assert not is_open
    for name in ("ps_flavor", "ps_count", "worker_flavor", "worker_count", "evaluator_flavor", "at_once"):
        assert f'name="{name}"' in inside
    wrong = {"appcode": "ops-demo", "name": ""}
    for asked in ({"worker_flavor": "small", "worker_count": "2"}, {"ps_count": "x"}, {"framework": "parallel"}):
        page = client.post(
            "/clusters/new", sent(client.get("/clusters/new").content.decode()) | wrong | asked
        ).content.decode()
        assert fold(page)[0], asked


@pytest.mark.parametrize(
    ("zone", "utc"),
    [
        ("Asia/Shanghai", "2999-01-01T00:00:00+00:00"),
        # Browsers may report zones that are not in the list.
        ("Etc/GMT-8", "2999-01-01T00:00:00+00:00"),
        ("", "2999-01-01T08:00:00+00:00"),
        ("../x", "2999-01-01T08:00:00+00:00"),
    ],
)
def test_a_schedule_is_typed_in_ones_own_zone(zone, utc):
    from clusters.cluster.form.data import manifest_of

    typed = {"schedule_after": "2999-01-01T08:00", "schedule_zone": zone}
    assert manifest_of(typed)[0]["spec"]["scheduleAfter"] == utc
