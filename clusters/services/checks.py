"""Whether a service can run as its definition says: its names exist, and its replicas fit into the quota of its appcode."""

from __future__ import annotations

from collections.abc import Sequence

from clusters.catalog.admission import Quota, judge_quota
from clusters.catalog.lookup import Resolved, resolve
from clusters.catalog.models import ServingRuntime
from clusters.clouds.placement import gpu_limit
from clusters.manifest.cluster import ClusterSpec
from clusters.model_registry.models import ModelVersion
from clusters.runs.models import Cluster
from clusters.services import revisions
from clusters.services.manifest import MAX_SLOTS, ReplicasSpec, ServiceSpec, name_of_model, replica_name
from clusters.services.models import Service
from portal.errors import FieldError, Invalid
from portal.manifests import parse
from portal.models import Appcode


def version_of(service: Service, spec: ServiceSpec, number: int | None) -> ModelVersion:
    """The version with this number, or the one that its alias names. Raises Invalid at "version"."""
    try:
        found = resolved_as(
            spec, f"{name_of_model(spec.model)}/{number}" if number else spec.model, service.appcode
        ).model
    except Invalid as invalid:
        errors = [
            FieldError(("version",), each.message, each.see) if number and each.path == ("spec", "model") else each
            for each in invalid.errors
        ]
        raise Invalid(errors) from None
    assert found
    return found


def judge(name: str, spec: ServiceSpec, appcode: Appcode) -> ModelVersion:
    """The version that its model names now. Raises Invalid, at its fields, if no replica could be created."""
    slots = [replica_name(name, slot) for slot in range(1, MAX_SLOTS + 1)]
    clusters = Cluster.objects.filter(appcode=appcode, name__in=slots, deleted_at=None)
    if taken := clusters.exclude(part_of=f"services/{name}").values_list("name", flat=True).first():
        message = f"There is a cluster “{taken}”, as a replica of this would be called; choose another name."
        raise Invalid.at("metadata", "name", message=message)
    judge_runtime(spec)
    resolved = resolved_as(spec, spec.model, appcode)
    judge_size(spec.replicas, resolved, appcode)
    if spec.rollout.cpu_flavor:
        other = resolved_as(spec, spec.model, appcode, spec.rollout.cpu_flavor, ("spec", "rollout", "cpuFlavor"))
        if other.gpus:
            message = f"“{spec.rollout.cpu_flavor}” has a GPU; name a flavor without one."
            raise Invalid.at("spec", "rollout", "cpuFlavor", message=message)
    assert resolved.model
    return resolved.model


def judge_size(replicas: ReplicasSpec, resolved: Resolved, appcode: Appcode) -> None:
    """Raises Invalid if the quota of the appcode can never hold this many replicas. The additional one during a rollout does
    not count: it waits, or does what `whenFull` says."""
    for field in ("least", "most"):
        count = getattr(replicas, field)
        quota = judge_quota(resolved.gpus * count, Quota(appcode.code, gpu_limit(appcode, resolved.place.cloud)))
        if quota.fits == "never":
            more = f"/appcodes/{appcode.code}/request?gpus={resolved.gpus * count}"
            raise Invalid.at("spec", "replicas", field, message=quota.message, see=more)


def judge_runtime(spec: ServiceSpec) -> None:
    """Raises Invalid if the catalogue does not offer the runtime, or if the spec has too many or too few fields for it. Whether
    it can serve the model, and where, is checked with the version."""
    runtime = ServingRuntime.objects.filter(name=spec.runtime, enabled=True).first()
    if runtime is None:
        raise Invalid.at("spec", "runtime", message=f"The catalogue offers no serving runtime “{spec.runtime}”.")
    if not runtime.image:
        if spec.image is None:
            raise Invalid.at("spec", "image", message="Name the image that has what the model was made with.")
        return
    said = {"image": spec.image, "environment": spec.environment, "command": spec.command}
    sentence = f"“{runtime.title}” is a container that has all it needs; leave this out."
    if wrong := [FieldError(("spec", field), sentence) for field, value in said.items() if value]:
        raise Invalid(wrong)


def resolved_as(
    spec: ServiceSpec,
    model: str,
    appcode: Appcode,
    flavor: str = "",
    flavor_at: Sequence[str] = ("spec", "flavor"),
) -> Resolved:
    """A replica of a service for `model` (by alias or version), with all names resolved and ready to run. Raises Invalid."""
    body = {**revisions.replica_spec(spec, 1, flavor), "model": model}
    try:
        return resolve(parse(ClusterSpec, body), appcode, by_routers=True)
    except Invalid as invalid:
        raise Invalid([_as_said(each, tuple(flavor_at)) for each in invalid.errors]) from None


def _as_said(error: FieldError, flavor_at: tuple[str, ...]) -> FieldError:
    """An error of a replica's cluster, at the service's field that caused it."""
    path = error.path if error.path[:1] == ("spec",) else ("spec", *error.path)
    if path[:2] == ("spec", "framework"):
        path = ("spec", "image")
    elif path[:2] == ("spec", "server"):
        path = ("spec", "runtime")
    elif path[:2] == ("spec", "roles"):
        path = flavor_at
    return FieldError(path, error.message, error.see)
