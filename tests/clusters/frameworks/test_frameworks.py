"""The environment of tasks: whole values compared, after the same expansion that clouds do."""

import json
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from clusters.catalog.size import too_many
from clusters.clouds.drivers.base import CloudRefused, ImageRef, LocalSource, Mount, RunRef, expand, literal
from clusters.clouds.drivers.kubernetes.render.names import LONGEST_ADDRESS
from clusters.frameworks import FRAMEWORKS, ROLES, starting
from clusters.frameworks.base import Launch, Resources
from clusters.manifest.cluster import ClusterSpec
from clusters.runs.plan import build_plan, ranked, wandb_variables
from portal.manifests import mistakes

SMALL = Resources("small", 1000, 1024, 0, "")
NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


def spec(framework="tensorflow", **counts):
    first = FRAMEWORKS[framework].roles[0].name
    counts = {role: count for role, count in {first: 1, **counts}.items() if count is not None}
    roles = {role: {"flavor": "small", "count": count} for role, count in counts.items()}
    body = {"framework": framework, "image": "i", "command": "true", "roles": roles}
    if FRAMEWORKS[framework].is_application:
        roles[first]["endpoints"] = [{"name": "web", "port": 8080}]
        body["home"] = "home"
    if framework == "serving":
        body["model"] = "digits/3"
    if FRAMEWORKS[framework].shows_runs:
        body["runs"] = ["train/3"]
    if FRAMEWORKS[framework].runs_notebook:
        body |= {"notebook": {"path": "a.ipynb", "source": NOTEBOOK}, "output": "results"}
    return ClusterSpec.model_validate(body)


def addresses(of):
    return {(role, n): f"{role}-{n}.x:2222" for role, each in of.active_roles.items() for n in range(each.count)}


def held(of):
    return dict.fromkeys(of.roles, SMALL)


def environment(of, role, index):
    """The variables that the driver adds for one task."""
    framework = FRAMEWORKS[of.framework]
    known = {"TASK_INDEX": str(index), **framework.shared(of, addresses(of))}
    launch = framework.launch(of, role, addresses(of), held(of))
    return {name: expand(value, known) for name, value in launch.env.items()}


def test_a_master_alone_is_a_single_machine_without_tf_config():
    assert environment(spec(), "master", 0) == {}
    assert environment(spec(ps=0, worker=0), "master", 0) == {}


@pytest.mark.parametrize("workers", [0, 1])
def test_each_task_has_the_keras_that_was_chosen(workers):
    for keras, value in ((2, "1"), (3, "0")):
        chosen = spec(worker=workers).model_copy(update={"keras": keras})
        assert environment(chosen, "master", 0)["TF_USE_LEGACY_KERAS"] == value
    assert "TF_USE_LEGACY_KERAS" not in environment(spec(worker=workers), "master", 0)


def test_parameter_servers_get_the_whole_cluster_and_their_own_place():
    assert json.loads(environment(spec(ps=1, worker=2), "worker", 1)["TF_CONFIG"]) == {
        "cluster": {
            "chief": ["master-0.x:2222"],
            "ps": ["ps-0.x:2222"],
            "worker": ["worker-0.x:2222", "worker-1.x:2222"],
        },
        "task": {"type": "worker", "index": 1},
    }


def test_all_reduce_is_a_chief_and_workers():
    config = json.loads(environment(spec(worker=1), "master", 0)["TF_CONFIG"])
    assert config["task"] == {"type": "chief", "index": 0}
    assert set(config["cluster"]) == {"chief", "worker"}


def test_an_evaluator_is_told_of_the_cluster_but_is_not_in_it():
    config = json.loads(environment(spec(ps=1, worker=1, evaluator=1), "evaluator", 0)["TF_CONFIG"])
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert "evaluator" not in config["cluster"]


def test_torchrun_meets_at_the_master_who_alone_opens_the_store():
    one = environment(spec("pytorch", worker=3), "worker", 2)
    assert one["PET_NNODES"] == "4"
    assert one["PET_RDZV_ENDPOINT"] == "master-0.x:2222"
    assert (one["MASTER_ADDR"], one["MASTER_PORT"]) == ("master-0.x", "2222")
    assert one["PET_RDZV_CONF"] == "is_host=0"
    assert environment(spec("pytorch", worker=3), "master", 0)["PET_RDZV_CONF"] == "is_host=1"
    # Without these two, a program that calls init_process_group itself silently trains alone.
    assert (one["RANK"], one["WORLD_SIZE"]) == ("$(TASK_RANK)", "4")


def test_of_workers_alone_worker_0_leads():
    """TensorFlow makes worker 0 the chief if the cluster names none."""
    config = json.loads(environment(spec(master=None, worker=2), "worker", 1)["TF_CONFIG"])
    addresses_ = ["worker-0.x:2222", "worker-1.x:2222"]
    assert config == {"cluster": {"worker": addresses_}, "task": {"type": "worker", "index": 1}}
    assert environment(spec("jax", master=None, worker=2), "worker", 1)["JAX_COORDINATOR_ADDRESS"] == addresses_[0]
    of = spec("pytorch", master=None, worker=2)
    assert (of.completion, environment(of, "worker", 1)["PET_RDZV_ENDPOINT"]) == ("workers", addresses_[0])
    argv = FRAMEWORKS["pytorch"].launch(of, "worker", addresses(of), held(of)).argv[:-1]
    for index in range(2):
        env = {**environment(of, "worker", index), "TASK_INDEX": str(index), "PATH": "/usr/bin:/bin"}
        said = subprocess.run([*argv, "echo $PET_RDZV_CONF"], env=env, capture_output=True, check=True).stdout
        assert said == f"is_host={int(index == 0)}\n".encode()


@pytest.mark.parametrize("framework", ["tensorflow", "pytorch", "jax"])
def test_one_worker_alone_is_a_plain_program(framework):
    assert environment(spec(framework, master=None, worker=1), "worker", 0) == {}


@given(st.text(), st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), st.text()))
def test_what_a_user_typed_reaches_the_program_unchanged(text, values):
    assert expand(literal(text), values) == text


def test_the_plan_of_a_parameter_server_cluster():
    of = spec(ps=2, worker=2)
    plan = build_plan(
        RunRef(7, "ops", "ops-demo", "show", 3),
        of,
        image=ImageRef("i", "", "/venv", ""),
        resources=dict.fromkeys(of.roles, SMALL),
        mounts=(),
        addresses=addresses(of),
    )
    assert [(role.role, role.count, role.restart) for role in plan.roles] == [
        ("master", 1, "OnFailure"),
        ("ps", 2, "Always"),
        ("worker", 2, "OnFailure"),
    ]
    assert plan.roles[0].argv == starting.started(("bash", "-o", "pipefail", "-c", "true"))
    assert plan.roles[0].env["PORTAL_RUN"] == "3"


@pytest.mark.parametrize(
    ("env", "has_output", "given"),
    [
        ({}, True, {"WANDB_MODE": "offline", "WANDB_DIR": "/elearn/output"}),
        ({}, False, {"WANDB_MODE": "offline"}),
        ({"WANDB_DIR": "/tmp/x"}, True, {"WANDB_MODE": "offline", "WANDB_DIR": "/tmp/x"}),
        ({"WANDB_API_KEY": "k"}, True, {"WANDB_API_KEY": "k"}),
        (
            {"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, True,
            {"WANDB_API_KEY": "k", "WANDB_MODE": "offline", "WANDB_DIR": "/elearn/output"},
        ),
        ({"WANDB_MODE": "online"}, True, {"WANDB_MODE": "online"}),
    ],
)  # fmt: skip
def test_wandb_is_offline_unless_somebody_has_a_server_of_theirs(env, has_output, given):
    of = spec(worker=1).model_copy(update={"env": env})
    plan = build_plan(
        RunRef(7, "ops", "ops-demo", "show", 3), of, image=ImageRef("i", "", "/venv", ""),
        resources=dict.fromkeys(of.roles, SMALL), addresses=addresses(of),
        mounts=(Mount("/elearn/output", False, LocalSource("/data", "/data/1")),) if has_output else (),
    )  # fmt: skip
    for role in plan.roles:
        assert {name: value for name, value in role.env.items() if name.startswith("WANDB_")} == given
    assert wandb_variables(spec("jupyter"), ()) == {}


def test_what_grows_with_the_number_of_tasks_is_shared_by_all():
    def plan(workers):
        of = spec(ps=1, worker=workers)
        resources = dict.fromkeys(of.roles, SMALL)
        ref = RunRef(7, "ops", "ops-demo", "show", 3)
        return build_plan(
            ref, of, image=ImageRef("i", "", "/venv", ""), resources=resources, mounts=(), addresses=addresses(of)
        )

    few, many = plan(2), plan(1000)
    assert [role.env for role in few.roles] == [role.env for role in many.roles]
    assert len(many.shared["TF_CONFIG_CLUSTER"]) > 15_000


def test_more_tasks_than_one_variable_can_name_are_refused():
    def plan(workers):
        of = spec(ps=1000, worker=workers)
        return build_plan(
            RunRef(7, "ops", "ops-demo", "show", 3),
            of,
            image=ImageRef("i", "", "/venv", ""),
            resources=dict.fromkeys(of.roles, SMALL),
            mounts=(),
            addresses={place: f"{'x' * 80}-{address}" for place, address in addresses(of).items()},
        )

    assert len(plan(100).roles) == 3
    with pytest.raises(
        CloudRefused, match=r"^TF_CONFIG.* of a master would be longer than the 128 KiB .* all 1,501 tasks"
    ):
        plan(500)


def test_a_thousand_workers_can_be_named_under_the_longest_names_that_kubernetes_has():
    def why(of):
        return too_many(of, held(of), LONGEST_ADDRESS)

    assert why(spec(ps=1, worker=1000)) == ""
    assert why(spec(ps=100, worker=1000)) == ""
    assert why(spec("pytorch", worker=1000)) == ""
    assert why(spec("jax", worker=1000)) == ""
    assert why(spec(ps=1000, worker=1000)).endswith("about 1,210 fit. Ask for fewer.")


# -- properties of every driver ----------------------------------------------------------------------------------------


@st.composite
def specs(draw):
    """Every combination of roles that some driver accepts."""
    framework = draw(st.sampled_from(list(FRAMEWORKS.values())))
    counts = {role.name: draw(st.integers(role.least, min(role.most, 4))) for role in framework.roles}
    first = framework.roles[0]
    if first.leads and (not counts["worker"] or counts.get("ps")):
        counts[first.name] = 1
    return spec(framework.name, **counts)


@given(specs())
def test_a_driver_sets_nothing_that_it_has_not_reserved(of):
    framework = FRAMEWORKS[of.framework]
    launches = [framework.launch(of, role, addresses(of), held(of)) for role in of.active_roles]
    assert {*framework.shared(of, addresses(of)), *(name for each in launches for name in each.env)} <= (
        framework.reserved_env
    )


@given(specs())
def test_what_a_driver_has_reserved_no_user_may_set(of):
    for name in FRAMEWORKS[of.framework].reserved_env:
        with pytest.raises(ValidationError, match=f"{name} is set by the portal for"):
            ClusterSpec.model_validate({**of.model_dump(), "env": {name: "x"}})


@given(specs(), st.data())
def test_a_count_out_of_a_drivers_bounds_is_refused_at_its_role(of, data):
    role = data.draw(st.sampled_from(FRAMEWORKS[of.framework].roles))
    beyond = [*range(role.least), *range(role.most + 1, 3)]
    for count in beyond:
        body = of.model_dump()
        body["roles"][role.name] = {**body["roles"][role.name], "count": count}
        with pytest.raises(ValidationError) as caught:
            ClusterSpec.model_validate(body)
        assert [each.path for each in mistakes(caught.value)] == [("roles", role.name, "count")]


@pytest.mark.parametrize("driver", FRAMEWORKS.values(), ids=list(FRAMEWORKS))
def test_what_ends_a_run_is_the_end_of_a_role_that_its_driver_has(driver):
    assert {each.role for each in driver.completions} <= {role.name for role in driver.roles}


def test_every_role_stands_in_the_same_order_in_every_driver():
    for framework in FRAMEWORKS.values():
        names = [role.name for role in framework.roles]
        assert names == [name for name in ROLES if name in names]


# -- ranks -------------------------------------------------------------------------------------------------------------


def started(role, index):
    """The lines that a task of the plan prints, started with its argv and environment."""
    # runs/test_folders.py covers the folder and packages with which a task starts.
    env = {"TASK_INDEX": str(index), "PATH": "/usr/bin:/bin", starting.SCRIPT: 'exec "$@"'}
    for name, value in role.env.items():
        env[name] = expand(value, env)
    return subprocess.run(role.argv, env=env, capture_output=True, text=True, check=True).stdout.splitlines()


def planned(of, command):
    return build_plan(
        RunRef(7, "ops", "ops-demo", "show", 3),
        of.model_copy(update={"command": command}),
        image=ImageRef("i", "", "/venv", ""),
        resources=held(of),
        mounts=(),
        addresses=addresses(of),
    )


@pytest.mark.parametrize(
    "driver", [each for each in FRAMEWORKS.values() if each.needs_command], ids=lambda each: each.name
)
def test_ranks_count_through_all_tasks_of_a_run(driver):
    of = spec(driver.name, **{role.name: min(role.most, 3) for role in driver.roles})
    plan = planned(of, 'echo "$PORTAL_ROLE-$TASK_INDEX $TASK_RANK"')
    said = [started(role, index) for role in plan.roles for index in range(role.count)]
    tasks = [f"{role.role}-{index}" for role in plan.roles for index in range(role.count)]
    assert said == [[f"{task} {rank}"] for rank, task in enumerate(tasks)]


@given(st.text(st.characters(codec="ascii", exclude_characters="\0")), st.integers(1, 2000), st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_a_rank_stands_in_the_middle_of_anything(text, first, index):
    launch = Launch(("printenv", "--null", "WHO", "TASK_RANK"), {"WHO": f"{literal(text)}<$(TASK_RANK)>"})
    found = ranked(launch, first, 1000)
    env = {"TASK_INDEX": str(index), "PATH": "/usr/bin:/bin"}
    env |= {name: expand(value, env) for name, value in found.env.items()}
    said = subprocess.run(found.argv, env=env, capture_output=True, check=True).stdout.decode().split("\0")
    assert said == [f"{text}<{first + index}>", str(first + index), ""]
