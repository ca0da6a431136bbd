"""Sweeps whose trials share a run: what each copy sees, their results, and what happens if the run ends early."""

from __future__ import annotations

import re
import subprocess

import pytest
from django.utils.timezone import now
from hypothesis import given, settings
from hypothesis import strategies as st

from clusters.cluster import actions as clusters
from clusters.frameworks import variables
from clusters.frameworks.base import SHELL
from clusters.manifest.cluster import ClusterSpec
from clusters.runs import budgets
from clusters.runs.models import Cluster, Run, Task
from clusters.sweeps import actions, copies
from clusters.sweeps import loop as sweeps
from clusters.sweeps.manifest import SweepSpec, trial_spec
from clusters.sweeps.models import Sweep
from clusters.sweeps.parameters import written
from clusters.sweeps.search.sampler import next_points
from clusters.sweeps.totals import sums_of
from portal.errors import Invalid
from tests.api.client import api_of
from tests.clusters.sweeps.test_loop import ended, trials, until

pytestmark = pytest.mark.django_db(transaction=True)
ROLES = {"worker": {"flavor": "small", "count": 1}}
# Prints the program's arguments and its environment, without what bash adds.
SHOW = (
    'printf "<%s>" --lr={lr} "$momentum" \'{momentum}\' {other} $kind_ ${lr}\n'
    "env -0 | sort -z | grep -azvE '^(_|SHLVL|PWD|OLDPWD|TASK_INDEX)='"
)


def spec_of(command, parameters, env=None, **others):
    template = {"framework": "parallel", "image": "python", "command": command, "roles": ROLES, "env": env or {}}
    return SweepSpec.model_validate({"template": template, "parameters": parameters, "oneRun": True, **others})


def shell(body, **env):
    """Returns what bash prints for a cluster's spec, in a minimal environment."""
    argv = variables.started((*SHELL, body["command"]), body["env"])
    given_ = {"PATH": "/usr/bin:/bin", **variables.given(body["env"]), **env}
    return subprocess.run(argv, env=given_, capture_output=True, check=True).stdout


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20),
        min_size=1,
        max_size=3,
        unique=True,
    ),
    st.text("{}$lr'\" \\\n", max_size=12),
    st.sets(st.sampled_from(["lr", "kind", "momentum"])),
)
def test_each_copy_sees_what_it_would_see_in_a_cluster_of_its_own(kinds, odd, replaced):
    parameters = {
        "lr": {"type": "choice", "values": [0.1, 3]},
        "kind": {"type": "choice", "values": kinds},
        "momentum": {"type": "choice", "values": [True], "when": {"lr": [3]}},
    }
    env = {"BOTH": "{lr}" + odd + "{kind}", "plain": odd, "refers": "$kind ${momentum} $momentum_"}
    env |= dict.fromkeys(replaced, odd + "{lr} $plain")
    spec = spec_of(SHOW, parameters, env, sampler="grid")
    points = next_points(spec, 0, spec.points, ())
    body = copies.shared_spec(spec, points)
    assert ClusterSpec.model_validate(body).count("worker") == len(points) == 2 * len(kinds)
    for index, point in enumerate(points):
        alone = shell(trial_spec(spec, point), TASK_INDEX="0")
        assert shell(body, TASK_INDEX=str(index)) == alone
        assert f"--lr={point['lr']}".encode() in alone
        printed = {line.partition("=")[0]: line for line in alone.decode().split("\0")}
        assert [printed.get(name) for name in parameters] == [
            f"{name}={written(point[name])}" if name in point else None for name in parameters
        ]


def test_a_run_has_as_many_as_its_command_can_hold():
    spec = spec_of("echo $name", {"name": {"type": "choice", "values": ["x" * 200, "y"]}}, trials=3, sampler="random")
    points = [{"name": "x" * 200}] * 1000
    count = copies.fitting(spec, points)
    assert 200 < count < 1000
    ClusterSpec.model_validate(copies.shared_spec(spec, points[:count]))
    with pytest.raises(ValueError, match="64 KiB"):
        ClusterSpec.model_validate(copies.shared_spec(spec, points[: count + 1]))
    assert copies.fitting(spec, [{"name": "y"}] * 1200) == 1000


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("spec.oneRun", {"template": {"framework": "tensorflow", "roles": {"master": {"flavor": "small"}}}}),
        ("spec.oneRun", {"template": {"roles": {"worker": {"flavor": "small", "count": 2}}}}),
        ("spec.template.timeLimit", {"template": {"timeLimit": 60}}),
        ("spec.sampler", {"sampler": "tpe", "trials": 3}),
        ("spec.stopEarly", {"stopEarly": {"minSteps": 1}}),
        ("spec.parameters.UID", {"command": "echo {UID}", "parameters": {"UID": {"type": "choice", "values": [1]}}}),
    ],
)
def test_what_one_run_cannot_do_is_said_at_its_field(one_run, path, changed):
    with pytest.raises(Invalid) as caught:
        one_run(**changed)
    assert [".".join(error.path) for error in caught.value.errors] == [path]


@pytest.fixture
def one_run(sweep_manifest):
    """one_run(command, …) → a SweepManifest whose trials share a run."""

    def make(command="echo loss = {lr}", *, template=None, **spec):
        usual = {"framework": "parallel", "roles": ROLES, **(template or {})}
        return sweep_manifest(command=command, template=usual, oneRun=True, **spec)

    return make


def test_trials_of_one_run_are_judged_each_by_its_own_copy(loop, people, one_run, client):
    command = "echo step 1: loss = {lr}; test {lr} != 4 || exit 3"
    gpu = {"worker": {"flavor": "one-gpu", "count": 1}}
    sweep = actions.create_sweep(one_run(command, parallel=2, template={"roles": gpu}), acting_user=people.bob)
    until(loop, lambda: ended(sweep))
    sweep.refresh_from_db()
    assert trials(sweep) == [(0, "Succeeded", 3), (1, "Succeeded", 1), (2, "Succeeded", 2), (3, "Failed", None)]
    said = "Of 4 trials 3 succeeded, 1 failed; the best is trial 1: loss = 1."
    assert (sweep.phase, sweep.message) == ("Succeeded", said)
    loop.until(lambda: Run.objects.get().gone)
    run = Run.objects.get()
    assert (run.cluster.name, run.gpus) == ("lr-1", 2)
    api = api_of(people.victor)
    rows = api.get("/appcodes/ops-demo/sweeps/lr/trials")[1]["items"]
    assert [(row["cluster"], row["task"], row["run"]) for row in rows] == [("lr-1", f"worker-{n}", 1) for n in range(4)]
    assert rows[3]["message"] == "worker-3 failed with exit code 3: step 1: loss = 4"
    status = api.get("/appcodes/ops-demo/sweeps/lr")[1]["status"]
    assert status["gpuSeconds"] == sum(row["gpuSeconds"] for row in rows) == run.gpu_seconds
    for row in rows:
        assert row["started"]
        assert row["finished"]
    dear = api.get("/appcodes/ops-demo/sweeps/lr/trials?sort=-cost")[1]["items"]
    assert sorted(row["number"] for row in dear) == [0, 1, 2, 3]
    client.force_login(people.victor)
    page = client.get("/sweeps/ops-demo/lr/table").content.decode()
    assert page.count("/clusters/ops-demo/lr-1/logs?task=worker-1") == 2
    assert client.get("/clusters/ops-demo/lr-1/logs?task=worker-1").status_code == 200
    curves = client.get("/sweeps/ops-demo/lr/curves").content.decode()
    assert "trial 1" in curves
    # A trial becomes a cluster of its own, with the values in its command.
    found = api.get("/appcodes/ops-demo/sweeps/lr")[1]
    api_of(people.bob).post("/appcodes/ops-demo/sweeps/lr/trials/1/cluster", {"metadata": {"name": "best"}})
    assert Cluster.objects.get(name="best").spec["command"] == "echo step 1: loss = 1; test 1 != 4 || exit 3"
    assert api_of(people.bob).delete("/appcodes/ops-demo/sweeps/lr")[0] == 204
    sweeps.advance(sweep.appcode_id, "lr")
    assert not Sweep.objects.exists()
    assert found["spec"]["oneRun"] is True


def test_what_a_pause_ends_is_begun_anew_and_more_points_have_another_run(loop, people, one_run):
    command = "echo loss = {lr}; test {lr} = 3 || [ $PORTAL_CLUSTER != lr-1 ] || sleep 60"
    manifest = one_run(command, parallel=2, trials=3)
    sweep = actions.create_sweep(manifest, acting_user=people.bob)
    until(
        loop,
        lambda: sweep.trials.filter(phase="Succeeded").exists() and Task.objects.filter(phase="Running").count() == 2,
    )
    actions.pause_sweep(sweep, acting_user=people.bob)
    until(loop, lambda: ended(sweep))
    assert trials(sweep) == [(0, "Succeeded", 3), (1, "", None), (2, "", None)]
    assert not sweep.trials.filter(phase="", cluster__isnull=False).exists()
    assert sums_of([sweep.pk], now())[sweep.pk].trials == {"Succeeded": 1, "Queued": 2}
    actions.resume_sweep(sweep, acting_user=people.bob)
    until(loop, lambda: ended(sweep))
    assert trials(sweep) == [(0, "Succeeded", 3), (1, "Succeeded", 1), (2, "Succeeded", 2)]
    more = one_run(command, parallel=2, trials=4)
    actions.change_sweep(sweep, more, acting_user=people.bob)
    until(loop, lambda: ended(sweep))
    rows = sweep.trials.order_by("number").values_list("cluster__name", "index", "value")
    assert list(rows) == [("lr-1", 0, 3), ("lr-2", 0, 1), ("lr-2", 1, 2), ("lr-3", 0, 4)]


def test_what_a_budget_ends_is_begun_anew_by_itself_once_it_may(loop, people, one_run):
    command = "echo loss = {lr}; [ $PORTAL_CLUSTER != lr-1 ] || sleep 60"
    sweep = actions.create_sweep(one_run(command, parallel=2, trials=2), acting_user=people.bob)
    until(loop, lambda: Task.objects.filter(phase="Running").count() == 2)
    clusters.end_part(Cluster.objects.get().pk, budgets.REASON, "Its budget is used up.")
    until(loop, lambda: ended(sweep))
    assert trials(sweep) == [(0, "Succeeded", 3), (1, "Succeeded", 1)]
    assert set(sweep.trials.values_list("cluster__name", flat=True)) == {"lr-2"}
    # The first run has no trials any more, but its cost still counts.
    loop.until(lambda: not Run.objects.filter(gone=False).exists())
    for name, seconds in (("lr-1", 7), ("lr-2", 4)):
        Run.objects.filter(cluster__name=name).update(gpu_seconds=seconds)
    assert sums_of([sweep.pk], now())[sweep.pk].gpu_seconds == 11


def test_more_at_once_than_the_quota_has_is_said_where_that_is_said(people, catalogue, one_run):
    gpus = {"roles": {"worker": {"flavor": "one-gpu", "count": 1}}}
    parameters = {"lr": {"type": "int", "low": 1, "high": 100}}
    manifest = one_run(template=gpus, parameters=parameters, parallel=20)
    with pytest.raises(Invalid, match=r"It needs 20 GPUs.* 8 at once\.") as caught:
        actions.create_sweep(manifest, acting_user=people.bob)
    assert [error.path for error in caught.value.errors] == [("spec", "parallel")]


def test_cancelled_with_its_run(loop, people, one_run):
    sweep = actions.create_sweep(one_run("sleep 60; echo {lr}", parallel=2), acting_user=people.bob)
    until(loop, lambda: Task.objects.filter(phase="Running").count() == 2)
    phases = sums_of([sweep.pk], now())[sweep.pk].trials
    assert phases == {"Running": 2, "Queued": 2}
    actions.cancel_sweep(sweep, acting_user=people.bob)
    until(loop, lambda: ended(sweep) and Run.objects.get().gone)
    assert {phase for _, phase, _ in trials(sweep)} == {"Stopped"}


def test_where_the_first_five_fail_no_more_are_tried(loop, people, one_run):
    # So many points that the command is stored outside the tasks.
    parameters = {"lr": {"type": "int", "low": 1, "high": 200}}
    sweep = actions.create_sweep(
        one_run("echo {lr}${TASK_COMMAND+?}; exit 3", parameters=parameters), acting_user=people.bob
    )
    until(loop, lambda: ended(sweep))
    sweep.refresh_from_db()
    assert sweep.phase == "Paused"
    assert re.match(
        r"The first \d+ trials have all failed\. The last one: worker-\d+ failed with exit code 3: \d+$", sweep.message
    )
    assert sweep.trials.filter(phase="").count() > 0
