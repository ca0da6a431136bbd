"""Names in a manifest → rows that exist and may be used. The half of validation that needs the database, in one place.

The form, the API, an import, the preview and every new run go through `resolve`, so all of them refuse the same things with
the same words at the same field. What can be used depends on the cloud on which the run will land: some need an image's
container, others its environment, and not every cloud reaches every kind of datastore.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from django.db.models import Q, QuerySet

from billing.budgets.access import why_blocked
from clusters.after import HookSpec, HookWork, part_name
from clusters.after import part_of as hooks_of
from clusters.clouds.placement import PLACES, Place, choose, places, rows_by_kind, title_of
from clusters.clouds.registry import driver, gateway_of, leads_fronts, why_no_environments, why_not_cached
from clusters.frameworks import FRAMEWORKS, ROLES
from clusters.frameworks.base import Resources
from clusters.frameworks.serving import FORMATS as FORMATS_SERVED
from clusters.manifest import ClusterSpec, check_hook_env
from clusters.models import Cluster, Environment, Flavor, Hook, Image, ModelVersion, Plugin, Run, ServingRuntime
from clusters.spec.admission import Quota, judge_quota
from clusters.spec.folders import output_folder
from clusters.spec.locks import together
from clusters.spec.size import too_many
from clusters.volumes import lifecycle
from datastores.access import readable_by
from datastores.drivers.addresses import Denied, check_literal, is_loopback
from datastores.models import Datastore, Version
from datastores.sources import SourceError, source_for
from portal.access import OPERATE, appcodes_for, require
from portal.errors import FieldError, Invalid
from portal.models import Appcode, User

# Ends of a run after which nobody reads what it wrote.
HOPELESS = (Run.Phase.FAILED, Run.Phase.STOPPED)


@dataclass(frozen=True)
class Shown:
    """A run whose output is seen by another, and where that lies."""

    run: Run
    store: Datastore

    @property
    def name(self) -> str:
        return f"{self.run.cluster.name}/{self.run.number}"


@dataclass(frozen=True)
class Input:
    """Where lies what a run reads: `folder` of `store`, "" for all of it. `run` is the one that wrote it, None for a datastore's
    own; `version` is what has to lie there, None for whatever does."""

    store: Datastore
    folder: str
    run: Run | None
    version: Version | None = None


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

    @property
    def resources_json(self) -> dict[str, dict[str, object]]:
        return {role: asdict(resources) for role, resources in self.resources.items()}


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
    runtime = _runtime(spec, place, errors)
    image = _of_runtime(runtime) or _checked(_images(spec).first(), spec, place, errors)
    environment = _environment(spec, appcode, place, errors)
    plugins = _plugins(spec, place, errors)
    stores = _datastores(spec, appcode, place, source, errors)
    shown = _shown(spec, appcode, place, errors)
    model = _model(spec, appcode, place, runtime, errors)
    if errors or image is None:
        raise Invalid(errors)
    return Needs(image, environment, plugins, *_named(spec, stores, source), shown, model)


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
    runtime = _runtime(spec, place, errors)
    named = next((Image(**row) for row in found["image"]), None)
    image = _of_runtime(runtime) or _checked(named, spec, place, errors)
    # A saved environment may bring what its image lacks.
    if image and not spec.environment and (sentence := why_not_in(image, spec.framework)):
        errors.append(FieldError(("spec", "framework"), sentence))
    environment = _environment(spec, appcode, place, errors)
    plugins = _plugins(spec, place, errors)
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
    source = _source(spec, appcode, errors)
    stores = _datastores(spec, appcode, place, source, errors)
    shown = _shown(spec, appcode, place, errors)
    model = _model(spec, appcode, place, runtime, errors)
    hooks = _hooks(spec, appcode, place, errors)
    if resources.keys() == spec.roles.keys() and (sentence := too_many(spec, resources, place.driver.longest_address)):
        largest = max(spec.active_roles, key=spec.count)
        errors.append(FieldError(("spec", "roles", largest, "count"), sentence))
    if errors or image is None:
        raise Invalid(errors)
    domain = gateway.domain if gateway else ""
    data = _named(spec, stores, source)
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
    try:
        check_literal(urlsplit(url).hostname or "")
    except Denied as denied:
        return str(denied)
    return ""


def _runtime(spec: ClusterSpec, place: Place, errors: list[FieldError]) -> ServingRuntime | None:
    """What serves the model instead of the portal's own server; adds an error when it cannot there. One query, none where it is
    the portal's own."""
    if spec.server is None:
        return None
    found = ServingRuntime.objects.filter(name=spec.server.runtime, enabled=True).first()
    sentence = ""
    if found is None:
        sentence = f"The catalogue offers no serving runtime “{spec.server.runtime}”."
    elif found.image and place.driver.software != "container":
        sentence = f"“{found.title}” is a container, and {title_of(place.cloud)} runs none; choose another runtime."
    if sentence:
        errors.append(FieldError(("spec", "server"), sentence))
    return found


def _of_runtime(runtime: ServingRuntime | None) -> Image | None:
    """The container that a runtime brings along, as an image."""
    if runtime is None or not runtime.image:
        return None
    return Image(name=runtime.name, title=runtime.title, container=runtime.image)


def _images(spec: ClusterSpec) -> QuerySet[Image]:
    return Image.objects.filter(name=spec.image, enabled=True)


def _checked(image: Image | None, spec: ClusterSpec, place: Place, errors: list[FieldError]) -> Image | None:
    """The image that `spec` names; adds an error when it cannot serve there."""
    if image is None:
        errors.append(FieldError(("spec", "image"), f"The catalogue has no image “{spec.image}”."))
    elif not image.has(place.driver.software):
        has = "container reference" if image.container else "local environment"
        sentence = f"“{image.title}” has only a {has} and cannot run on {title_of(place.cloud)}; choose another image."
        errors.append(FieldError(("spec", "image"), sentence))
    return image


def why_not_in(image: Image, framework: str) -> str:
    """Why the software of this framework is not in the image, as far as its administrators said what is; or ""."""
    driver = FRAMEWORKS[framework]
    if not driver.is_installed or not image.frameworks or framework in image.frameworks:
        return ""
    has = ", ".join(FRAMEWORKS[name].title for name in image.frameworks if name in FRAMEWORKS)
    return f"“{image.title}” has no {driver.title} (it has: {has}); choose another image or framework."


def _environment(spec: ClusterSpec, appcode: Appcode, place: Place, errors: list[FieldError]) -> Environment | None:
    """The environment that `spec` names, the newest version where it says none; adds an error when it cannot serve."""
    if spec.environment is None:
        return None
    name, _, version = spec.environment.partition(":")
    rows = Environment.objects.filter(appcode=appcode, name=name, deleted_at=None)
    found = (rows.filter(version=int(version)) if version else rows).order_by("-version").first()
    sentence = ""
    if found is None:
        sentence = f"{appcode.code} has no environment “{spec.environment}”."
    elif found.image != spec.image:
        sentence = f"“{found}” was saved over the image {found.image}; choose that image, or no environment."
    elif why := why_no_environments(place.cloud):
        sentence = (
            f"Saved environments cannot be used on {title_of(place.cloud)}: {why} An image that has the packages can."
        )
    if sentence:
        errors.append(FieldError(("spec", "environment"), sentence))
    return found


def _plugins(spec: ClusterSpec, place: Place, errors: list[FieldError]) -> tuple[Plugin, ...]:
    """The plugins that `spec` names, of each the newest version where it says none; adds an error when they cannot serve. One
    query, none where there are none."""
    if not spec.plugins:
        return ()
    rows = list(Plugin.objects.filter(image__name=spec.image, deleted_at=None).order_by("name", "-version"))
    found = []
    sentence = why_no_environments(place.cloud)
    if sentence:
        sentence = f"Plugins cannot be used on {title_of(place.cloud)}: {sentence} An image that has them can."
    for asked in spec.plugins:
        row = next((row for row in rows if asked in (row.name, str(row))), None)
        if row is None:
            offered = ", ".join(dict.fromkeys(row.name for row in rows)) or "none"
            sentence = sentence or f"With the image {spec.image} no plugin “{asked}” is offered; there are: {offered}."
        else:
            found.append(row)
    try:
        together({str(row): row.lock for row in found})
    except ValueError as error:
        sentence = sentence or str(error)
    if sentence:
        errors.append(FieldError(("spec", "plugins"), sentence))
    return tuple(found)


def _source(spec: ClusterSpec, appcode: Appcode, errors: list[FieldError]) -> Run | None:
    """The run whose output a new run of `spec` reads: of a cluster the one that is under way, or else the last one that
    succeeded. Adds an error when there is none."""
    if spec.input is None or spec.input.from_ is None:
        return None
    name, _, number = spec.input.from_.partition("/")
    runs = Run.objects.filter(cluster__appcode=appcode, cluster__name=name, cluster__deleted_at=None)
    always = spec.input.when == "always"
    if number:
        runs = runs.filter(number=int(number))
    elif not always:
        runs = runs.exclude(phase__in=HOPELESS)
    found = runs.select_related("cluster").order_by("-number").first()
    if found is None and number:
        sentence = f"{appcode.code} has no run {spec.input.from_}."
    elif found is None:
        there = Cluster.objects.filter(appcode=appcode, name=name, deleted_at=None).exists()
        sentence = (
            f"No run of {name} has succeeded, and none is under way; deploy it first."
            if there and not always
            else f"{name} has never been deployed."
            if there
            else f"{appcode.code} has no cluster “{name}”."
        )
    else:
        sentence = why_not_read(found, always=always)
    if sentence:
        errors.append(FieldError(("spec", "input", "from"), sentence))
    return None if sentence else found


def why_not_read(run: Run, *, always: bool = False) -> str:
    """Why no other run will ever read the output of `run`, or ""; it may still be under way. `always` is one that reads it
    however it ended."""
    name = f"{run.cluster.name}/{run.number}"
    if not run.spec["output"]:
        return f"Run {name} has no output datastore, so nothing that it writes is kept."
    if always and run.is_terminal:
        return ""
    if run.phase in HOPELESS:
        return f"Run {name}, which is to be read, has {'failed' if run.phase == Run.Phase.FAILED else 'been stopped'}."
    if run.spec["mode"] == "service" and run.phase != Run.Phase.SUCCEEDED:
        return f"Run {name} is a service, which goes on until it is stopped: its output is never complete."
    return ""


def _datastores(
    spec: ClusterSpec, appcode: Appcode, place: Place, source: Run | None, errors: list[FieldError]
) -> dict[str, Datastore]:
    """The datastores that `spec` names, by name; adds an error for each that cannot serve."""
    wanted = (("input", _read_from(spec, source)), ("output", spec.output), ("home", spec.home))
    names = {path: name for path, name in wanted if name}
    if not names:
        return {}
    own = Datastore.objects.filter(appcode=appcode, name__in=names.values()).select_related("appcode", "volume")
    stores = {store.name: store for store in own}
    owner, shared, name = names.get("input", "").partition("/")
    if shared and (other := readable_by(appcode).filter(appcode__code=owner, name=name).first()):
        stores[f"{owner}/{name}"] = other
    tasks = sum(role.count for role in spec.active_roles.values())
    for path, name in names.items():
        if name not in stores and "/" in name and path == "input":
            sentence = f"There is no datastore “{name}” that {appcode.code} may read."
        elif name not in stores:
            sentence = f"{appcode.code} has no datastore “{name}”."
        else:
            store = stores[name]
            sentence = _why_not_mounted(store, place, writing=path != "input")
            if path == "input" and (not_so := _why_not_so(spec, store, name, place)):
                errors.append(not_so)
                continue
            if path == "home" and store.kind == Datastore.Kind.S3:
                sentence = f"“{name}” has objects and no files of its own; choose a volume, NFS or a folder."
            if path == "input" and not sentence and (wrong := _why_no_version(store, spec)):
                errors.append(FieldError(("spec", "input", "version"), wrong))
            if store.kind == Datastore.Kind.VOLUME:
                sentence = sentence or lifecycle.why_not(store, place.cloud, place.namespace, tasks)
        if sentence:
            errors.append(FieldError(("spec", path), sentence))
    return stores


def why_frozen(store: Datastore | None, folder: str) -> str:
    """Why no run writes into this folder, which a version keeps as it is, or ""."""
    if store is None:
        return ""
    found = next((version for version in store.versions.all() if version.holds(folder)), None)
    return f"{found} is kept as it is; choose another output folder than {folder}." if found else ""


def _why_not_so(spec: ClusterSpec, store: Datastore, name: str, place: Place) -> FieldError | None:
    """Why the input does not come to the tasks in the manner that `spec` says."""
    said = spec.input
    if said is None or (said.mode == "copy" and not said.folds):
        return None
    field = ("spec", "input", "folds" if said.mode == "copy" else "mode")
    if store.kind != Datastore.Kind.S3 and said.mode in ("cache", "stream"):
        done = {"cache": "cached", "stream": "streamed"}[said.mode]
        return FieldError(field, f"“{name}” is mounted as it is; only what lies in S3 is {done}.")
    if said.mode == "cache":
        version = _version(store, spec)
        if said.version and not version:
            return None  # said at its own field
        if why := why_not_cached(place.cloud, version.disk_bytes if version else None):
            return FieldError(field, f"Input cannot be cached on {title_of(place.cloud)}: {why}")
    if said.mode == "stream" and not place.driver.streams:
        return FieldError(field, f"Input cannot be streamed on {title_of(place.cloud)}; copy it.")
    return None


def _version(store: Datastore, spec: ClusterSpec) -> Version | None:
    return store.versions.filter(name=spec.input.version).first() if spec.input and spec.input.version else None


def _why_no_version(store: Datastore, spec: ClusterSpec) -> str:
    """Why the version that `spec` reads is none of the datastore, or ""."""
    if spec.input is None or not spec.input.version:
        return ""
    found = _version(store, spec)
    if found is None:
        return f"“{store.name}” has no version {spec.input.version}."
    if store.kind != Datastore.Kind.S3:
        return f"“{store.name}” is mounted as it is, and no version of it is compared; name a folder instead."
    if spec.input.path not in ("", found.folder):
        return f"{found} is of {f'the folder {found.folder}' if found.folder else 'all of it'}; leave the folder out."
    return ""


def _shown(spec: ClusterSpec, appcode: Appcode, place: Place, errors: list[FieldError]) -> tuple[Shown, ...]:
    """The runs that `spec` shows, in its order; adds an error when one of them cannot be shown. Two queries at most."""
    if not spec.runs:
        return ()
    found = runs_named(spec.runs, appcode)
    outputs = {run.spec["output"] for run in found.values()} - {None}
    stores = Datastore.objects.filter(appcode=appcode, name__in=outputs).select_related("appcode", "volume")
    by_name = {store.name: store for store in stores}
    shown = []
    for name in spec.runs:
        run = found.get(name)
        store = by_name.get(run.spec["output"] or "") if run else None
        sentence = f"{appcode.code} has no run {name}." if run is None else why_not_shown(run, store, place)
        if sentence:
            errors.append(FieldError(("spec", "runs"), sentence))
            break
        assert run is not None
        assert store is not None
        shown.append(Shown(run, store))
    return tuple(shown)


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
        sentence = _why_not_mounted(found.frozen.datastore, place, writing=False)
    if sentence:
        errors.append(FieldError(("spec", "model"), sentence))
    return found


def _hooks(spec: ClusterSpec, appcode: Appcode, place: Place, errors: list[FieldError]) -> tuple[HookSpec, ...]:
    """The hooks of `spec` with all that they say; adds an error for each name in them that means nothing. Four queries at most,
    none where there are no hooks."""
    if not spec.hooks:
        return ()
    used = {each.use for each in spec.hooks if each.use}
    rows = Hook.objects.filter(appcode=appcode, name__in=used) if used else ()
    saved = {row.name: HookWork.model_validate(row.spec) for row in rows}
    found = [each.settled(saved.get(each.use or "")) for each in spec.hooks]
    images = {each.image for each in found} - {None}
    usable = {
        row.name
        for row in Image.objects.filter(name__in=images, enabled=True)
        if row.has(place.driver.software)
    } if images else set()  # fmt: skip
    flavors = {each.flavor for each in found} - {None}
    sizes = set(Flavor.objects.filter(name__in=flavors, enabled=True).values_list("name", flat=True)) if flavors else ()
    outputs = {each.output for each in found} - {None}
    stores = (
        set(Datastore.objects.filter(appcode=appcode, name__in=outputs).values_list("name", flat=True))
        if outputs
        else ()
    )
    for number, each in enumerate(found):
        where = ("spec", "hooks", str(number))
        if each.use and each.use not in saved:
            errors.append(FieldError((*where, "use"), f"{appcode.code} has no hook “{each.use}”."))
        if each.image and each.image not in usable:
            sentence = f"The catalogue has no image “{each.image}” that runs on {place.title}."
            errors.append(FieldError((*where, "image"), sentence))
        if each.flavor and each.flavor not in sizes:
            errors.append(FieldError((*where, "flavor"), f"There is no flavor “{each.flavor}”."))
        if each.output and each.output not in stores:
            errors.append(FieldError((*where, "output"), f"{appcode.code} has no datastore “{each.output}”."))
        try:
            check_hook_env(each.env)
        except ValueError as error:  # with those of the hook that it uses
            errors.append(FieldError((*where, "env"), str(error)))
    return tuple(found)


def judge_hook_names(spec: ClusterSpec, appcode: Appcode, name: str) -> None:
    """Raises Invalid at each hook of the cluster `name` of which the own cluster would be called as another one is. One query,
    none where there are no hooks."""
    if not spec.hooks:
        return
    names = [part_name(name, hook.name) for hook in spec.hooks]
    others = Cluster.objects.filter(appcode=appcode, name__in=names, deleted_at=None).exclude(part_of=hooks_of(name))
    taken = set(others.values_list("name", flat=True))
    wrong = [(number, each) for number, each in enumerate(names) if each in taken]
    if wrong:
        raise Invalid(
            [
                FieldError(
                    ("spec", "hooks", str(number), "name"),
                    f"Its cluster would be called “{each}”, as another one of {appcode.code} is; name the hook otherwise.",
                )
                for number, each in wrong
            ]
        )


def runs_named(names: Iterable[str], appcode: Appcode) -> dict[str, Run]:
    """Those of these runs of the appcode (`train/3`) that there are, by name."""
    named = Q(pk=None)
    for name in names:
        cluster, _, number = name.partition("/")
        named |= Q(cluster__name=cluster, number=int(number))
    runs = Run.objects.filter(named, cluster__appcode=appcode, cluster__deleted_at=None).select_related("cluster")
    return {f"{run.cluster.name}/{run.number}": run for run in runs}


def why_not_shown(run: Run, store: Datastore | None, place: Place) -> str:
    """Why the output of a run cannot be seen by another one at `place`, or ""; `store` is the datastore that has it."""
    name = f"{run.cluster.name}/{run.number}"
    if not run.spec["output"]:
        return f"Run {name} has no output datastore, so nothing that it wrote is kept."
    if store is None:
        return f"The datastore “{run.spec['output']}” of run {name} does not exist any more."
    if run.started_at is None:
        return f"Run {name} has not begun to run{'' if run.is_terminal else ' yet'}."
    sentence = _why_not_mounted(store, place, writing=False)
    if store.kind == Datastore.Kind.VOLUME:
        sentence = sentence or lifecycle.why_not(store, place.cloud, place.namespace, 1)
    return sentence


def _read_from(spec: ClusterSpec, source: Run | None) -> str | None:
    """The name of the datastore where lies what it reads."""
    if source:
        return str(source.spec["output"])
    return spec.input.datastore if spec.input else None


def _named(
    spec: ClusterSpec, stores: Mapping[str, Datastore], source: Run | None
) -> tuple[Input | None, Datastore | None, Datastore | None]:
    """Its input, output and home."""
    found = None
    if spec.input and (store := stores.get(_read_from(spec, source) or "")):
        folder = output_folder(source.spec["outputPath"], name=source.cluster.name, run=source.number) if source else ""
        version = _version(store, spec)
        inside = version.folder if version else spec.input.path
        found = Input(store, "/".join(part for part in (folder, inside) if part), source, version)
    return found, stores.get(spec.output or ""), stores.get(spec.home or "")


def _why_not_mounted(store: Datastore, place: Place, *, writing: bool) -> str:
    """Why tasks there cannot mount `store`, or ""."""
    if store.kind not in place.driver.mounts:
        kinds = " or ".join(label for kind, label in Datastore.Kind.choices if kind in place.driver.mounts)
        return (
            f"“{store.name}” is of kind {store.get_kind_display()}, which {title_of(place.cloud)} cannot reach; choose a "
            f"datastore of kind {kinds}."
        )
    if place.driver.is_remote and is_loopback(_host(store)):
        return f"“{store.name}” lies on the portal's own machine ({store.where}), which {title_of(place.cloud)} cannot reach."
    try:
        source = source_for(store)
    except SourceError as error:
        return str(error)
    if writing and source.read_only:
        return f"The folder of “{store.name}” may only be read; choose another datastore for output."
    return ""


def _host(store: Datastore) -> str:
    server = store.spec.get("server", "")
    return (urlsplit(server).hostname or "") if store.kind == Datastore.Kind.S3 else server
