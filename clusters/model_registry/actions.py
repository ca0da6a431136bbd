"""User actions on models, versions and aliases. Each change is one transaction with its Event, under the lock of the model.

A version is created while no files of its datastore change (`at_rest`), so its list of files is what is frozen. The files are
read afterwards (loop.py); until then the version is Pending, and no alias may name it.
"""

from __future__ import annotations

import datetime as dt
import posixpath
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.http import Http404
from django.utils import timezone
from pydantic import BaseModel, ValidationError

from clusters import wakeups
from clusters.catalog.data import runs_named
from clusters.catalog.folders import output_folder
from clusters.hooks.models import HookRun
from clusters.model_registry import mlflow
from clusters.model_registry.access import MODELS
from clusters.model_registry.detection import chosen, models_among
from clusters.model_registry.manifest import MAX_SAMPLE_BYTES, About, ModelManifest, ModelVersionSpec, checked_alias
from clusters.model_registry.models import ModelAlias, ModelRetention, ModelVersion, RegisteredModel
from clusters.model_registry.retention import RetentionSpec
from clusters.model_registry.usage import VersionUse, users_of
from clusters.runs.models import Run
from datastores.actions import open_store
from datastores.drivers.patience import within
from datastores.files import versions
from datastores.files.contents import at_rest, checked_path
from datastores.files.downloads import COUNT_SECONDS
from datastores.models import Datastore
from portal.access import OPERATE, require
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.manifests.kept import refuse_changes
from portal.models import Appcode, User
from portal.text.zones import utc_text
from portal.web.limits import refuse_nul

MAX_MODELS, MAX_VERSIONS, MAX_ALIASES = 200, 500, 50
# Files of a version; each is in the row with its digest.
MAX_FILES = 1000
# Bytes of a version, all of which are read for the digests.
MAX_BYTES = 50 * 2**30
ROOM = "models/"


@dataclass(frozen=True)
class Source:
    """Files in `folder` of `store`. `run` wrote them, and `hook_run` reported them."""

    store: Datastore
    folder: str
    run: Run | None = None
    hook_run: HookRun | None = None


@transaction.atomic
def create_model(manifest: ModelManifest, appcode: Appcode, *, acting_user: User) -> RegisteredModel:
    """Creates a model; a deleted one of that name returns with its history. Raises Invalid for a taken name, PermissionDenied."""
    require(acting_user, appcode, OPERATE)
    Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
    rows = RegisteredModel.objects.filter(appcode=appcode).select_related("appcode", "created_by")
    name, description = manifest.metadata.name, manifest.metadata.description
    found = rows.filter(name=name).first()
    if found and found.deleted_at is None:
        raise Invalid.at("metadata", "name", message=f"{appcode.code} has a model “{name}” already.")
    if rows.filter(deleted_at=None).count() >= MAX_MODELS:
        raise Invalid.at("metadata", "name", message=f"{appcode.code} has {MAX_MODELS} models already; delete one.")
    if found:
        found.deleted_at, found.description, found.created_by = None, description, acting_user
        found.save()
    made = found or RegisteredModel.objects.create(
        appcode=appcode, name=name, description=description, created_by=acting_user
    )
    MODELS.record(made, "created", acting_user, "Created." if not found else "Created anew; its numbers go on.")
    return made


@transaction.atomic
def change_model(model: RegisteredModel, manifest: ModelManifest, *, acting_user: User) -> RegisteredModel:
    """Changes the description. Raises Invalid, PermissionDenied, and Http404 if it was deleted meanwhile."""
    found = MODELS.locked(model, acting_user)
    refuse_changes(manifest, name=found.name)
    if manifest.metadata.description != found.description:
        found.description = manifest.metadata.description
        found.save(update_fields=["description", "changed_at"])
        MODELS.record(found, "changed", acting_user, "Changed.")
    return found


@transaction.atomic
def delete_model(model: RegisteredModel, *, acting_user: User) -> None:
    """Deletes it with all versions; files stay. Raises Conflict while an alias names one of them, or one is used."""
    found = MODELS.locked(model, acting_user)
    if names := list(_living(found).values_list("name", flat=True)):
        raise Conflict(f"{', '.join(names)} of {found.name} still names a version; remove that alias first.")
    versions = _held_alone(found, Q())
    others, services = _named_users(users_of(found))
    if others:
        raise Conflict(f"A version of {found.name} is used by {others}; end that, or give it another model.")
    if services:
        raise Conflict(f"The service {services} answers with a version of {found.name}; delete the service first.")
    for version in versions:
        _let_go(version)
    # A model created again under this name starts without the rule.
    ModelRetention.objects.filter(model=found).delete()
    found.deleted_at = timezone.now()
    found.save(update_fields=["deleted_at", "changed_at"])
    MODELS.record(found, "deleted", acting_user, "Deleted; its files and the history of its aliases stay.")


def register(
    appcode: Appcode, name: str, spec: ModelVersionSpec, *, acting_user: User, create: bool = False
) -> ModelVersion:
    """Registers the next version of the model `name`, which `create` may create. Queries the datastore, so not inside a
    transaction. Raises Invalid at ("spec", …), Conflict, Http404, PermissionDenied, DriverError."""
    require(acting_user, appcode, OPERATE)
    return register_from(appcode, name, source_of(appcode, spec), spec, acting_user=acting_user, create=create)


def source_of(appcode: Appcode, spec: ModelVersionSpec) -> Source:
    """Raises Invalid at the field that names something missing."""
    if spec.run is not None:
        run = runs_named([spec.run], appcode).get(spec.run)
        if run is None:
            raise Invalid.at("spec", "run", message=f"{appcode.code} has no run {spec.run}.")
        return output_of(run)
    store = Datastore.objects.select_related("appcode").filter(appcode=appcode, name=spec.datastore).first()
    if store is None:
        raise Invalid.at("spec", "datastore", message=f"{appcode.code} has no datastore “{spec.datastore}”.")
    return Source(store, "")


def output_of(run: Run) -> Source:
    """The output of a run. Raises Invalid at ("spec", "run")."""
    name = f"{run.cluster.name}/{run.number}"
    if not run.is_terminal:
        raise Invalid.at("spec", "run", message=f"{name} has not ended yet.")
    if not run.spec["output"]:
        raise Invalid.at("spec", "run", message=f"{name} keeps no output; give its cluster an output datastore.")
    rows = Datastore.objects.select_related("appcode").filter(appcode=run.cluster.appcode_id)
    store = rows.filter(name=run.spec["output"]).first()
    if store is None:
        raise Invalid.at("spec", "run", message=f"Its datastore “{run.spec['output']}” does not exist any more.")
    return Source(store, output_folder(run.spec["outputPath"], name=run.cluster.name, run=run.number), run)


def register_from(
    appcode: Appcode, name: str, source: Source, about: About, *, acting_user: User, create: bool
) -> ModelVersion:
    """`register` for files in `source`. A version from a hook is registered once."""
    store = source.store
    if store.kind not in (Datastore.Kind.S3, Datastore.Kind.LOCAL):
        raise Invalid.at(
            "spec", "run" if source.run else "datastore",
            message=f"Only tasks see the files of {store.name}; a version is of what lies in S3 or in a folder of this machine.",
        )  # fmt: skip
    try:
        said = checked_path(about.path)
    except Invalid as invalid:
        raise Invalid.at("spec", "path", message=invalid.errors[0].message) from None
    folder = posixpath.join(source.folder, said) if said else source.folder
    with within(COUNT_SECONDS), at_rest(store):
        folder, format_, about, origin = _which(store, folder, about)
        try:
            found = versions.settled(store, folder, MAX_FILES)
        except Invalid as invalid:
            raise Invalid.at("spec", "path", message=f"{folder}: {invalid.errors[0].message}") from None
        if sum(size for _, size, _ in found) > MAX_BYTES:
            raise Conflict(f"A version has at most {MAX_BYTES >> 30} GiB.")
        with transaction.atomic():
            locked = _named(appcode, name, acting_user, create=create)
            if source.hook_run and (made := ModelVersion.objects.filter(hook_run=source.hook_run).first()):
                return made
            if locked.versions.filter(deleted_at=None).count() >= MAX_VERSIONS:
                raise Conflict(f"{locked.name} has {MAX_VERSIONS} versions; delete some that nobody needs.")
            number = locked.version_count + 1
            kept_as = f"{locked.name}.{number}"
            try:
                with transaction.atomic():
                    frozen = versions.keep(store, kept_as, folder, found, acting_user=acting_user)
            except IntegrityError:
                raise Conflict(
                    f"{store.name} has a version {kept_as} that is none of this model; remove it first."
                ) from None
            version = ModelVersion.objects.create(
                model=locked, number=number, description=about.description, frozen=frozen, datastore=store.name, folder=folder,
                files=[{"path": path, "size": size, "sha256": ""} for path, size, _ in sorted(found)], size=frozen.bytes,
                format=format_, signature=_plain(about.signature), sample=about.sample, metrics=about.metrics or {},
                lineage=(lineage_of(source.run) if source.run else {}) | ({"told": origin} if origin else {}), run=source.run,
                hook_run=source.hook_run, created_by=acting_user,
            )  # fmt: skip
            locked.version_count = number
            locked.save(update_fields=["version_count", "changed_at"])
            where = f"{source.run.cluster.name}/{source.run.number}" if source.run else f"{store.name}/{folder}"
            MODELS.record(locked, "registered", acting_user, f"Version {number}, of {where}.", version=number)
            _wake(locked)
    return version


def _which(store: Datastore, folder: str, about: About) -> tuple[str, str, About, dict[str, Any]]:
    """The model's folder below `folder`, its format, `about` completed from its MLmodel (if it has one), and the origin that
    the MLmodel states. Raises Invalid."""
    if about.format is not None:
        return folder, about.format, about, {}
    paths = [path for path, _, _ in _below(store, folder)]
    if (file := mlflow.the_one(paths)) is not None:
        return _by_mlflow(store, folder, file, paths, about)
    found = models_among(paths)
    here = [each for each in found if not each.folder]
    try:
        one = chosen(here or found)
    except ValueError as error:
        raise Invalid.at("spec", "path", message=f"{folder or store.name}: {error}") from None
    return posixpath.join(folder, one.folder) if one.folder else folder, one.format, about, {}


def _by_mlflow(
    store: Datastore, folder: str, file: str, paths: Sequence[str], about: About
) -> tuple[str, str, About, dict[str, Any]]:
    """`_which` for an MLmodel. A flavor without a safe format, such as a pickle, gets the format "other", with all its files."""
    driver = open_store(store)
    top = file.rpartition("/")[0]
    try:
        said = mlflow.told(driver.read_range(posixpath.join(folder, file), 0, mlflow.MAX_BYTES + 1))
    except ValueError as error:
        raise Invalid.at("spec", "path", message=f"{posixpath.join(folder, file)}: {error}") from None
    inner = posixpath.join(top, said.folder).rstrip("/") if said.format else top
    if not any(path.startswith(f"{inner}/") for path in paths) and inner:
        message = f"{posixpath.join(folder, file)}: nothing lies in {said.folder}, which it names."
        raise Invalid.at("spec", "path", message=message)
    known = {}
    if about.signature is None and said.signature:
        known["signature"] = said.signature
    example = posixpath.join(top, said.example)
    if about.sample is None and said.example and example in paths:
        data = driver.read_range(posixpath.join(folder, example), 0, MAX_SAMPLE_BYTES + 1)
        if len(data) <= MAX_SAMPLE_BYTES:
            known["sample"] = mlflow.sample(data)
    # Validated like user input; invalid values are left out.
    with suppress(ValidationError, Invalid):
        refuse_nul([_said(each) for each in known.values()])
        about = about.model_validate(about.model_dump(by_alias=True) | {k: _said(v) for k, v in known.items()})
    return posixpath.join(folder, inner).rstrip("/"), said.format or "other", about, said.origin


def _said(value: Any) -> Any:
    return value.model_dump(by_alias=True) if isinstance(value, BaseModel) else value


def _below(store: Datastore, folder: str) -> list[versions.Row]:
    try:
        return versions.settled(store, folder)
    except Invalid as invalid:
        raise Invalid.at("spec", "path", message=f"{folder or store.name}: {invalid.errors[0].message}") from None


def _plain(signature: Any) -> dict[str, Any] | None:
    return signature.model_dump(mode="json", by_alias=True) if signature else None


def lineage_of(run: Run) -> dict[str, Any]:
    """The origin of a version, kept after the run is gone."""
    return {
        "run": f"{run.cluster.name}/{run.number}",
        "partOf": run.cluster.part_of or None,
        "image": run.spec["image"],
        "environment": run.spec.get("environment"),
        "code": run.code,
        "input": {key: run.read[key] for key in ("digest", "files", "bytes") if key in run.read},
        "startedBy": run.created_by.username if run.created_by else None,
        "finished": utc_text(run.finished_at) if run.finished_at else None,
    }


@transaction.atomic
def delete_version(version: ModelVersion, *, acting_user: User | None, rule: str = "") -> None:
    """Deletes a version; its number is never reused. Its files stay, and may be changed again. Deleted twice, it is deleted
    once. With `rule` the portal deletes it, and `acting_user` is None. Raises Conflict while it is used, and what `locked`
    raises."""
    model = MODELS.locked(version.model, acting_user)
    found = next(iter(_held_alone(model, Q(pk=version.pk))), None)
    if found is None:
        return
    if names := list(_living(model).filter(version=found).values_list("name", flat=True)):
        raise Conflict(f"{', '.join(names)} of {model.name} names version {found.number}; move or remove it first.")
    others, services = _named_users([each for each in users_of(model) if each.number == found.number])
    if others:
        raise Conflict(f"Version {found.number} is used by {others}; end that, or give it another version.")
    if services:
        raise Conflict(f"The service {services} answers with version {found.number}; deploy another one there.")
    _let_go(found)
    by = f" by the rule “{rule}”" if rule else ""
    facts = {"version": found.number, "rule": rule} if rule else {"version": found.number}
    MODELS.record(
        model, "version-deleted", acting_user, f"Version {found.number}: deleted{by}; its files stay.", **facts
    )


@transaction.atomic
def save_retention(model: RegisteredModel, spec: RetentionSpec, *, acting_user: User) -> ModelRetention:
    """Replaces the rule by which versions are deleted, applied within a minute, then daily. Saved twice, it is saved once."""
    model = MODELS.locked(model, acting_user)
    rule = ModelRetention.objects.filter(model=model).select_related("created_by").first()
    if rule and (rule.keep, rule.days) == (spec.keep, spec.days):
        return rule
    rule = rule or ModelRetention(model=model)
    rule.keep, rule.days, rule.created_by = spec.keep, spec.days, acting_user
    rule.created_at = rule.due_at = timezone.now()
    rule.save()
    MODELS.record(model, "rule-saved", acting_user, f"{spec.words}.", keep=spec.keep, days=spec.days)
    return rule


@transaction.atomic
def forget_retention(model: RegisteredModel, *, acting_user: User) -> None:
    """Removes the rule, if there is one."""
    model = MODELS.locked(model, acting_user)
    if ModelRetention.objects.filter(model=model).delete()[0]:
        MODELS.record(model, "rule-removed", acting_user, "Nothing goes by a rule any more.")


def _named_users(uses: Sequence[VersionUse]) -> tuple[str, str]:
    """Names of all users except services, and names of services; at most ten each."""
    services = dict.fromkeys(each.name for each in uses if each.kind == "service")
    others = dict.fromkeys(
        each.name if each.kind == "cluster" else f"the {each.kind} {each.name}"
        for each in uses
        if each.kind != "service"
    )
    return ", ".join(list(others)[:10]), ", ".join(list(services)[:10])


@transaction.atomic
def ask_check(version: ModelVersion, *, acting_user: User) -> ModelVersion:
    """Requests that all files are read again and compared with their digests. Requested twice, they are read once."""
    model = MODELS.locked(version.model, acting_user)
    found = model.versions.filter(pk=version.pk, deleted_at=None).first()
    if found is None:
        raise Http404(f"{model.name} has no version {version.number} any more.")
    if found.state != ModelVersion.State.PENDING:
        found.state, found.message, found.asked_at, found.tried_at = (
            ModelVersion.State.PENDING,
            "",
            timezone.now(),
            None,
        )
        found.save(update_fields=["state", "message", "asked_at", "tried_at"])
        _wake(model)
    return found


@transaction.atomic
def move_alias(model: RegisteredModel, name: str, number: int, reason: str = "", *, acting_user: User) -> ModelAlias:
    """Makes the alias name a version from now on. Changes nothing if it names it already. Raises Invalid at "version", Conflict
    for a version whose files are not verified, Http404, PermissionDenied."""
    try:
        checked_alias(name)
    except ValueError as error:
        raise Invalid.at("alias", message=str(error)) from None
    model = MODELS.locked(model, acting_user)
    version = model.versions.filter(number=number, deleted_at=None).first()
    if version is None:
        raise Invalid.at("version", message=f"{model.name} has no version {number}.")
    before = model.aliases.filter(name=name, until=None).select_related("version", "moved_by").first()
    if before and before.version_id == version.pk:
        return before
    if version.state != ModelVersion.State.READY:
        why = {
            ModelVersion.State.PENDING: "Its files are being read; try again when it is ready.",
            ModelVersion.State.CHANGED: "Its files are not what they were.",
            ModelVersion.State.FAILED: "Its files cannot be read.",
        }[ModelVersion.State(version.state)]
        raise Conflict(f"Version {number} is {version.state.lower()}: {why}")
    if before is None and model.aliases.filter(until=None).count() >= MAX_ALIASES:
        raise Conflict(f"{model.name} has had {MAX_ALIASES} aliases; move one of those.")
    row = _moved(model, name, version, before, reason, acting_user)
    was = f", before {before.version.number}" if before and before.version else ""
    why = f" {reason}" if reason else ""
    MODELS.record(
        model, "alias-moved", acting_user, f"{name} names version {number}{was}.{why}", alias=name, version=number
    )
    return row


@transaction.atomic
def remove_alias(model: RegisteredModel, name: str, reason: str = "", *, acting_user: User) -> None:
    """Makes the alias name nothing from now on; its history stays. Changes nothing if it names nothing."""
    model = MODELS.locked(model, acting_user)
    before = _living(model).filter(name=name).select_related("version").first()
    if before is None:
        return
    _moved(model, name, None, before, reason, acting_user)
    assert before.version is not None
    number = before.version.number
    why = f" {reason}" if reason else ""
    MODELS.record(model, "alias-removed", acting_user, f"{name} names nothing, before {number}.{why}", alias=name)


def _moved(
    model: RegisteredModel, name: str, version: ModelVersion | None, before: ModelAlias | None, reason: str, user: User
) -> ModelAlias:
    """Ends one row and begins the next at the same moment, always later than the last, even if the clock was set back."""
    now = timezone.now()
    if before:
        now = max(now, before.since + dt.timedelta(microseconds=1))
        before.until = now
        before.save(update_fields=["until"])
    RegisteredModel.objects.filter(pk=model.pk).update(changed_at=now)
    return ModelAlias.objects.create(model=model, name=name, version=version, since=now, reason=reason, moved_by=user)


def _living(model: RegisteredModel) -> Any:
    return model.aliases.filter(until=None, version__isnull=False).order_by("name")


def _held_alone(model: RegisteredModel, which: Q) -> list[ModelVersion]:
    """Locks these versions, so that until the end of the transaction no new run can use them and all existing runs are visible.
    Raises Conflict, without waiting, if a run of one is just being created: that transaction may wait for the model."""
    rows = model.versions.filter(which, deleted_at=None)
    found = list(rows.select_for_update(of=("self",), no_key=True, skip_locked=True).select_related("frozen"))
    if len(found) < rows.count():
        raise Conflict(f"{model.name} is being read, or a run of it made, just now; try again.")
    return found


def _let_go(version: ModelVersion) -> None:
    frozen, version.frozen = version.frozen, None
    version.deleted_at = timezone.now()
    version.save(update_fields=["frozen", "deleted_at"])
    if frozen:
        frozen.delete()


def _named(appcode: Appcode, name: str, user: User, *, create: bool) -> RegisteredModel:
    """The model of this name, locked until the end of the transaction."""
    found = (
        RegisteredModel.objects.select_related("appcode").filter(appcode=appcode, name=name, deleted_at=None).first()
    )
    if found is None and not create:
        raise Http404(f"There is no model “{name}” any more.")
    if found is None:
        manifest = parse(ModelManifest, {"metadata": {"name": name}}, appcode=appcode.code)
        found = create_model(manifest, appcode, acting_user=user)
    return MODELS.locked(found, user)


def _wake(model: RegisteredModel) -> None:
    transaction.on_commit(lambda: wakeups.wake_whole(model.appcode_id, ROOM))
