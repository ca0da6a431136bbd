"""What tasks find in their environment: whole values compared, after the same expansion that a cloud makes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.base import CloudRefused, ImageRef, RunRef, expand, literal
from clusters.clouds.drivers.kubernetes.build.names import LONGEST_ADDRESS
from clusters.frameworks import FRAMEWORKS
from clusters.frameworks.size import too_many
from clusters.manifest import ClusterSpec
from clusters.runs.plan import build_plan
from clusters.spec.resources import Resources

SMALL = Resources("small", 1000, 1024, 0, "")


def spec(framework="tensorflow", **counts):
    roles = {role: {"flavor": "small", "count": count} for role, count in {"master": 1, **counts}.items()}
    return ClusterSpec.model_validate({"framework": framework, "image": "i", "command": "true", "roles": roles})


def addresses(of):
    return {(role, n): f"{role}-{n}.x:2222" for role, each in of.active_roles.items() for n in range(each.count)}


def environment(of, role, index):
    framework = FRAMEWORKS[of.framework]
    known = {"TASK_INDEX": str(index), **framework.shared(of, addresses(of))}
    return {name: expand(value, known) for name, value in framework.environment(of, role, addresses(of)).items()}


def test_a_master_alone_is_a_single_machine_without_tf_config():
    assert environment(spec(), "master", 0) == {}
    assert environment(spec(ps=0, worker=0), "master", 0) == {}


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
    assert plan.roles[0].argv == ("bash", "-c", "true")
    assert plan.roles[0].env["PORTAL_RUN"] == "3"


def test_what_grows_with_the_number_of_tasks_is_shared_by_all():
    def plan(workers):
        of = spec(ps=1, worker=workers)
        resources = dict.fromkeys(of.roles, SMALL)
        ref = RunRef(7, "ops", "ops-demo", "show", 3)
        return build_plan(
            ref, of, image=ImageRef("i", "", "/venv", ""), resources=resources, mounts=(), addresses=addresses(of)
        )

    few, many = plan(1), plan(1000)
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
    assert too_many(spec(ps=1, worker=1000), LONGEST_ADDRESS) == ""
    assert too_many(spec(ps=100, worker=1000), LONGEST_ADDRESS) == ""
    assert too_many(spec("pytorch", worker=1000), LONGEST_ADDRESS) == ""
    assert too_many(spec(ps=1000, worker=1000), LONGEST_ADDRESS).endswith("about 1,210 fit. Ask for fewer.")
