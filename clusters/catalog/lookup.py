"""Names in a manifest → rows that exist and may be used. All validation that needs the database is here.

The form, the API, an import, the preview and every new run use `resolve`, so all reject the same errors with the same words at
the same field. What can be used depends on the cloud where the run will be placed: some need an image's container, others its
environment, and not every cloud reaches every kind of datastore. software.py resolves what tasks run, data.py what they mount,
and hook_lookup.py their hooks; each adds an error for what cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from billing.budgets.access import why_blocked
from clusters.admission.demand import ANY
from clusters.catalog.admission import Quota, judge_quota
from clusters.catalog.data import Input, Shown, data_of, datastores_named, shown_named, source_named, why_not_mounted
from clusters.catalog.hook_lookup import hooks_named
from clusters.catalog.models import Image, ServingRuntime
from clusters.catalog.size import too_many
from clusters.catalog.software import (
    checked,
    environment_named,
    image_of,
    images_named,
    judge_requirements,
    plugins_named,
    runtime_named,
    why_not_in,
)
from clusters.clouds.placement import PLACES, Place, choose, gpu_limit, places, rows_by_kind
from clusters.clouds.registry import driver, gateway_of, leads_routers, takes_spare
from clusters.environments.models import Environment, Plugin
from clusters.frameworks import FRAMEWORKS, ROLES
from clusters.frameworks.base import Resources
from clusters.frameworks.serving import FORMATS as FORMATS_SERVED
from clusters.manifest.cluster import ClusterSpec
from clusters.manifest.hook_spec import HookSpec
from clusters.model_registry.models import ModelVersion
from clusters.runs.models import Run
from datastores.models import Datastore
from portal.access import OPERATE, appcodes_for, require
from portal.errors import FieldError, Invalid
from portal.models import Appcode, User
from portal.network.outgoing import Closed, check_literal


@dataclass(frozen=True)
class Resolved:
    """A spec in which every name exists, and its place. `resources` is by role. A datastore is None if the spec has none."""

    spec: ClusterSpec
    place: Place
    image: Image
    environment: Environment | None
    plugins: tuple[Plugin, ...]
    resources: Mapping[str, Resources]
    input: Input | None
    output: Datastore | None
    home: Datastore | None
    # Parent domain of its endpoints, "" for the domain of the portal.
    domain: str = ""
    runs: tuple[Shown, ...] = ()
    model: ModelVersion | None = None
    # Includes the values of the appcode's saved hooks that they use.
    hooks: tuple[HookSpec, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of all tasks that exist at the same time; slices of GPUs are none."""
        return sum(self.resources[role].whole_gpus * spec.together for role, spec in self.spec.active_roles.items())


@dataclass(frozen=True)
class Needs:
    """What a run needs at its start, as it is then. The sizes of its tasks were copied when the run was created."""

    image: Image
    environment: Environment | None
    plugins: tuple[Plugin, ...]
    input: Input | None
    output: Datastore | None
    home: Datastore | None
    runs: tuple[Shown, ...]
    model: ModelVersion | None


def usable_appcode(code: str, user: User, found: Appcode | None = None) -> Appcode:
    """The appcode in which `user` may run something now. `found` is its row if it was just read. Raises PermissionDenied, or
    Invalid, which does not distinguish an appcode that the user may not see from one that does not exist."""
    appcode = found if found and found.code == code else appcodes_for(user).filter(code=code).first()
    if appcode is None:
        raise Invalid.at("metadata", "appcode", message=f"There is no appcode “{code}” that you can use.")
    require(user, appcode, OPERATE)
    require_active(appcode)
    return appcode


def name_taken(code: str, name: str) -> Invalid:
    """The error for a name that another cluster of the appcode has."""
    return Invalid.at("metadata", "name", message=f"{code} already has a cluster “{name}”; choose another name.")


def require_active(appcode: Appcode) -> None:
    """Raises Invalid unless the appcode is approved, neither disabled nor expired, and no budget blocks its new runs."""
    if sentence := appcode.why_not or why_blocked(appcode):
        longer = f"/appcodes/{appcode.code}/request" if appcode.expired else ""
        raise Invalid.at("metadata", "appcode", message=sentence, see=longer)


def needs(spec: ClusterSpec, appcode: Appcode, cloud: str, namespace: str, source: Run | None = None) -> Needs:
    """What a run of `spec` on `cloud` needs besides GPUs. `source` is the run whose output it reads. Raises Invalid if a part
    of it is gone, and CloudError if the cloud is. At most seven queries."""
    errors: list[FieldError] = []
    place = Place(cloud, cloud, namespace, driver(cloud))
    runtime = runtime_named(spec, place, errors)
    image = image_of(runtime) or checked(images_named(spec).first(), spec, place, errors)
    environment = environment_named(spec, appcode, place, errors)
    plugins = plugins_named(spec, place, errors)
    stores = datastores_named(spec, appcode, place, source, errors)
    shown = shown_named(spec, appcode, place, errors)
    model = _model(spec, appcode, place, runtime, errors)
    if errors or image is None:
        raise Invalid(errors)
    return Needs(image, environment, plugins, *data_of(spec, stores, source), shown, model)


# Query for every new cluster: its place, and the image and flavors that it names.
_NAMED = f"""{PLACES}
UNION ALL
SELECT 'image', jsonb_build_object(
    'id', id, 'name', name, 'title', title, 'description', description, 'container', container,
    'environment', environment, 'program', program, 'frameworks', frameworks, 'enabled', enabled
)
FROM clusters_image WHERE enabled AND name = %(image)s
UNION ALL
SELECT 'flavor', jsonb_build_object(
    'flavor', name, 'cpu_milli', cpu_milli, 'memory_mb', memory_mb, 'gpus', gpus, 'gpu_model', gpu_model,
    'resource', resource, 'node_labels', node_labels, 'tolerations', tolerations, 'extra', extra
)
FROM clusters_flavor WHERE enabled AND name = ANY(%(flavors)s)
"""  # noqa: S608  both are constants


def resolve(spec: ClusterSpec, appcode: Appcode, *, by_routers: bool = False, within_quota: bool = True) -> Resolved:
    """Raises Invalid with every field that names something absent, disabled or unreachable. One query for a spec without
    datastores and endpoints. `by_routers`: only routers route to its endpoints, as for replicas of a service. Without
    `within_quota`, more GPUs than its appcode may hold are not refused."""
    errors: list[FieldError] = []
    names = {"image": spec.image, "flavors": [each.flavor for each in spec.roles.values()]}
    found = rows_by_kind(_NAMED, {**places(appcode), **names})
    place = choose(appcode, found)
    if spec.server and not by_routers:
        errors.append(FieldError(("spec", "server"), "Only services say this of their replicas."))
    if sentence := _why_no_class(spec, place, by_routers=by_routers):
        errors.append(FieldError(("spec", "priorityClass"), sentence))
    runtime = runtime_named(spec, place, errors)
    named = next((Image(**row) for row in found["image"]), None)
    image = image_of(runtime) or checked(named, spec, place, errors)
    # An environment or requirements may add what the image lacks.
    is_bare = not (spec.environment or spec.requirements)
    if image and is_bare and (sentence := why_not_in(image, spec.framework)):
        errors.append(FieldError(("spec", "framework"), sentence))
    environment = environment_named(spec, appcode, place, errors)
    judge_requirements(spec, place, errors)
    plugins = plugins_named(spec, place, errors)
    resources = _sizes(spec, place, found["flavor"], errors)
    if spec.code and spec.code.git and (sentence := _why_not_fetched(spec.code.git)):
        errors.append(FieldError(("spec", "code", "git"), sentence))
    gateway = gateway_of(place.cloud) if spec.served and not by_routers else None
    if spec.served and by_routers and not leads_routers(place.cloud):
        sentence = (
            f"{appcode.code} runs on {place.title}, which lets no routers of services in yet. An administrator names their "
            "namespace in its settings."
        )
        errors.append(FieldError(("spec", "framework"), sentence))
    elif spec.served and not by_routers and gateway is None:
        sentence = (
            f"{appcode.code} runs on {place.title}, which has no gateway yet: nothing that it serves could be opened. An "
            "administrator names one in its settings."
        )
        errors.append(FieldError(("spec", "framework"), sentence))
    source = source_named(spec, appcode, errors)
    stores = datastores_named(spec, appcode, place, source, errors)
    shown = shown_named(spec, appcode, place, errors)
    model = _model(spec, appcode, place, runtime, errors)
    hooks = hooks_named(spec, appcode, place, errors)
    if resources.keys() == spec.roles.keys() and (sentence := too_many(spec, resources, place.driver.longest_address)):
        largest = max(spec.active_roles, key=spec.count)
        errors.append(FieldError(("spec", "roles", largest, "count"), sentence))
    if errors or image is None:
        raise Invalid(errors)
    domain = gateway.domain if gateway else ""
    data = data_of(spec, stores, source)
    resolved = Resolved(
        spec, place, image, environment, plugins, resources, *data, runs=shown, model=model, domain=domain, hooks=hooks
    )
    if within_quota and (refusal := over_quota(resolved, appcode)):
        raise Invalid([refusal])
    return resolved


def over_quota(resolved: Resolved, appcode: Appcode) -> FieldError | None:
    """Why the run can never start within the GPUs that its appcode may hold, at the field to change; None if it can."""
    spec, most = resolved.spec, gpu_limit(appcode, resolved.place.cloud)
    quota = judge_quota(resolved.gpus, Quota(appcode.code, most, borrow=most - appcode.gpu_quota))
    if quota.fits != "never" or spec.priority_class == "spare":
        return None
    gpus = {role: resolved.resources[role].gpus for role in spec.active_roles}
    role = max(gpus, key=lambda each: gpus[each] * spec.active_roles[each].together)
    field = "flavor" if ROLES[role].is_fixed else "atOnce" if spec.roles[role].at_once else "count"
    more = f"/appcodes/{appcode.code}/request?gpus={resolved.gpus}"
    return FieldError(("spec", "roles", role, field), quota.message + _turns(spec, most // gpus[role]), more)


def _sizes(
    spec: ClusterSpec, place: Place, rows: Iterable[Mapping[str, Any]], errors: list[FieldError]
) -> dict[str, Resources]:
    """What one task of each role holds. Appends an error for each flavor that is absent, or not for this place."""
    flavors = {row["flavor"]: Resources(**row) for row in rows}
    found = {}
    for role, role_spec in spec.roles.items():
        path, flavor = ("spec", "roles", role, "flavor"), flavors.get(role_spec.flavor)
        if flavor is None:
            errors.append(FieldError(path, f"There is no flavor “{role_spec.flavor}”."))
        elif flavor.demand != ANY and not place.driver.has_pools:
            what = f"Flavor “{role_spec.flavor}” demands labels, taints or devices that {place.title} does not have."
            errors.append(FieldError(path, f"{what} Choose another flavor."))
        else:
            found[role] = flavor
    return found


def _why_no_class(spec: ClusterSpec, place: Place, *, by_routers: bool) -> str:
    """Why it cannot have its priority class, or ""."""
    if spec.priority_class == "normal":
        return ""
    if by_routers:
        return "Replicas of a service answer people: they are always normal."
    if not takes_spare(place.cloud):
        return f"{place.title} decides itself which run goes first and which gives way; choose normal."
    return ""


def _turns(spec: ClusterSpec, most: int) -> str:
    """A hint to run `most` tasks at a time, where the quota has room for that many and the tasks are independent."""
    return f" Its tasks can take turns, {most} at once." if most and FRAMEWORKS[spec.framework].is_independent else ""


def _why_not_fetched(url: str) -> str:
    """Judges by the literal address only. The code that connects judges the address that the name resolves to then."""
    parts = urlsplit(url)
    try:
        check_literal(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), settings.OUTGOING)
    except Closed as closed:
        return str(closed)
    return ""


def _model(
    spec: ClusterSpec, appcode: Appcode, place: Place, runtime: ServingRuntime | None, errors: list[FieldError]
) -> ModelVersion | None:
    """The model version that `spec` names, with the datastore of its files. Adds an error if it cannot be mounted, or not be
    served by `runtime` (None for the portal's own server). One query, none without a model."""
    if spec.model is None:
        return None
    name, at, alias = spec.model.partition("@")
    name, _, number = name.partition("/")
    rows = ModelVersion.objects.filter(
        model__appcode=appcode, model__name=name, model__deleted_at=None, deleted_at=None
    )
    rows = rows.filter(aliases__name=alias, aliases__until=None) if at else rows.filter(number=int(number))
    found = rows.select_related("model", "frozen__datastore__appcode", "frozen__datastore__volume").first()
    sentence = ""
    if found is None or found.frozen is None:
        what = f"of which “{alias}” names a version" if at else f"with a version {number}"
        sentence = f"{appcode.code} has no model “{name}” {what}."
    elif found.state in (ModelVersion.State.CHANGED, ModelVersion.State.FAILED):
        sentence = f"The files of {found} are not what was registered: {found.message}"
    elif runtime and found.format not in runtime.formats:
        served = ", ".join(runtime.formats)
        why = (
            f"“{runtime.title}” serves {served}, and {found} is of the format “{found.format}”; choose another runtime."
        )
        errors.append(FieldError(("spec", "server"), why))
    elif spec.framework == "serving" and spec.server is None and found.format not in FORMATS_SERVED:
        sentence = f"{found} is of the format “{found.format}”, and the model server knows {', '.join(FORMATS_SERVED)}."
    else:
        sentence = why_not_mounted(found.frozen.datastore, place, writing=False)
    if sentence:
        errors.append(FieldError(("spec", "model"), sentence))
    return found
