"""Data of a run inside its pods: which containers fetch and store it, and which volumes lie where. Pure.

NFS is a volume and claim of the run. S3 is copied: an init container fetches, and for output a native sidecar stores what
changed every few seconds and once more when the task has ended. Credentials are in a Secret and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clusters.clouds.base import NfsSource, Plan, S3Source
from clusters.clouds.kubernetes import names

FETCH = "fetch"
STORE = "store"
STORE_EVERY_SECONDS = 10
TMP = "/tmp"  # noqa: S108 — a volume of the pod's own

CONFINED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_HELPER = {"cpu": "100m", "memory": "256Mi"}


@dataclass
class PodParts:
    """What data adds to a pod. `mounts` are those of the task itself; `stores` when something is written back at the end."""

    init: list[dict[str, Any]] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    stores: bool = False


def manifests(plan: Plan) -> list[dict[str, Any]]:
    """The Secret, volumes and claims of a run; without labels and owner, which all objects of a run get alike."""
    made: list[dict[str, Any]] = []
    keys: dict[str, str] = {}
    for number, mount in enumerate(plan.mounts):
        if isinstance(mount.source, S3Source):
            keys[f"access-key-{number}"] = mount.source.access_key
            keys[f"secret-key-{number}"] = mount.source.secret_key
        elif isinstance(mount.source, NfsSource):
            made += _nfs(plan, number, mount.source, read_only=mount.read_only)
    if keys:
        secret = {"name": names.secret_name(plan.run)}
        made.append({"apiVersion": "v1", "kind": "Secret", "metadata": secret, "type": "Opaque", "stringData": keys})
    return made


def pod_parts(plan: Plan, image: str, pull_policy: str) -> PodParts:
    parts = PodParts()
    copied: list[tuple[int, str]] = []
    stored: list[tuple[int, str]] = []
    for number, mount in enumerate(plan.mounts):
        volume = f"data{number}"
        parts.mounts.append({"name": volume, "mountPath": mount.mount_path, "readOnly": mount.read_only})
        if isinstance(mount.source, NfsSource):
            claim = {"claimName": names.volume_name(plan.run, number), "readOnly": mount.read_only}
            parts.volumes.append({"name": volume, "persistentVolumeClaim": claim})
        else:
            parts.volumes.append({"name": volume, "emptyDir": {}})
            copied.append((number, mount.mount_path))
            if not mount.read_only:
                stored.append((number, mount.mount_path))
    if copied:
        parts.init.append(_helper(plan, FETCH, [FETCH], copied, image, pull_policy))
    if stored:
        argv = [STORE, "--every", str(STORE_EVERY_SECONDS)]
        parts.init.append({**_helper(plan, STORE, argv, stored, image, pull_policy), "restartPolicy": "Always"})
    parts.stores = bool(stored)
    return parts


def _helper(
    plan: Plan, name: str, argv: list[str], mounts: list[tuple[int, str]], image: str, pull_policy: str
) -> dict[str, Any]:
    """A container of docker/rclone; its arguments are pairs `<remote>:<bucket>/<folder> <path>`."""
    env: list[dict[str, Any]] = [{"name": "HOME", "value": TMP}]
    pairs: list[str] = []
    for number, path in mounts:
        source = plan.mounts[number].source
        assert isinstance(source, S3Source)
        env += _remote(plan, number, source)
        # Without the last slash rclone would first ask whether this is an object, and mistake a dead server for one.
        folder = f"{source.bucket}/{source.prefix}/" if source.prefix else source.bucket
        pairs += [f"data{number}:{folder}".replace("$", "$$"), path]
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": pull_policy,
        "args": [*argv, *pairs],
        "env": env,
        "resources": {"requests": dict(_HELPER), "limits": dict(_HELPER)},
        "securityContext": CONFINED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": TMP},
            *({"name": f"data{number}", "mountPath": path} for number, path in mounts),
        ],
    }


def _remote(plan: Plan, number: int, source: S3Source) -> list[dict[str, Any]]:
    """rclone takes a remote from variables, so there is no file with credentials."""
    prefix = f"RCLONE_CONFIG_DATA{number}"
    provider = "Other" if source.endpoint else "AWS"
    plain = {"TYPE": "s3", "PROVIDER": provider, "ENDPOINT": source.endpoint, "REGION": source.region}
    secret = names.secret_name(plan.run)
    return [
        *({"name": f"{prefix}_{name}", "value": value.replace("$", "$$")} for name, value in plain.items()),
        *(
            {
                "name": f"{prefix}_{name}",
                "valueFrom": {"secretKeyRef": {"name": secret, "key": f"{key}-{number}"}},
            }
            for name, key in (("ACCESS_KEY_ID", "access-key"), ("SECRET_ACCESS_KEY", "secret-key"))
        ),
    ]


def _nfs(plan: Plan, number: int, source: NfsSource, *, read_only: bool) -> list[dict[str, Any]]:
    """A volume that only this claim may have. The size means nothing for NFS, but must be there."""
    name = names.volume_name(plan.run, number)
    size = {"storage": "1Gi"}
    modes = ["ReadOnlyMany" if read_only else "ReadWriteMany"]
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": size,
                "accessModes": modes,
                "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
                "nfs": {"server": source.server, "path": source.path, "readOnly": read_only},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": plan.run.namespace,
                    "name": name,
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                "accessModes": modes,
                "storageClassName": "",
                "volumeName": name,
                "resources": {"requests": size},
            },
        },
    ]
