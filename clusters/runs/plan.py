"""From a spec to the plan that a cloud carries out. Pure: everything it needs comes in as arguments."""

from __future__ import annotations

from collections.abc import Mapping

from clusters.clouds.drivers.base import (
    CloudRefused,
    ImageRef,
    Mount,
    Plan,
    RestartPolicy,
    RolePlan,
    RunRef,
    literal,
)
from clusters.frameworks import FRAMEWORKS
from clusters.frameworks.base import Addresses
from clusters.frameworks.size import too_long
from clusters.manifest import ClusterSpec, Mode, RoleName
from clusters.spec.resources import Resources

INPUT_PATH = "/elearn/input"
OUTPUT_PATH = "/elearn/output"


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
        if sentence := too_long(each.role, each.env, plan.shared, sum(role.count for role in plan.roles)):
            raise CloudRefused(sentence)
    return plan


def restart_policy(mode: Mode, role: RoleName) -> RestartPolicy:
    """Services are kept alive; so are parameter servers, which have no end of their own in any mode."""
    return "Always" if mode == "service" or role == "ps" else "OnFailure"


def output_folder(template: str, *, name: str, run: int) -> str:
    """The folder of one run inside its output datastore, without slashes at either end."""
    return template.replace("{name}", name).replace("{run}", str(run)).strip("/")
