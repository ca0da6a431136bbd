"""From a spec to the plan that a cloud carries out. Pure: everything it needs comes in as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusters.clouds.drivers.base import (
    CloudRefused,
    ImageRef,
    Mount,
    Plan,
    RestartPolicy,
    RolePlan,
    RunRef,
    expand,
    literal,
)
from clusters.frameworks import FRAMEWORKS
from clusters.frameworks.base import Addresses
from clusters.spec.manifest import ClusterSpec, Mode, RoleName

INPUT_PATH = "/elearn/input"
OUTPUT_PATH = "/elearn/output"
# Linux starts no program with a longer argument or variable, its name and a NUL included.
LONGEST_TEXT = 128 * 1024


@dataclass(frozen=True)
class Resources:
    """What one task of a role holds; copied from the flavor when a run is made, because flavors change."""

    flavor: str
    cpu_milli: int
    memory_mb: int
    gpus: int
    gpu_model: str


def build_plan(
    run: RunRef,
    spec: ClusterSpec,
    *,
    image: ImageRef,
    resources: Mapping[str, Resources],
    mounts: tuple[Mount, ...],
    addresses: Addresses,
) -> Plan:
    """The plan of one run. `resources` and `addresses` cover every active role and task of `spec`. Raises CloudRefused."""
    framework = FRAMEWORKS[spec.framework]
    plan = Plan(
        run=run,
        image=image,
        mounts=mounts,
        roles=tuple(
            RolePlan(
                role=role,
                count=role_spec.count,
                argv=("bash", "-c", spec.command),
                env={
                    "PORTAL_APPCODE": literal(run.appcode),
                    "PORTAL_CLUSTER": literal(run.cluster),
                    "PORTAL_RUN": str(run.number),
                    "PORTAL_ROLE": role,
                    **{name: literal(value) for name, value in spec.env.items()},
                    **framework.environment(spec, role, addresses),
                },
                cpu_milli=resources[role].cpu_milli,
                memory_mb=resources[role].memory_mb,
                gpus=resources[role].gpus,
                gpu_model=resources[role].gpu_model,
                restart=restart_policy(spec.mode, role),
                retries=spec.retries,
            )
            for role, role_spec in spec.active_roles.items()
        ),
        shared=framework.shared(spec, addresses),
    )
    for each in plan.roles:
        if sentence := _too_long(each.role, each.env, plan.shared, sum(role.count for role in plan.roles)):
            raise CloudRefused(sentence)
    return plan


def too_many(spec: ClusterSpec, longest_address: int) -> str:
    """Why the tasks of `spec` cannot all be named where addresses have at most so many characters; "" when they can."""
    tasks = sum(each.count for each in spec.active_roles.values())
    if 2 * tasks * longest_address < LONGEST_TEXT:  # by far: nothing has to be written for that
        return ""
    framework = FRAMEWORKS[spec.framework]
    addresses: Addresses = {
        (role, n): "x" * longest_address for role, each in spec.active_roles.items() for n in range(each.count)
    }
    shared = framework.shared(spec, addresses)
    found = (_too_long(role, framework.environment(spec, role, addresses), shared, tasks) for role in spec.active_roles)
    return next(filter(None, found), "")


def _too_long(role: str, env: Mapping[str, str], shared: Mapping[str, str], tasks: int) -> str:
    whole = {**shared, **{name: expand(value, shared) for name, value in env.items()}}
    for name, value in whole.items():
        size = len(name) + len(value.encode()) + 2
        if size > LONGEST_TEXT:
            return (
                f"{name} of a {role} would be longer than the {LONGEST_TEXT // 1024} KiB that Linux takes, because it names all "
                f"{tasks:,} tasks; about {tasks * LONGEST_TEXT // size // 10 * 10:,} fit. "
                "Ask for fewer."
            )
    return ""


def restart_policy(mode: Mode, role: RoleName) -> RestartPolicy:
    """Services are kept alive; so are parameter servers, which have no end of their own in any mode."""
    return "Always" if mode == "service" or role == "ps" else "OnFailure"


def output_folder(template: str, *, name: str, run: int) -> str:
    """The folder of one run inside its output datastore, without slashes at either end."""
    return template.replace("{name}", name).replace("{run}", str(run)).strip("/")
