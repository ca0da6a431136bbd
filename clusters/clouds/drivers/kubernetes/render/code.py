"""The program that people gave, in the pods of a run. Pure.

Its files stand in the ConfigMap that owns the run, which nobody can change, and a volume shows them under their names: nothing is
copied, no container has to start before the task, and the task sees them read-only.
"""

from __future__ import annotations

from clusters.clouds.drivers.base import CODE, Plan
from clusters.clouds.drivers.kubernetes.render import names, storage


def held(plan: Plan) -> dict[str, str]:
    """What the owner of the run holds of it, by key. No variable has such a name."""
    return {f"code-{number}": text for number, (_, text) in enumerate(_in_order(plan))}


def pod_parts(plan: Plan) -> storage.PodParts:
    parts = storage.PodParts()
    if plan.code:
        items = [{"key": f"code-{number}", "path": name} for number, (name, _) in enumerate(_in_order(plan))]
        parts.volumes.append({"name": "code", "configMap": {"name": names.owner_name(plan.run), "items": items}})
        parts.mounts.append({"name": "code", "mountPath": CODE, "readOnly": True})
    return parts


def _in_order(plan: Plan) -> list[tuple[str, str]]:
    return sorted(plan.code.files.items()) if plan.code else []
