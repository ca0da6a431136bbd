"""Sweeps in a browser: the form covers what a manifest can hold, and the page shows the results."""

from __future__ import annotations

import datetime as dt
import json
import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusters.sweeps.manifest import Goal, SweepSpec
from clusters.sweeps.pages.charts import _course
from clusters.sweeps.points import Outcome
from portal.pages.charts import Dimension, draw_strands, without_outliers
from tests.clusters.forms import sent, wrong_fields

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
NUMBERS = st.integers(-99, 99) | st.floats(-1e6, 1e6).map(lambda value: float(f"{value:.6g}"))
TEXTS = st.from_regex(r"[a-z][a-z0-9.-]{0,5}", fullmatch=True).filter(
    lambda text: text not in ("true", "false", "null")
)


@st.composite
def parameters(draw):
    found = {}
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        if draw(st.booleans()):
            values = draw(st.lists(TEXTS | st.integers(0, 9) | st.booleans(), min_size=1, max_size=3, unique_by=str))
            found[name] = {"type": "choice", "values": values}
        else:
            low, high = sorted(draw(st.lists(NUMBERS, min_size=2, max_size=2, unique=True)))
            found[name] = {"type": "float", "low": low, "high": high}
            if low > 0 and draw(st.booleans()):
                found[name]["log"] = True
            elif draw(st.booleans()):
                found[name]["step"] = draw(st.floats(0.5, 9))
    leading = next((name for name, each in found.items() if each["type"] == "choice"), None)
    for name, each in found.items():
        if leading and name != leading and draw(st.booleans()):
            each["when"] = {leading: found[leading]["values"][:1]}
    return found


@settings(deadline=None, max_examples=60)
@given(said=parameters(), folds=st.none() | st.integers(2, 5), trials=st.integers(1, 50), is_found=st.booleans())
def test_every_sweep_survives_the_form(said, folds, trials, is_found):
    from django.http import QueryDict

    from clusters.sweeps.manifest import SweepManifest
    from clusters.sweeps.pages.form import PARTS, SweepForm, fields_of, rows_of
    from portal.manifests import parse

    template = {
        "image": "i", "command": " ".join(f"{{{name}}}" for name in said), "roles": {"master": {"flavor": "small"}},
        "input": {"from": "prepare", "path": "a"},
    }  # fmt: skip
    goal = {"metric": "val_loss", "direction": "maximize"} if is_found else None
    early = {"minSteps": trials, "factor": 4, "brackets": 2} if is_found and not folds else None
    spec = {
        "template": template, "parameters": said, "goal": goal, "sampler": "random", "trials": trials, "parallel": 3,
        "retries": 2, "folds": folds, "stopEarly": early,
    }  # fmt: skip
    manifest = parse(SweepManifest, {"metadata": {"name": "x", "appcode": "a"}, "spec": spec})
    data = QueryDict(mutable=True)
    data.update(fields_of("x", "a", manifest.spec))
    for number, row in enumerate(rows_of(manifest.spec)):
        data.update({f"parameter-{number}-{part}": row[part] for part in PARTS})
    form = SweepForm(data)
    assert form.is_valid(), form.errors
    assert form.manifest == manifest


LR = {"parameter-0-name": "lr", "parameter-0-type": "float", "parameter-0-low": "0.001", "parameter-0-high": "0.1"}
BAD = [
    ({"parameter-0-low": "much"}, "Give a number."),
    ({"parameter-0-high": "0.0001"}, "It has to be more than low, 0.001."),
    ({"parameter-0-name": "depth"}, "Nothing reads it: write {depth} or $depth into the command"),
    ({"parameter-0-name": ""}, "Fill in its name."),
    ({"parameter-1-name": "lr", "parameter-1-low": "1"}, "There are two of this name."),
    ({"parameter-0-when": "always"}, "Write NAME = VALUE"),
    ({"parameter-0-type": "choice"}, "Give the values to choose from."),
    ({"metric": ""}, "TPE needs a metric to optimize."),
    ({"trials": "none"}, "trials"),
    ({"folds": "3"}, "Folds need an input, and the cluster has none."),
    ({"name": "a" * 31}, "name"),
]


@pytest.mark.parametrize(("typed", "said"), BAD, ids=lambda each: each if isinstance(each, str) else None)
def test_a_sweep_over_a_cluster_is_refused_at_its_fields_and_else_begins(typed, said, make_cluster, people, as_person):
    from clusters.sweeps.models import Sweep

    make_cluster("train", command="python train.py --rate {lr}")
    client = as_person(people.bob)
    body = sent(client.get("/sweeps/new?from=ops-demo/train").content.decode(), "sweep-form")
    assert (body["name"], json.loads(body["template"])["image"]) == ("train-sweep", "tensorflow")
    body |= {"metric": "loss", **LR}
    page = client.post("/sweeps/new", body | typed).content.decode()
    assert not Sweep.objects.exists()
    assert said in page if " " in said else said in wrong_fields(page)
    assert said in client.post("/sweeps/preview", body | typed).content.decode() or " " not in said
    answer = client.post("/sweeps/new", body)
    assert (answer.status_code, answer["Location"]) == (302, "/sweeps/ops-demo/train-sweep")
    assert Sweep.objects.get().spec["parameters"]["lr"]["high"] == 0.1
    assert as_person(people.mallory).get("/sweeps/ops-demo/train-sweep").status_code == 404
    assert as_person(people.victor).post("/sweeps/new", body | {"name": "mine"}).status_code == 200
    assert Sweep.objects.count() == 1


def test_a_variable_of_the_cluster_is_offered_and_varied(make_cluster, people, as_person):
    from clusters.results.models import Metric, RunMetric
    from clusters.sweeps.models import Sweep

    env = {"LR": "0.3", "HF_TOKEN": "hf_1", "DATA": "$HOME/data"}
    cluster = make_cluster("train", command="python train.py --width=64 --depth 3", env=env)
    for name in ("val_loss", "accuracy", "lr"):
        metric = Metric.objects.create(appcode=cluster.appcode, name=name)
        RunMetric.objects.create(run=cluster.runs.get(), metric=metric, last=1, step=1)
    client = as_person(people.bob)
    page = client.get("/sweeps/new?from=ops-demo/train").content.decode()
    assert re.findall(r'<option value="([^"]+)" data-direction="(\w+)">', page) == [
        ("val_loss", "minimize"),
        ("accuracy", "maximize"),
    ]
    body = sent(page, "sweep-form") | {"metric": "val_loss", **LR, "parameter-0-name": "LR", "parameter-0-low": "much"}
    assert 'data-direction="maximize"' in client.post("/sweeps/new", body).content.decode()
    assert client.post("/sweeps/new", body | {"parameter-0-low": "0.001"}).status_code == 302
    assert list(Sweep.objects.get().spec["parameters"]) == ["LR"]


@pytest.mark.parametrize(
    ("command", "is_fixed"),
    [("train --lr=0.1", True), ("train --lr {lr}", False), ("LR=$lr train --lr 0.1", False), ("train $lr", False)],
)
def test_the_summary_warns_of_an_option_that_stays_as_it_is(command, is_fixed, make_cluster, people, as_person):
    make_cluster("train", command=command)
    client = as_person(people.bob)
    body = sent(client.get("/sweeps/new?from=ops-demo/train").content.decode(), "sweep-form") | {"metric": "loss", **LR}
    page = client.post("/sweeps/preview", body).content.decode()
    assert "<dt>Trials</dt>" in page
    assert ("The command keeps <code>--lr=0.1</code>: write <code>--lr={lr}</code>" in page) == is_fixed


def test_offers_are_what_a_person_may_want_to_vary():
    from clusters.manifest.cluster import ClusterSpec
    from clusters.sweeps.pages.offers import offers

    env = {"LR": "0.3", "SEED": "0", "DROPOUT": "0.5", "HF_TOKEN": "hf_1", "DATA": "$HOME/data", "LONG": "x" * 41}
    command = "python train.py --batch-size=64 --lr 1e-3 --amp optimizer=sgd --twice 1 --twice 1 --width {width}"
    spec = {"image": "i", "command": command, "env": env, "roles": {"master": {"flavor": "small"}}}
    found = {each.name: each for each in offers(ClusterSpec.model_validate(spec))}
    assert {name: (each.find, each.put) for name, each in found.items()} == {
        "LR": ("", ""),
        "SEED": ("", ""),
        "DROPOUT": ("", ""),
        "batch_size": ("--batch-size=64", "--batch-size={batch_size}"),
        "lr": ("--lr 1e-3", "--lr {lr}"),
        "optimizer": ("optimizer=sgd", "optimizer={optimizer}"),
    }
    assert {name: json.loads(each.row) for name, each in found.items()} == {
        "LR": {"name": "LR", "type": "float", "low": "0.03", "high": "3", "log": "on"},
        "SEED": {"name": "SEED", "type": "int", "low": "0", "high": "9"},
        "DROPOUT": {"name": "DROPOUT", "type": "float", "low": "0", "high": "1"},
        "batch_size": {"name": "batch_size", "type": "int", "low": "16", "high": "256", "log": "on"},
        "lr": {"name": "lr", "type": "float", "low": "0.0001", "high": "0.01", "log": "on"},
        "optimizer": {"name": "optimizer", "type": "choice", "values": "sgd"},
    }


def begun(make_cluster, people, points, **more):
    """A sweep with a value for each of `points` points, the third being the best."""
    from clusters.runs.models import Cluster
    from clusters.sweeps.models import Sweep, Trial

    make_cluster("train")
    template = (
        Cluster.objects.get(name="train").spec
        | {"command": "{lr}"}
        | ({"input": {"from": "train"}} if "folds" in more else {})
    )
    spec = {
        "template": template, "parameters": {"lr": {"type": "float", "low": 0.001, "high": 1, "log": True}},
        "goal": {"metric": "loss"}, "trials": points, **more,
    }  # fmt: skip
    sweep = Sweep.objects.create(
        appcode=people.ops, name="lr", spec=spec, created_by=people.bob, acts_for=people.bob, phase="Succeeded", settled=True,
        best={"number": 2, "value": 0.5, "sd": None, "parameters": {"lr": 0.03}},
    )  # fmt: skip
    now = timezone.now()
    Trial.objects.bulk_create(
        Trial(
            sweep=sweep, number=n, fold=fold, parameters={"lr": 0.001 * (1 + n % 900)}, phase="Succeeded",
            value=0.5 + abs(n - 2) + 0.1 * fold, finished_at=now - dt.timedelta(seconds=points - n),
        )
        for n in range(points) for fold in (range(1, spec["folds"] + 1) if "folds" in spec else [0])
    )  # fmt: skip
    return sweep


def numbers(page):
    return [int(part.partition("<")[0]) for part in page.split('<span class="name">')[1:]]


def test_the_page_has_the_best_first_and_draws_so_much_of_ten_thousand(make_cluster, people, as_person):
    begun(make_cluster, people, 10_000)
    client = as_person(people.victor)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        page = client.get("/sweeps/ops-demo/lr").content.decode()
    assert len(queries) < 20
    assert numbers(page)[:5] == [2, 1, 3, 0, 4]
    assert numbers(client.get("/sweeps/ops-demo/lr?sort=-number").content.decode())[:2] == [9999, 9998]
    assert numbers(client.get("/sweeps/ops-demo/lr?trial=77").content.decode()) == [77]
    assert "Train again" not in page
    following = page.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    assert numbers(client.get(f"/sweeps/ops-demo/lr{following}").content.decode())[0] == 50
    drawn = client.get("/sweeps/ops-demo/lr/charts").content.decode()
    assert "The 100 best and the 400 newest of 10,000." in drawn
    assert drawn.count('class="rank-') == 500 + 5
    assert "<code>lr</code>" in drawn.partition('class="importance"')[2]


def test_of_folds_a_point_is_one_row_with_their_mean(make_cluster, people, as_person):
    begun(make_cluster, people, 4, folds=3)
    page = as_person(people.victor).get("/sweeps/ops-demo/lr/table").content.decode()
    assert numbers(page) == [2, 1, 3, 0]
    assert "<b>0.7</b> <small>± 0.08165</small>" in page
    assert "<b>0.7</b>" in page


def test_what_is_done_with_it(make_cluster, people, as_person):
    from clusters.runs.models import Cluster
    from clusters.sweeps.models import Sweep

    sweep = begun(make_cluster, people, 4)
    client = as_person(people.bob)
    body = sent(client.get("/clusters/new?trial=ops-demo/lr/2").content.decode())
    assert (body["name"], body["command"]) == ("lr-2-again", "0.003")
    answer = client.post("/sweeps/ops-demo/lr/trials/2/train")
    assert answer["Location"] == "/clusters/ops-demo/lr-2-again"
    assert Cluster.objects.get(name="lr-2-again").spec["env"] == {"lr": "0.003"}
    page = client.post("/sweeps/ops-demo/lr/change", {"trials": "2", "parallel": "1"}).content.decode()
    assert "4 have begun already." in page
    assert client.post("/sweeps/ops-demo/lr/change", {"trials": "6", "parallel": "3"}).status_code == 302
    sweep.refresh_from_db()
    assert (sweep.phase, sweep.spec["trials"], sweep.spec["parallel"]) == ("Running", 6, 3)
    assert client.post("/sweeps/ops-demo/lr/pause").status_code == 302
    assert "data-announce" in client.get("/sweeps/ops-demo/lr/live").content.decode()
    # Actions that lose something need confirmation, even without JavaScript.
    assert "living trials are ended" in client.post("/sweeps/ops-demo/lr/cancel").content.decode()
    assert Sweep.objects.get().phase == "Paused"
    client.post("/sweeps/ops-demo/lr/cancel", {"confirmed": "yes"})
    assert Sweep.objects.get().phase == "Stopped"
    client.post("/sweeps/ops-demo/lr/delete", {"confirmed": "yes"})
    assert client.get("/sweeps/ops-demo/lr").status_code == 404
    assert "No sweeps yet" in client.get("/sweeps").content.decode()


def test_put_and_the_page_change_the_same_fields_and_the_others_are_refused_by_their_json_keys(
    make_cluster, people, as_person
):
    from clusters.sweeps.manifest import SweepSpec
    from portal.manifests.kept import changeable
    from tests.api.client import api_of

    sweep = begun(make_cluster, people, 4)
    spec = SweepSpec.known(sweep.spec)
    others = {
        "template": {**spec["template"], "retries": 3}, "parameters": {"lr": {"type": "choice", "values": [1, 2]}}, "goal": None,
        "sampler": "tpe", "seed": 1, "trials": 5, "parallel": 3, "retries": 2, "stopEarly": {"minSteps": 4}, "folds": 2,
        "oneRun": True,
    }  # fmt: skip
    # The other fields without which a manifest with this one is invalid.
    with_folds = {"template": {**spec["template"], "input": {"from": "train"}}}
    copies = {
        "template": {
            "framework": "parallel",
            "image": "python",
            "command": "{lr}",
            "roles": {"worker": {"flavor": "small"}},
        }
    }
    needed = {"folds": with_folds, "oneRun": copies}
    assert others.keys() == spec.keys()
    page = as_person(people.bob).get("/sweeps/ops-demo/lr").content.decode()
    api = api_of(people.bob)
    for key, value in others.items():
        sweep.spec = {**spec, **needed.get(key, {})}
        sweep.save()
        status, body = api.put("/appcodes/ops-demo/sweeps/lr", {"spec": {**sweep.spec, key: value}})
        if key in changeable(SweepSpec):
            assert (status, body["spec"][key]) == (200, value)
        else:
            assert (status, [each["path"] for each in body["errors"]]) == (422, [f"spec.{key}"])
        assert (f'<input name="{key}"' in page) == (key in changeable(SweepSpec))
    assert as_person(people.bob).post("/sweeps/ops-demo/lr/change", {"retries": "7"}).status_code == 302
    sweep.refresh_from_db()
    assert sweep.spec["retries"] == 7
    wrong = as_person(people.bob).post("/sweeps/ops-demo/lr/change", {"retries": "99"}).content.decode()
    assert "At most 10." in wrong
    assert 'value="99" aria-invalid="true"' in wrong


def test_a_trial_is_started_again_by_one_post(make_cluster, people, as_person):
    from clusters.runs.models import Cluster

    begun(make_cluster, people, 4)
    client, said = as_person(people.bob), {"appcode": "ops-demo", "trial": "ops-demo/lr/1"}
    answer = client.post("/clusters/start", said)
    assert (answer.status_code, answer["Location"]) == (302, "/clusters/ops-demo/lr-1-again")
    made = Cluster.objects.get(name="lr-1-again")
    assert (made.part_of, made.created_by) == ("", people.bob)
    assert client.post("/clusters/start", said)["Location"] == "/clusters/ops-demo/lr-1-again-2"
    for missing in ("ops-demo/lr/7", "ops-demo/other/1", "ops-demo"):
        assert client.post("/clusters/start", said | {"trial": missing}).status_code == 404


def test_the_end_of_an_axis_tells_of_values_beyond():
    values = [0.1, 0.12, 0.13, 0.15, 7.0]
    low, high = without_outliers(values)
    [axis] = draw_strands([Dimension("loss", values, low, high)], [("", "")] * 5).axes
    assert axis.ticks[-1].text == "≥ 0.15"
    assert not any(tick.text.startswith("≤") for tick in axis.ticks)


def test_values_beyond_the_axis_of_the_course_are_named():
    spec = SweepSpec.model_construct(goal=Goal(metric="loss", direction="minimize"))
    values = [90.0, 0.1, 0.12, 0.13, 0.15, 7.0, 8.0, 9.0, *(0.11, 0.14) * 9]
    chart, said = _course(spec, [Outcome(n, {}, value) for n, value in enumerate(values, 1)])
    assert said == "Beyond the axis, drawn at its edge: trial 1 (90); trial 6 (7); trial 7 (8); and 1 more."
    assert float(chart.y_ticks[-1].text) < 1, "the best so far begins beyond, too"
    assert _course(spec, [Outcome(1, {}, 0.1), Outcome(2, {}, 0.2)])[1] == ""


@given(
    st.lists(
        st.tuples(st.none() | st.floats(1e-9, 1e9), st.sampled_from(["a", "b", None]), st.floats(-1e9, 1e9)), min_size=1
    )
)
@example([(None, "a", 0.0), (None, "a", 5e-324)])
def test_every_strand_stays_within_its_drawing(rows):
    low, high = without_outliers([value for _, _, value in rows])
    assert min(value for _, _, value in rows) <= low <= high <= max(value for _, _, value in rows)
    dimensions = [
        Dimension("lr", [row[0] for row in rows], 1e-3, 1.0, log=True),
        Dimension("optimizer", [row[1] for row in rows], choices=("a", "b")),
        Dimension("loss", [row[2] for row in rows], low, high),
    ]
    drawn = draw_strands(dimensions, [(str(n), "") for n in range(len(rows))])
    assert [strand.text for strand in drawn.strands] == [str(n) for n in reversed(range(len(rows)))]
    for strand in drawn.strands:
        for x, y in (each.split() for piece in strand.path.split("M") for each in piece.split("L") if each.strip()):
            assert 0 <= float(x) <= 1000
            assert 0 <= float(y) <= 1000
