"""Builds the plan that a cloud carries out from a spec. Pure: all input comes as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import accumulate
from types import MappingProxyType

from clusters.catalog.size import too_long
from clusters.clouds.drivers.base import (
    CloudRefused,
    CodeCommit,
    CodeFiles,
    Endpoint,
    Environment,
    ImageRef,
    Mount,
    Plan,
    RestartPolicy,
    RolePlan,
    RunRef,
    expand,
    literal,
)
from clusters.frameworks import FRAMEWORKS, starting, variables
from clusters.frameworks.base import Addresses, Framework, Launch, Resources, Role
from clusters.frameworks.runtimes import FOLDER
from clusters.manifest.cluster import ClusterSpec, Mode

INPUT_PATH = "/elearn/input"
OUTPUT_PATH = "/elearn/output"
HOME_PATH = "/elearn/home"
RUNS_PATH = "/elearn/runs"
# Of a W&B server to which a program is to send, unless WANDB_MODE is offline.
WANDB_SERVER = frozenset({"WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE"})


def build_plan(
    run: RunRef,
    spec: ClusterSpec,
    *,
    image: ImageRef,
    resources: Mapping[str, Resources],
    mounts: tuple[Mount, ...],
    addresses: Addresses,
    origins: Mapping[str, str] = MappingProxyType({}),
    environment: Environment | None = None,
    code: CodeFiles | CodeCommit | None = None,
    model: Mapping[str, str] = MappingProxyType({}),
    proof: str = "",
) -> Plan:
    """The plan of one run. `resources` covers every active role of `spec`, `addresses` every task, `origins` its endpoints.
    `model` has the variables that describe its model, `proof` is its cluster's. Raises CloudRefused."""
    framework = FRAMEWORKS[spec.framework]
    roles: list[RolePlan] = []
    first_parts = parts_of(framework, spec)
    for role in framework.roles:
        if not (count := spec.count(role.name)):
            continue
        launch = framework.launch(spec, role.name, addresses, resources)
        # Inside the layer, so that PATH=/demo:$PATH comes before what is installed there.
        launch = replace(launch, argv=variables.started(launch.argv, spec.env))
        if not launch.from_image:
            launch = replace(launch, argv=starting.started(launch.argv))
        # The rank of the first task is the number of tasks in the roles before it.
        launch = ranked(launch, sum(each.count for each in roles), count)
        held = resources[role.name]
        roles.append(
            RolePlan(
                role=role.name,
                count=count,
                argv=launch.argv,
                env={
                    "PORTAL_APPCODE": literal(run.appcode),
                    "PORTAL_CLUSTER": literal(run.cluster),
                    "PORTAL_RUN": str(run.number),
                    "PORTAL_ROLE": role.name,
                    **wandb_variables(spec, mounts),
                    **{name: literal(value) for name, value in variables.given(spec.env).items()},
                    **launch.env,
                },
                cpu_milli=held.cpu_milli,
                memory_mb=held.memory_mb,
                gpus=held.gpus,
                gpu_model=held.gpu_model,
                demand=held.demand,
                restart=restart_policy(spec.mode, role),
                retries=spec.retries,
                endpoints=tuple(
                    Endpoint(**asdict(each), origin=origins.get(each.name, ""))
                    for each in framework.endpoints(spec, role.name)
                ),
                from_image=launch.from_image,
                first_part=first_parts.get(role.name, -1),
                spread=spec.placement == "spread",
                at_once=spec.roles[role.name].together if framework.is_independent else 0,
            )
        )
    plan = Plan(
        run=run,
        image=image,
        mounts=mounts,
        roles=tuple(roles),
        shared={
            **model,
            **framework.shared(spec, addresses),
            **({} if all(each.from_image for each in roles) else starting.shared()),
        },
        environment=environment,
        code=code,
        proof=proof,
        grace_seconds=spec.termination_grace_period,
    )
    for each in plan.roles:
        if sentence := too_long(each.role, each.env, plan.shared, sum(role.count for role in plan.roles)):
            raise CloudRefused(sentence)
    return plan


def wandb_variables(spec: ClusterSpec, mounts: tuple[Mount, ...]) -> dict[str, str]:
    """Without a server of its own, W&B would end the program. Offline it writes files, which the portal shows if they are in
    the output (clusters/scalars/wandb.py). In an application a person can sign in to theirs."""
    has_server = WANDB_SERVER & spec.env.keys() and spec.env.get("WANDB_MODE") != "offline"
    if FRAMEWORKS[spec.framework].is_application or has_server:
        return {}
    has_output = any(each.mount_path == OUTPUT_PATH for each in mounts)
    return {"WANDB_MODE": "offline", **({"WANDB_DIR": OUTPUT_PATH} if has_output else {})}


def model_folder(spec: ClusterSpec) -> str:
    """The folder where the program finds its model."""
    return spec.server.folder if spec.server else FOLDER


def parts_of(framework: Framework, spec: ClusterSpec) -> dict[str, int]:
    """The part of a divided input that the first task of each reading role gets; empty for any other input."""
    if spec.input is None or spec.input.mode != "shard":
        return {}
    counts = {role: spec.count(role) for role in framework.readers(spec)}
    return dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))


def ranked(launch: Launch, first: int, count: int) -> Launch:
    """`launch` with a TASK_RANK in its environment, where `first` is the rank of the role's first task.

    Kubernetes substitutes an index but cannot add to it. So several tasks that follow those of another role start through a shell
    line that adds and writes the rank into the variables that refer to it. References to undefined variables stay as they are.
    """
    if count == 1 or not first:
        return replace(launch, env={"TASK_RANK": str(first) if first else "$(TASK_INDEX)", **launch.env})
    line = [f"export TASK_RANK=$((TASK_INDEX + {first}))"]
    for name, value in launch.env.items():
        if expand(value, {}) != expand(value, {"TASK_RANK": "0"}):
            line.append(rf"{name}=${{{name}//\$(TASK_RANK)/$TASK_RANK}}")
    return replace(launch, argv=("bash", "-c", "; ".join([*line, 'exec "$@"']), "bash", *launch.argv))


def restart_policy(mode: Mode, role: Role) -> RestartPolicy:
    """Services are kept alive in any role."""
    return "Always" if mode == "service" or role.kept_alive else "OnFailure"
