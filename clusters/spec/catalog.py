"""Names in a manifest → rows that exist and may be used. The half of validation that needs the database, in one place.

The form, the API, an import, the preview and every new run go through `resolve`, so all of them refuse the same things with
the same words at the same field. What can be used depends on the cloud on which the run will land: some need an image's
container, others its environment, and not every cloud reaches every kind of datastore. What tasks run is found in software.py,
what they see in data.py, and their hooks in hooks.py; each adds an error for what cannot serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings

from billing.budgets.access import why_blocked
from clusters.after import HookSpec
from clusters.clouds.placement import PLACES, Place, choose, places, rows_by_kind
from clusters.clouds.registry import driver, gateway_of, leads_fronts
from clusters.frameworks import FRAMEWORKS, ROLES
from clusters.frameworks.base import Resources
from clusters.frameworks.serving import FORMATS as FORMATS_SERVED
from clusters.manifest import ClusterSpec
from clusters.models import Environment, Image, ModelVersion, Plugin, Run, ServingRuntime
from clusters.spec.admission import Quota, judge_quota
from clusters.spec.data import Input, Shown, data_of, datastores_named, shown_named, source_named, why_not_mounted
from clusters.spec.hooks import hooks_named
from clusters.spec.size import too_many
from clusters.spec.software import (
    checked,
    environment_named,
    image_of,
    images_named,
    judge_requirements,
    plugins_named,
    runtime_named,
    why_not_in,
)
from datastores.models import Datastore
from portal.access import OPERATE, appcodes_for, require
from portal.errors import FieldError, Invalid
from portal.models import Appcode, User
from portal.outgoing import Closed, check_literal


@dataclass(frozen=True)
class Resolved:
    """A spec whose every name exists, and where it runs. `resources` is by role; datastores are None where it has none."""

    spec: ClusterSpec
    place: Place
    image: Image
    environment: Environment | None
    plugins: tuple[Plugin, ...]
    resources: Mapping[str, Resources]
    input: Input | None
    output: Datastore | None
    home: Datastore | None
    # Below it lies what it serves, "" for the domain of the portal.
    domain: str = ""
    runs: tuple[Shown, ...] = ()
    model: ModelVersion | None = None
    # With what they take from those of the appcode that they use.
    hooks: tuple[HookSpec, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of all tasks that there are at one time."""
        return sum(self.resources[role].gpus * spec.together for role, spec in self.spec.active_roles.items())


@dataclass(frozen=True)
class Needs:
    """What a run finds at its start, as it is then; the sizes of its tasks were copied when it was made."""

    image: Image
    environment: Environment | None
    plugins: tuple[Plugin, ...]
    input: Input | None
    output: Datastore | None
    home: Datastore | None
    runs: tuple[Shown, ...]
    model: ModelVersion | None


def usable_appcode(code: str, user: User, found: Appcode | None = None) -> Appcode:
    """The appcode in which `user` may run something now; `found` is its row where it was just read. Raises Invalid (also for
    one that they cannot see, exactly as for one that does not exist) or PermissionDenied."""
    appcode = found if found and found.code == code else appcodes_for(user).filter(code=code).first()
    if appcode is None:
        raise Invalid.at("metadata", "appcode", message=f"There is no appcode “{code}” that you can use.")
    require(user, appcode, OPERATE)
    require_active(appcode)
    return appcode


def name_taken(code: str, name: str) -> Invalid:
    """What is said of a name that another cluster of the appcode has."""
    return Invalid.at("metadata", "name", message=f"{code} already has a cluster “{name}”; choose another name.")


def require_active(appcode: Appcode) -> None:
    """Raises Invalid unless the appcode was approved, is neither disabled nor expired, and no budget blocks new runs of it."""
    if sentence := appcode.why_not or why_blocked(appcode):
        longer = f"/appcodes/{appcode.code}/request" if appcode.expired else ""
        raise Invalid.at("metadata", "appcode", message=sentence, see=longer)


def needs(spec: ClusterSpec, appcode: Appcode, cloud: str, namespace: str, source: Run | None = None) -> Needs:
    """What a run of `spec` on `cloud` needs besides its GPUs; `source` is the run that it reads. Raises Invalid when some of it
    is gone, and CloudError when the cloud is. Seven queries at most."""
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


# What is asked for every cluster that is created: where it goes, and whether the names in it exist.
_NAMED = f"""{PLACES}
UNION ALL
SELECT 'image', jsonb_build_object(
    'id', id, 'name', name, 'title', title, 'description', description, 'container', container,
    'environment', environment, 'program', program, 'frameworks', frameworks, 'enabled', enabled
)
FROM clusters_image WHERE enabled AND name = %(image)s
UNION ALL
SELECT 'flavor', jsonb_build_object(
    'flavor', name, 'cpu_milli', cpu_milli, 'memory_mb', memory_mb, 'gpus', gpus, 'gpu_model', gpu_model
)
FROM clusters_flavor WHERE enabled AND name = ANY(%(flavors)s)
"""  # noqa: S608  both are constants


def resolve(spec: ClusterSpec, appcode: Appcode, *, by_fronts: bool = False) -> Resolved:
    """Raises Invalid with every field that names something absent, disabled or out of reach. One query for a spec
    without datastores that serves nothing. `by_fronts`: fronts alone lead to what it serves, as of replicas of a service."""
    errors: list[FieldError] = []
    names = {"image": spec.image, "flavors": [each.flavor for each in spec.roles.values()]}
    found = rows_by_kind(_NAMED, {**places(appcode), **names})
    place = choose(appcode, found)
    if spec.server and not by_fronts:
        errors.append(FieldError(("spec", "server"), "Only services say this of their replicas."))
    runtime = runtime_named(spec, place, errors)
    named = next((Image(**row) for row in found["image"]), None)
    image = image_of(runtime) or checked(named, spec, place, errors)
    # What lies over an image may bring what that lacks.
    is_bare = not (spec.environment or spec.requirements)
    if image and is_bare and (sentence := why_not_in(image, spec.framework)):
        errors.append(FieldError(("spec", "framework"), sentence))
    environment = environment_named(spec, appcode, place, errors)
    judge_requirements(spec, place, errors)
    plugins = plugins_named(spec, place, errors)
    flavors = {row["flavor"]: Resources(**row) for row in found["flavor"]}
    resources: dict[str, Resources] = {}
    for role, role_spec in spec.roles.items():
        if role_spec.flavor in flavors:
            resources[role] = flavors[role_spec.flavor]
        else:
            path = ("spec", "roles", role, "flavor")
            errors.append(FieldError(path, f"There is no flavor “{role_spec.flavor}”."))

    if spec.code and spec.code.git and (sentence := _why_not_fetched(spec.code.git)):
        errors.append(FieldError(("spec", "code", "git"), sentence))
    gateway = gateway_of(place.cloud) if spec.served and not by_fronts else None
    if spec.served and by_fronts and not leads_fronts(place.cloud):
        sentence = (
            f"{appcode.code} runs on {place.title}, which lets no fronts of services in yet. An administrator names their "
            "namespace in its settings."
        )
        errors.append(FieldError(("spec", "framework"), sentence))
    elif spec.served and not by_fronts and gateway is None:
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
    quota = judge_quota(resolved.gpus, Quota(appcode.code, appcode.gpu_quota))
    if quota.fits == "never":
        role = max(spec.active_roles, key=lambda each: resources[each].gpus * spec.active_roles[each].together)
        field = "flavor" if ROLES[role].is_fixed else "atOnce" if spec.roles[role].at_once else "count"
        more = f"/appcodes/{appcode.code}/request?gpus={resolved.gpus}"
        turns = _turns(spec, appcode.gpu_quota // resources[role].gpus)
        raise Invalid.at("spec", "roles", role, field, message=quota.message + turns, see=more)
    return resolved


def _turns(spec: ClusterSpec, most: int) -> str:
    """What else may be asked for where the quota has room for `most` tasks alone."""
    return f" Its tasks can take turns, {most} at once." if most and FRAMEWORKS[spec.framework].is_independent else ""


def _why_not_fetched(url: str) -> str:
    """As far as its address says it; whoever connects judges by the one that its name has then."""
    parts = urlsplit(url)
    try:
        check_literal(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), settings.OUTGOING)
    except Closed as closed:
        return str(closed)
    return ""


def _model(
    spec: ClusterSpec, appcode: Appcode, place: Place, runtime: ServingRuntime | None, errors: list[FieldError]
) -> ModelVersion | None:
    """The version of a model that `spec` names, with what keeps its files; adds an error when it cannot be mounted, or is not
    served by `runtime`, None for the portal's own server. One query, none where there is no model."""
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
