"""The pod of a role: the task's program, its resources and its confinement as a Kubernetes manifest. Pure.

A program runs under coreutils' `timeout`, used as process 1 rather than as a time limit. Most programs would ignore SIGTERM as
process 1 (it has no default action there), and would use up the time needed to store their output, because a pod has a single
grace period.
"""

from __future__ import annotations

from typing import Any

from clusters.clouds.drivers.base import Plan, RolePlan, literal
from clusters.clouds.drivers.kubernetes.render import code, endpoints, environments, gangs, names, storage
from clusters.clouds.drivers.kubernetes.settings import GPU_MODEL, Settings, toleration

Manifest = dict[str, Any]

# Where programs look for data; without a datastore an empty folder of the pod.
SCRATCH = ("/elearn/input", "/elearn/output")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 — a volume of the pod's own, for data loaders
USER, USER_NAME = 1000, "elearn"


def template(plan: Plan, role: RolePlan, settings: Settings, *, index: str) -> Manifest:
    """Returns the template of a role's pods. `index`: the field for TASK_INDEX, "" if it is always 0."""
    task_index = _task_index(index)
    resources = _resources(role, settings)
    without_gpus = _without_gpus(resources)
    stored = storage.pod_parts(
        plan,
        settings,
        serves=bool(role.endpoints),
        first_part=role.first_part,
        task_index=task_index,
        work="" if role.from_image else role.role,
    )
    storage.lend(stored.init, without_gpus)
    made = environments.pod_parts(plan, role, settings, without_gpus)
    program = code.pod_parts(plan, settings, without_gpus)
    taken = {mount.mount_path for mount in plan.mounts}
    scratch = [path for path in SCRATCH if path not in taken]
    grace = max(1, plan.grace_seconds)
    spec: Manifest = {
        "subdomain": names.base_name(plan.run),
        "restartPolicy": "Never" if role.restart == "OnFailure" else "Always",
        "terminationGracePeriodSeconds": grace
        + (settings.store_seconds if stored.stores else 0)
        + (endpoints.DRAIN_SECONDS if role.endpoints else 0),
        "automountServiceAccountToken": False,
        "imagePullSecrets": [{"name": names.registries_name(plan.run)}],
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            # Otherwise the kubelet changes the group of each file of a volume at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "task",
                "image": plan.image.container,
                "imagePullPolicy": settings.image_pull_policy,
                # `command` and not `args`, so that the image's entrypoint does not run. The kubelet expands $(NAME) here, too.
                # "0": no time limit; after SIGTERM, which `timeout` forwards, the program has `grace` seconds.
                "command": [
                    "timeout",
                    f"--kill-after={grace}",
                    "0",
                    *(literal(word) for word in environments.argv(plan, role)),
                ],
                **({"workingDir": start} if (start := code.start_folder(plan)) else {}),
                "env": _environment(plan, role, task_index, settings),
                "ports": [
                    {"name": "task", "containerPort": names.PORT, "protocol": "TCP"},
                ],
                "resources": resources,
                "securityContext": storage.CONFINED,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                **endpoints.of_container(role),
                "volumeMounts": [
                    {"name": "tmp", "mountPath": storage.TMP},
                    {"name": "shm", "mountPath": SHARED_MEMORY},
                    *({"name": f"scratch{n}", "mountPath": path} for n, path in enumerate(scratch)),
                    *stored.mounts,
                    *made.mounts,
                    *program.mounts,
                ],
            }
        ],
        "volumes": [
            {"name": "tmp", "emptyDir": storage.on_disk(settings)},
            # Counts towards the task's memory, which is the same limit.
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{role.memory_mb}Mi"}},
            *({"name": f"scratch{n}", "emptyDir": storage.on_disk(settings)} for n, _ in enumerate(scratch)),
            *stored.volumes,
            *made.volumes,
            *program.volumes,
        ],
    }
    led = endpoints.entrance_container(plan, role, settings)
    if init := [*program.init, *made.init, *stored.init, *led]:
        spec["initContainers"] = init
    if priority := priority_class(plan, settings):
        spec["priorityClassName"] = priority
    if gangs.size(plan):
        spec["schedulingGroup"] = {"podGroupName": gangs.name(plan.run)}
    demand = role.demand
    taints = [*(demand.tolerated() if role.gpus else demand.tolerations), *settings.tolerations]
    tolerations = [toleration(taint) for taint in dict.fromkeys(taints)]
    chosen = dict(demand.labels)
    if role.gpus and role.gpu_model and demand.chooses_model:
        chosen[GPU_MODEL] = role.gpu_model
    if chosen:
        spec["nodeSelector"] = chosen
    if role.gpus and settings.runtime_class and demand.resource.startswith("nvidia.com/"):
        spec["runtimeClassName"] = settings.runtime_class
    if role.nodes:
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _only(role.nodes)}}
    if role.spread:
        # Its nodes are in as many racks as possible already. As well as it can: what finds room on few of them starts there.
        every = {"matchLabels": names.run_labels(settings.portal, plan.run)}
        apart = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        spec["topologySpreadConstraints"] = [{**apart, "labelSelector": every}]
    if tolerations:
        spec["tolerations"] = tolerations
    return {
        "metadata": {
            "labels": names.role_labels(settings.portal, plan.run, role.role),
            "finalizers": [names.METERING],
        },
        "spec": spec,
    }


def priority_class(plan: Plan, settings: Settings) -> str:
    """Returns the priority class of all pods of a run, "" for the cluster's own."""
    batch = any(each.restart == "OnFailure" for each in plan.roles)
    return settings.batch_priority_class if batch else settings.service_priority_class


def _only(nodes: tuple[str, ...]) -> Manifest:
    """Returns the node selector of these nodes alone. By the name, which no label has to equal, and of which a term takes one;
    kube-scheduler then looks at no other node."""
    fields = ([{"key": "metadata.name", "operator": "In", "values": [name]}] for name in sorted(nodes))
    return {"nodeSelectorTerms": [{"matchFields": each} for each in fields]}


def _task_index(index: str) -> Manifest:
    if not index:
        return {"name": "TASK_INDEX", "value": "0"}
    return {"name": "TASK_INDEX", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": index}}}


def _environment(plan: Plan, role: RolePlan, first: Manifest, settings: Settings) -> list[Manifest]:
    """Puts TASK_INDEX and the owner's variables first, because a value can only refer to earlier ones."""
    owner = names.owner_name(plan.run)
    shared = [{"name": name, "valueFrom": {"configMapKeyRef": {"name": owner, "key": name}}} for name in plan.shared]
    secret = names.secret_name(plan.run)
    shared += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": f"variable-{name}"}}}
        for name in storage.secrets(plan, settings)
    ]
    # The image may lack a user of that number in /etc/passwd, and programs ask for a name.
    user = {"HOME": storage.TMP, "USER": USER_NAME, "LOGNAME": USER_NAME}
    ours = {**user, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **environments.variables(plan, role, settings)}
    if not role.gpus:
        # An image that requests all GPUs would otherwise see those of other tasks.
        ours["NVIDIA_VISIBLE_DEVICES"] = "void"
    return [first, *shared, *({"name": name, "value": value} for name, value in {**ours, **role.env}.items())]


def _resources(role: RolePlan, settings: Settings) -> Manifest:
    """Returns equal requests and limits, so that a task gets what it is billed for and is evicted last. The disk is an
    exception: it is not billed, and most tasks need little."""
    held = {"cpu": f"{role.cpu_milli}m", "memory": f"{role.memory_mb}Mi"}
    if role.gpus:
        held[role.demand.resource] = str(role.gpus)
    held |= dict(role.demand.extra)
    disk = settings.task_disk
    return {kind: {**held, **({"ephemeral-storage": disk[kind]} if disk else {})} for kind in ("requests", "limits")}


def _without_gpus(resources: Manifest) -> Manifest:
    return {
        kind: {name: amount for name, amount in held.items() if name in ("cpu", "memory", "ephemeral-storage")}
        for kind, held in resources.items()
    }
