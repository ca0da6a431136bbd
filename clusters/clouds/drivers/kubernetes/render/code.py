"""A run's code in its pods. Pure.

An init container of the storage image (../../git.py) fetches a commit into a volume of the pod; name and token of the Git server
are in the run's Secret, and only that container gets them. Files of a manifest are in the immutable ConfigMap that owns the run,
and a volume shows them under their names. The task sees both read-only.
"""

from __future__ import annotations

from typing import Any

from clusters.clouds.drivers.base import CODE, CodeCommit, CodeFiles, Plan, literal
from clusters.clouds.drivers.kubernetes.render import names, storage
from clusters.clouds.drivers.kubernetes.settings import Settings

FETCH_CODE = "code"
# Longer than the program's own limit (../../git.py).
SECONDS = 1000


def held(plan: Plan) -> dict[str, str]:
    """Returns the code files for the run's ConfigMap, by key. No variable has such a name."""
    return {f"code-{number}": text for number, (_, text) in enumerate(_in_order(plan))}


def start_folder(plan: Plan) -> str:
    """Returns the working folder of the tasks; "" for the image's own."""
    return f"{CODE}/{plan.code.folder}".rstrip("/") if plan.code else ""


def pod_parts(plan: Plan, settings: Settings, resources: dict[str, Any]) -> storage.PodParts:
    """Returns the parts of a pod. `resources`: the task's, without GPUs, for the container that fetches a commit."""
    parts = storage.PodParts()
    if isinstance(plan.code, CodeCommit):
        parts.init.append(_fetch(plan, plan.code, settings, resources))
        parts.volumes.append({"name": "code", "emptyDir": storage.on_disk(settings)})
    elif plan.code:
        items = [{"key": f"code-{number}", "path": name} for number, (name, _) in enumerate(_in_order(plan))]
        parts.volumes.append({"name": "code", "configMap": {"name": names.owner_name(plan.run), "items": items}})
    if plan.code:
        parts.mounts.append({"name": "code", "mountPath": CODE, "readOnly": True})
    return parts


def _in_order(plan: Plan) -> list[tuple[str, str]]:
    return sorted(plan.code.files.items()) if isinstance(plan.code, CodeFiles) else []


def _fetch(plan: Plan, code: CodeCommit, settings: Settings, resources: dict[str, Any]) -> dict[str, Any]:
    env: list[dict[str, Any]] = [{"name": "HOME", "value": storage.TMP}]
    if code.name:
        secret = names.secret_name(plan.run)
        env += [
            {"name": f"GIT_{key.upper()}", "valueFrom": {"secretKeyRef": {"name": secret, "key": f"git-{key}"}}}
            for key in ("name", "token")
        ]
    words = (code.url, code.commit, CODE, f"{storage.TMP}/.git-objects", code.folder)
    return {
        **storage.container(FETCH_CODE, settings),
        # `timeout` forwards signals, which process 1 would ignore.
        "command": ["timeout", "--kill-after=5", str(SECONDS), "git-commit", *map(literal, words)],
        "env": env,
        "resources": resources,
        "volumeMounts": [{"name": "tmp", "mountPath": storage.TMP}, {"name": "code", "mountPath": CODE}],
    }
