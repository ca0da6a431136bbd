"""Data of a run inside its pods: containers that fetch and store it, and volumes. Pure.

NFS is a volume and claim of the run. A volume with a size is a claim of the datastore, which runs only mount. S3 is copied: an
init container fetches it into a volume of the pod or, once for many runs, into its own claim (cache.py). For output a native
sidecar stores changes every few seconds and once more when the task has ended. Other sidecars follow event files
(../../follow.py) and serve streamed input (../../stream.py). Credentials are in a Secret and nowhere else.

Ceph RBD and other CSI drivers are volumes of a StorageClass. There is no source for an existing RBD image: CSI opens images with
one key for the whole pool, so a tenant who could name an image could name another tenant's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from clusters.clouds.drivers import outputs
from clusters.clouds.drivers.base import (
    CloudError,
    CloudRefused,
    CodeCommit,
    Mount,
    NfsSource,
    Plan,
    S3Source,
    VolumeSource,
    literal,
)
from clusters.clouds.drivers.follow import EVERY
from clusters.clouds.drivers.kubernetes.render import cache, names
from clusters.clouds.drivers.kubernetes.settings import Settings, quantity
from clusters.clouds.drivers.parts import WHOLE

FETCH = "fetch"
STORE = "store"
FOLLOW = "follow"
FOLDERS = "folders"
DIVIDE = "divide"
STREAM = "stream"
# Key of the endpoints' proof in a run's Secret.
PROOF = "proof"
# Loopback port of the server of streamed input, reachable only inside the pod.
STREAM_PORT = 3142
STORE_EVERY_SECONDS = 10
# Exit code of docker/rclone/fetch if the input differs from the requested one.
REFUSED = 77
TMP = "/tmp"  # noqa: S108 — a volume of the pod's own

CONFINED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
# Resources of a helper beside a task. Limits are equal, so that the pod's QoS class stays Guaranteed.
_HELPER = {"cpu": "100m", "memory": "256Mi"}
# For the helper that serves all of a task's reads.
_BUSY_CPU = "500m"
# For file lists and messages of helpers.
_HELPERS_DISK = {"limits": "1Gi", "requests": "100Mi"}
_HELPERS_TMP = "helpers"
_WORK = "work"
_FIRST: Mapping[str, Any] = {"name": "TASK_INDEX", "value": "0"}


@dataclass
class PodParts:
    """What data adds to a pod. `mounts`: of the task itself. `stores`: output is stored at the end."""

    init: list[dict[str, Any]] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    stores: bool = False


def manifests(plan: Plan, settings: Settings) -> list[dict[str, Any]]:
    """Returns the Secret, volumes and claims of a run, without the labels and owner that every object of a run gets."""
    made: list[dict[str, Any]] = []
    for number, mount in enumerate(plan.mounts):
        if isinstance(mount.source, NfsSource):
            made += _nfs(plan, number, mount.source, read_only=mount.read_only)
        # Volumes do not belong to the run: see `volume_manifest`.
    return made + secret_manifest(plan, settings)


def secret_manifest(plan: Plan, settings: Settings) -> list[dict[str, Any]]:
    """Returns the Secret, if the run needs one. Pods name its keys, and a run may outlive a release: within 1.x a key keeps its
    name."""
    keys = {f"variable-{name}": value for name, value in secrets(plan, settings).items()}
    for number, mount in enumerate(plan.mounts):
        if isinstance(mount.source, S3Source):
            keys[f"access-key-{number}"] = mount.source.access_key
            keys[f"secret-key-{number}"] = mount.source.secret_key
    if isinstance(plan.code, CodeCommit) and plan.code.name:
        keys |= {"git-name": plan.code.name, "git-token": plan.code.token}
    if any(role.endpoints for role in plan.roles):
        keys[PROOF] = plan.proof
    if not keys:
        return []
    secret = {"name": names.secret_name(plan.run)}
    return [{"apiVersion": "v1", "kind": "Secret", "metadata": secret, "type": "Opaque", "stringData": keys}]


def secrets(plan: Plan, settings: Settings) -> dict[str, str]:
    """Returns variables of every task that only the Secret holds."""
    found = {**plan.secrets, **plan.tracking_variables(settings.tracking)}
    for mount in plan.mounts:
        found |= mount.stream_variables(f"http://127.0.0.1:{STREAM_PORT}")
    return found


def volume_manifest(source: VolumeSource, settings: Settings) -> dict[str, Any]:
    """Returns the claim of a datastore's volume. It has no owner: it is deleted with the datastore."""
    spec: dict[str, Any] = {
        "accessModes": [source.access_mode],
        "resources": {"requests": {"storage": source.size}},
    }
    if source.storage_class:  # without the field Kubernetes uses the default class; "" means none
        spec["storageClassName"] = source.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.claim_name(source.volume),
            "namespace": source.volume.namespace,
            "labels": names.volume_labels(settings.portal, source.volume),
        },
        "spec": spec,
    }


def refusal(text: str) -> CloudError:
    """Returns the reason why a volume cannot grow, from the API server's message on its claim."""
    if "bound claims" in text or "bound persistent volume claims" in text:
        return CloudError("It grows when a run has mounted it.")
    if "must support resize" in text:
        return CloudRefused("Its storage class cannot make a volume larger.")
    return CloudRefused(text)


def pod_parts(
    plan: Plan,
    settings: Settings,
    *,
    serves: bool = False,
    first_part: int = -1,
    task_index: Mapping[str, Any] = _FIRST,
    work: str = "",
) -> PodParts:
    """Returns the parts of a pod. `serves`: the pod has an endpoint, and storing output must not affect its readiness.
    `first_part`: of the role. `task_index`: the variable that distinguishes its tasks. `work`: the role's name if its tasks
    start in their own folder (frameworks/starting.py)."""
    parts = _work(settings) if work else PodParts()
    copied: list[tuple[int, str]] = []
    stored: list[tuple[int, str]] = []
    followed: list[tuple[int, str]] = []
    folders: list[tuple[int, str]] = []
    for number, mount in enumerate(plan.mounts):
        if mount.stream_key:
            continue
        volume = f"data{number}"
        path = WHOLE if _is_linked(mount) else mount.mount_path
        lies, folder = _behind(plan, number, settings)
        parts.volumes.append({"name": volume, **lies})
        shown = {"name": volume, "mountPath": path, "readOnly": mount.read_only}
        parts.mounts.append({**shown, **({"subPath": folder} if folder else {})})
        if isinstance(mount.source, S3Source):
            (followed if mount.follow else copied).append((number, mount.mount_path))
            if not mount.read_only:
                stored.append((number, mount.mount_path))
        elif folder and not mount.read_only:
            folders.append((number, folder))
    if folders:
        parts.init.append(_make_folders(folders, settings))
    if copied:
        parts.init.append(_fetch(plan, copied, settings, first_part, task_index))
    for mount in filter(_is_linked, plan.mounts):
        _divide(mount, parts, settings, first_part, task_index)
    if stored:
        store = _store(plan, stored, settings, serves=serves)
        parts.init.append(_with_work(store, work, task_index) if work else store)
    if followed:
        parts.init.append(_follow(plan, followed, settings))
    streaming = _stream(plan, settings)
    parts.init += streaming
    if copied or followed or streaming:
        parts.volumes.append({"name": _HELPERS_TMP, "emptyDir": {"sizeLimit": _HELPERS_DISK["limits"]}})
    parts.stores = bool(stored)
    return parts


def _store(plan: Plan, stored: list[tuple[int, str]], settings: Settings, *, serves: bool) -> dict[str, Any]:
    words = [STORE, "--every", str(STORE_EVERY_SECONDS), "--within", str(settings.store_seconds)]
    made = _helper(plan, STORE, words, stored, settings)
    made["restartPolicy"] = "Always"
    # A task may end before this program handles signals, and process 1 does not get unhandled ones. The file, written before the
    # signal is sent, tells it.
    made["lifecycle"] = {"preStop": {"exec": {"command": ["touch", f"{TMP}/ended"]}}}
    if not serves:
        # Not ready while storing fails. Tasks still reach each other, because their Service ignores readiness.
        failing = {"command": ["test", "!", "-e", f"{TMP}/failing"]}
        made["readinessProbe"] = {"exec": failing, "periodSeconds": STORE_EVERY_SECONDS}
    return made


def _work(settings: Settings) -> PodParts:
    lies = {"name": _WORK, "emptyDir": on_disk(settings)}
    return PodParts(volumes=[lies], mounts=[{"name": _WORK, "mountPath": outputs.WORK}])


def _with_work(store: dict[str, Any], role: str, task_index: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the container store the files of the working folder, too, below the first output."""
    remote = store["args"][5].rstrip("/")
    join = "" if remote.endswith(":") else "/"
    store["args"] += [f"{remote}{join}{outputs.WORK_FOLDER}/{role}-$(TASK_INDEX)/", outputs.WORK]
    store["env"].insert(0, dict(task_index))
    store["volumeMounts"].append({"name": _WORK, "mountPath": outputs.WORK})
    return store


def _follow(plan: Plan, followed: list[tuple[int, str]], settings: Settings) -> dict[str, Any]:
    made = _helper(plan, FOLLOW, [FOLLOW, "--every", str(EVERY)], followed, settings)
    # The task starts after the first complete round, however long a server is away, so existing files are visible at once.
    probe = {
        "exec": {"command": ["test", "-e", f"{TMP}/reached"]},
        "periodSeconds": 1,
        "failureThreshold": 1_000_000,
    }
    return {**made, "restartPolicy": "Always", "startupProbe": probe}


def _stream(plan: Plan, settings: Settings) -> list[dict[str, Any]]:
    """Returns the server of streamed input on the pod's loopback; it copies nothing."""
    streamed = [(number, mount.mount_path) for number, mount in enumerate(plan.mounts) if mount.stream_key]
    if not streamed:
        return []
    made = _helper(plan, STREAM, [STREAM, str(STREAM_PORT)], streamed, settings)
    del made["args"][-1], made["volumeMounts"][1:]
    for held in made["resources"].values():
        held["cpu"] = _BUSY_CPU
    key = {"name": names.secret_name(plan.run), "key": "variable-AWS_ACCESS_KEY_ID"}
    made["env"].append({"name": "STREAM_KEY", "valueFrom": {"secretKeyRef": key}})
    probe = {"exec": {"command": ["test", "-e", f"{TMP}/serving"]}, "periodSeconds": 1, "failureThreshold": 60}
    return [{**made, "restartPolicy": "Always", "startupProbe": probe}]


def _fetch(
    plan: Plan,
    copied: list[tuple[int, str]],
    settings: Settings,
    first_part: int,
    task_index: Mapping[str, Any],
) -> dict[str, Any]:
    """Relies on the order of mounts: shown outputs come last, hence after --most; the (divided) input comes first."""
    made = _helper(plan, FETCH, [FETCH], copied, settings)
    first, front = plan.mounts[copied[0][0]], list[str]()
    if first.is_input:
        front += ["--input", first.digest or "-", literal(first.version) or "-"]
    if first.cached:
        front.append("--cached")
    if first.is_divided and not first.cached:
        part = "$(TASK_INDEX)" if first_part >= 0 else "0"
        front += ["--divide", str(first_part), part, str(first.parts), str(first.fold), str(first.folds)]
        made["env"].insert(0, dict(task_index))
    made["args"][1:1] = front
    limits = [plan.mounts[number].shown_gib for number, _ in copied]
    if any(limits):
        behind = 1 + len(front)
        behind += 2 * next(place for place, limit in enumerate(limits) if limit)
        made["args"][behind:behind] = ["--most", f"{max(limits):g}Gi"]
    return made


def _is_linked(mount: Mount) -> bool:
    """True if a divided input is mounted, so that tasks see links to their files."""
    return mount.is_divided and (mount.cached or not isinstance(mount.source, S3Source))


def _divide(mount: Mount, parts: PodParts, settings: Settings, first_part: int, task_index: Mapping[str, Any]) -> None:
    """Adds the container that links a task's files, and a volume for the links."""
    links = {"name": DIVIDE, "mountPath": mount.mount_path}
    whole = next(each for each in parts.mounts if each["mountPath"] == WHOLE)
    numbers = (mount.parts, mount.fold, mount.folds)
    words = ["--links", str(first_part), "$(TASK_INDEX)", *map(str, numbers), WHOLE, mount.mount_path]
    made = {
        **container(DIVIDE, settings),
        "command": ["parts", *words],
        "env": [dict(task_index)],
        "volumeMounts": [whole, links],
    }
    parts.init.append(made)
    parts.volumes.append({"name": DIVIDE, "emptyDir": on_disk(settings)})
    parts.mounts.append({**links, "readOnly": True})


def lend(helpers: list[dict[str, Any]], task: Mapping[str, Any]) -> None:
    """Gives helpers that end before the task starts its CPU and memory. This reserves no more on the node: a pod reserves the
    larger of what its init containers and its containers request."""
    for helper in helpers:
        if "restartPolicy" in helper:
            continue  # a sidecar
        for kind, held in helper["resources"].items():
            held |= {name: max(own, task[kind][name], key=quantity) for name, own in _HELPER.items()}


def _behind(plan: Plan, number: int, settings: Settings) -> tuple[dict[str, Any], str]:
    """Returns the volume of a mount, and the folder in it that tasks see, "" for all of it."""
    mount = plan.mounts[number]
    source = mount.source
    if mount.cached:
        return {"persistentVolumeClaim": {"claimName": cache.claim_name(plan, settings)}}, cache.FILES
    if isinstance(source, S3Source):
        return {"emptyDir": on_disk(settings)}, ""
    if isinstance(source, VolumeSource):
        claim, folder = names.claim_name(source.volume), source.folder
    else:
        assert isinstance(source, NfsSource)
        claim = names.volume_name(plan.run, number)
        folder = str(PurePosixPath(source.path).relative_to(source.root)) if source.root else "."
    return {"persistentVolumeClaim": {"claimName": claim, "readOnly": mount.read_only}}, "" if folder == "." else folder


def _make_folders(folders: list[tuple[int, str]], settings: Settings) -> dict[str, Any]:
    """Creates folders as the tasks' user, and reports errors. Kubernetes would create a missing `subPath` as root, whom an NFS
    server maps to nobody, and whose folders tasks could not write to."""
    roots = {number: f"/data{number}" for number, _ in folders}
    return {
        **container(FOLDERS, settings),
        "command": ["mkdir", "-p", "--", *(literal(f"{roots[number]}/{folder}") for number, folder in folders)],
        "volumeMounts": [{"name": f"data{number}", "mountPath": root} for number, root in roots.items()],
    }


def on_disk(settings: Settings) -> dict[str, Any]:
    """Returns an emptyDir. Limits of the containers bound what a pod writes in total."""
    return {"sizeLimit": settings.task_disk["limits"]} if settings.disk else {}


def _helpers_disk(kind: str, settings: Settings) -> dict[str, str]:
    """Returns an explicit limit, because helpers would otherwise get the namespace's default."""
    disk = settings.task_disk
    return {"ephemeral-storage": min(_HELPERS_DISK[kind], disk[kind], key=quantity)} if disk else {}


def container(name: str, settings: Settings) -> dict[str, Any]:
    return {
        "name": name,
        "image": settings.storage_image,
        "imagePullPolicy": settings.image_pull_policy,
        "resources": {kind: {**_HELPER, **_helpers_disk(kind, settings)} for kind in ("requests", "limits")},
        "securityContext": CONFINED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _helper(
    plan: Plan, name: str, argv: list[str], mounts: list[tuple[int, str]], settings: Settings
) -> dict[str, Any]:
    """Returns a container of docker/rclone with arguments `<remote>:<bucket>/<folder> <path>` and its own /tmp."""
    env: list[dict[str, Any]] = [{"name": "HOME", "value": TMP}]
    pairs: list[str] = []
    for number, path in mounts:
        source = plan.mounts[number].source
        assert isinstance(source, S3Source)
        env += _remote(plan, number, source)
        # Without the trailing slash rclone first checks for an object of that name, and takes a dead server for one.
        folder = f"{source.bucket}/{source.prefix}/" if source.prefix else source.bucket
        pairs += [literal(f"data{number}:{folder}"), path]
    return {
        **container(name, settings),
        "args": [*argv, *pairs],
        "env": env,
        "volumeMounts": [
            {"name": _HELPERS_TMP, "mountPath": TMP},
            *({"name": f"data{number}", "mountPath": path} for number, path in mounts),
        ],
    }


def fetched_from(container: Mapping[str, Any], path: str) -> str:
    """Returns a description for people of what `container` (in a pod) copies to `path`."""
    args = container.get("args") or []
    remote = args[args.index(path) - 1] if path in args[1:] else path
    bucket, _, folder = remote.partition(":")[2].replace("$$", "$").partition("/")
    folder = folder.rstrip("/")
    return f"folder {folder} of bucket {bucket}" if folder else f"bucket {bucket}"


def _remote(plan: Plan, number: int, source: S3Source) -> list[dict[str, Any]]:
    """Configures an rclone remote by variables, so that no file holds credentials."""
    prefix = f"RCLONE_CONFIG_DATA{number}"
    provider = "Other" if source.endpoint else "AWS"
    plain = {"TYPE": "s3", "PROVIDER": provider, "ENDPOINT": source.endpoint, "REGION": source.region}
    secret = names.secret_name(plan.run)
    return [
        *({"name": f"{prefix}_{name}", "value": literal(value)} for name, value in plain.items()),
        *(
            {
                "name": f"{prefix}_{name}",
                "valueFrom": {"secretKeyRef": {"name": secret, "key": f"{key}-{number}"}},
            }
            for name, key in (("ACCESS_KEY_ID", "access-key"), ("SECRET_ACCESS_KEY", "secret-key"))
        ),
    ]


def _nfs(plan: Plan, number: int, source: NfsSource, *, read_only: bool) -> list[dict[str, Any]]:
    """Returns a volume that only this claim of this namespace can bind. NFS requires a size and ignores it."""
    name, behind = names.volume_name(plan.run, number), names.persistent_volume_name(plan.run, number)
    size = {"storage": "1Gi"}
    modes = ["ReadOnlyMany" if read_only else "ReadWriteMany"]
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": behind},
            "spec": {
                "capacity": size,
                "accessModes": modes,
                "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
                # Files on the server are not trustworthy.
                "mountOptions": ["nosuid", "nodev"],
                "nfs": {"server": source.server, "path": source.root or source.path, "readOnly": read_only},
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
                "volumeName": behind,
                "resources": {"requests": size},
            },
        },
    ]
