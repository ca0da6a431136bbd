"""A saved environment in the pods of a run: how it is made, where it is stored, and how programs start from it. Pure.

An init container in the task's own image makes it, with uv from the storage image, so that any image with Python works. It is
stored in a volume of the pod, made anew at each start. If administrators named a storage class whose volumes several pods can
mount, it is in a claim of the appcode instead, where the first pod makes it for all. The task sees it read-only.

The lock is compressed in the ConfigMap that owns the run, by bz2, whose output never changes, because the ConfigMap is
immutable. No password is involved: tasks use an index that needs none; docker/kubernetes/packages is such an index in front of
one that does.
"""

from __future__ import annotations

import base64
import bz2
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from clusters.clouds.drivers.base import CloudRefused, Plan, RolePlan, literal
from clusters.clouds.drivers.kubernetes.render import code, names, storage
from clusters.clouds.drivers.kubernetes.settings import Settings

Manifest = dict[str, Any]

# The containers that provide uv and make the environment.
BRING, MAKE = "uv", "environment"
PLACE, UV = "/elearn/environments", "/elearn/uv"
LOCK = "environment.lock"
# Seconds. Covers the program's own limits (frameworks/inside/install.py) twice: once for another pod that makes the same.
SECONDS = 2 * 1500
# A ConfigMap may hold 1 MiB, and it also has the users' variables.
_LARGEST = 2**20 - 2**12
# Only the image knows its PATH.
_INSIDE = ("sh", "-c", 'export PATH="$PORTAL_ENVIRONMENT/bin:$PATH"; exec "$@"', "sh")


def packed(plan: Plan) -> dict[str, str]:
    """Returns the additional binary data of the run's ConfigMap, in base64 by key."""
    if plan.environment is None:
        return {}
    return {LOCK: base64.b64encode(bz2.compress(plan.environment.lock.encode())).decode()}


def check(plan: Plan, settings: Settings) -> None:
    """Raises CloudRefused."""
    if plan.environment is None:
        return
    if why := why_none(settings):
        raise CloudRefused(f"Environment {plan.environment.name} cannot be used here: {why}")
    held = sum(len(base64.b64decode(each)) for each in packed(plan).values())
    held += sum(len(value.encode()) for value in [*plan.shared.values(), *code.held(plan).values()])
    if held > _LARGEST and plan.code:
        raise CloudRefused(
            f"The hashes of environment {plan.environment.name} and the files of the code are more than the 1 MiB that a "
            "Kubernetes cluster keeps of a run; put the packages into an image."
        )
    if held > _LARGEST:
        raise CloudRefused(
            f"Environment {plan.environment.name} has too many packages for a Kubernetes cluster, which keeps at most 1 MiB of "
            "their hashes; put them into an image."
        )


def why_none(settings: Settings) -> str:
    return "" if settings.package_index else "An administrator has to name a package index in its settings first."


def key(plan: Plan, settings: Settings) -> str:
    """Identifies what is made, its appcode and its storage: changed settings only affect what is made afterwards."""
    assert plan.environment is not None
    where = (settings.environment_class, settings.environment_size)
    parts = (plan.run.appcode, plan.environment.digest, plan.image.container, *where)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def claim_manifest(plan: Plan, settings: Settings, today: str) -> Manifest | None:
    """Returns the claim for a shared environment, or None. No run owns it: it is deleted when unused for long."""
    if plan.environment is None or not settings.environment_class:
        return None
    made = key(plan, settings)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.environment_claim(plan.run.appcode, made),
            "namespace": plan.run.namespace,
            "labels": {
                **names.common_labels("environment", names.environment_claim(plan.run.appcode, made), plan.run.appcode),
                names.PORTAL: settings.portal,
                names.APPCODE: plan.run.appcode,
                names.ENVIRONMENT: made,
            },
            "annotations": {names.USED: today},
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": settings.environment_class,
            "resources": {"requests": {"storage": settings.environment_size}},
        },
    }


def variables(plan: Plan, role: RolePlan, settings: Settings) -> dict[str, str]:
    """Returns the variables for pip and uv (the index), and for programs (the environment)."""
    found = index_variables(settings)
    if plan.environment is not None:
        path = _path(plan, settings)
        found |= {"PORTAL_ENVIRONMENT": path, **({} if role.from_image else {"VIRTUAL_ENV": path})}
    return found


def index_variables(settings: Settings) -> dict[str, str]:
    if not settings.package_index:
        return {}
    url, parts = f"{settings.package_index}/", urlsplit(settings.package_index)
    found = {"PIP_INDEX_URL": url, "UV_DEFAULT_INDEX": url, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # pip rejects servers without TLS otherwise, which are usual inside a cluster.
    return found | ({"PIP_TRUSTED_HOST": parts.netloc} if parts.scheme == "http" else {})


def argv(plan: Plan, role: RolePlan) -> Sequence[str]:
    return role.argv if plan.environment is None or role.from_image else (*_INSIDE, *role.argv)


def as_in(pod: Mapping[str, Any], words: Sequence[str]) -> Sequence[str]:
    """Returns a command to run beside a task's program, with the program's Python."""
    program = next(each["command"] for each in pod["spec"]["containers"] if each["name"] == names.TASK)
    return (*_INSIDE, *words) if literal(_INSIDE[2]) in program else words


def pod_parts(plan: Plan, role: RolePlan, settings: Settings, resources: Manifest) -> storage.PodParts:
    """Returns the parts of a pod. `resources`: the task's, without GPUs, for the container that makes the environment."""
    parts = storage.PodParts()
    if not settings.package_index or not (plan.environment or role.from_image):
        return parts
    parts.init.append(
        {
            **storage.container(BRING, settings),
            "command": ["cp", "/usr/local/bin/uv", f"{UV}/uv"],
            "volumeMounts": [{"name": "uv", "mountPath": UV}],
        }
    )
    parts.volumes.append({"name": "uv", "emptyDir": {"sizeLimit": "256Mi"}})
    uv = {"name": "uv", "mountPath": UV, "subPath": "uv", "readOnly": True}
    if role.from_image:
        parts.mounts.append(uv)
    if plan.environment is None:
        return parts
    path, asked = _path(plan, settings), plan.environment
    # -I isolates Python: the task writes into the same /tmp, and init containers run again when a pod's sandbox is lost.
    words = (asked.install, path, f"/elearn/{LOCK}/lock", f"{PLACE}/cache", "hardlink", asked.script)
    env = {"HOME": storage.TMP, **index_variables(settings)}
    parts.init.append(
        {
            "name": MAKE,
            "image": plan.image.container,
            "imagePullPolicy": settings.image_pull_policy,
            "command": ["timeout", "--kill-after=5", str(SECONDS), "python", "-I", "-c", *map(literal, words)],
            "env": [{"name": name, "value": value} for name, value in env.items()],
            "resources": resources,
            "securityContext": storage.CONFINED,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": "tmp", "mountPath": storage.TMP},
                {"name": MAKE, "mountPath": PLACE},
                {"name": "lock", "mountPath": f"/elearn/{LOCK}", "readOnly": True},
                uv,
            ],
        }
    )
    claim = names.environment_claim(plan.run.appcode, key(plan, settings))
    lies = (
        {"persistentVolumeClaim": {"claimName": claim}}
        if settings.environment_class
        else {"emptyDir": storage.on_disk(settings)}
    )
    lock = {"name": names.owner_name(plan.run), "items": [{"key": LOCK, "path": "lock"}]}
    parts.volumes += [{"name": MAKE, **lies}, {"name": "lock", "configMap": lock}]
    parts.mounts.append({"name": MAKE, "mountPath": PLACE, "readOnly": True})
    return parts


def _path(plan: Plan, settings: Settings) -> str:
    return f"{PLACE}/{key(plan, settings)}"
