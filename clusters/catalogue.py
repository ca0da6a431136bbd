"""Names in a manifest → rows that exist and may be used. The half of validation that needs the database, in one place.

The form, the API, an import, the preview and every new run go through `resolve`, so all of them refuse the same things with
the same words at the same field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from clusters.admission import Quota, judge_quota
from clusters.models import Flavor, Image
from clusters.plans import Resources
from clusters.specs import ClusterSpec
from datastores.models import Datastore
from datastores.sources import SourceError, source_for
from portal.errors import FieldError, Invalid
from portal.models import Appcode


@dataclass(frozen=True)
class Resolved:
    """A spec whose every name exists. `resources` is by role; datastores are None where the spec has none."""

    spec: ClusterSpec
    image: Image
    resources: Mapping[str, Resources]
    input: Datastore | None
    output: Datastore | None

    @property
    def gpus(self) -> int:
        """GPUs of all tasks together."""
        return sum(self.resources[role].gpus * spec.count for role, spec in self.spec.active_roles.items())

    @property
    def resources_json(self) -> dict[str, dict[str, object]]:
        return {role: asdict(resources) for role, resources in self.resources.items()}


def resolve(spec: ClusterSpec, appcode: Appcode) -> Resolved:
    """Raises Invalid with every field that names something absent, disabled or out of reach. Three queries, five at most."""
    errors: list[FieldError] = []

    def wrong(message: str, *path: str) -> None:
        errors.append(FieldError(("spec", *path), message))

    image = Image.objects.filter(name=spec.image, enabled=True).first()
    if image is None:
        wrong(f"The catalogue has no image “{spec.image}”.", "image")
    elif not image.environment:
        wrong(
            f"“{image.title}” has only a container reference and cannot run on this machine; choose another image.",
            "image",
        )

    flavors = {
        flavor.name: flavor
        for flavor in Flavor.objects.filter(enabled=True, name__in=[r.flavor for r in spec.roles.values()])
    }
    resources: dict[str, Resources] = {}
    for role, role_spec in spec.roles.items():
        flavor = flavors.get(role_spec.flavor)
        if flavor is None:
            wrong(f"There is no flavor “{role_spec.flavor}”.", "roles", role, "flavor")
        else:
            resources[role] = Resources(flavor.name, flavor.cpu_milli, flavor.memory_mb, flavor.gpus, flavor.gpu_model)

    stores = _datastores(spec, appcode, wrong)
    if errors or image is None:
        raise Invalid(errors)
    resolved = Resolved(spec, image, resources, stores.get(spec.input or ""), stores.get(spec.output or ""))
    quota = judge_quota(resolved.gpus, Quota(appcode.code, appcode.gpu_quota, held=0))
    if quota.fits == "never":
        role = max(spec.active_roles, key=lambda each: resources[each].gpus * spec.count(each))
        raise Invalid.at("spec", "roles", role, "count" if role != "master" else "flavor", message=quota.message)
    return resolved


def _datastores(spec: ClusterSpec, appcode: Appcode, wrong: Callable[..., None]) -> dict[str, Datastore]:
    """The datastores that `spec` names, by name; tells `wrong` of each that cannot serve."""
    names = {path: name for path, name in (("input", spec.input), ("output", spec.output)) if name}
    stores = {
        store.name: store
        for store in Datastore.objects.filter(appcode=appcode, name__in=names.values()).select_related("appcode")
    }
    for path, name in names.items():
        if name not in stores:
            wrong(f"{appcode.code} has no datastore “{name}”.", path)
            continue
        try:
            if source_for(stores[name]).read_only and path == "output":
                wrong(f"The folder of “{name}” may only be read; choose another datastore for output.", path)
        except SourceError as error:
            wrong(str(error), path)
    return stores
