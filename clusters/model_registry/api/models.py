"""REST: models, their versions, and their aliases now and in the past."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from django.db.models import QuerySet
from django.http import Http404, StreamingHttpResponse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.model_registry import actions
from clusters.model_registry.access import (
    MODELS,
    alias_at,
    aliases_now,
    history_of,
    model_for,
    models_for,
    version_for,
    versions_of,
    with_aliases,
)
from clusters.model_registry.manifest import (
    MAX_REASON,
    AliasMove,
    Format,
    ModelManifest,
    ModelMetadata,
    ModelVersionManifest,
    ModelVersionMetadata,
    Signature,
)
from clusters.model_registry.models import ModelAlias, ModelVersion, RegisteredModel
from clusters.model_registry.packing import packed
from datastores.files.api import told
from datastores.files.downloads import download_packed
from portal.access import OPERATE
from portal.api.documents import Answer, Who, page_of
from portal.api.objects import object_views
from portal.api.operations import Document, created, operation
from portal.api.pagination import LIST_PARAMETERS, PAGE_PARAMETERS, everything, moment, page, search, text
from portal.api.views import person
from portal.manifests import parse
from portal.web.limits import LOOKS

MODEL_EXAMPLE = OpenApiExample(
    "A model",
    request_only=True,
    value={"kind": "model", "metadata": {"name": "handwriting", "description": "Reads handwritten digits"}},
)
VERSION_EXAMPLE = OpenApiExample(
    "What a run has written",
    request_only=True,
    value={
        "kind": "modelVersion",
        "metadata": {"model": "digits"},
        "spec": {"run": "train/3", "path": "model", "description": "Twice as many steps"},
    },
)
AT = OpenApiParameter(
    "at", str, description="What it named at this moment, a time of ISO 8601 like 2026-05-03T14:02Z. Now when absent."
)
REASON = OpenApiParameter("reason", str, description="Why, for the history.")


class ModelStatus(Answer):
    versions: int = Field(description="The highest number that was given.")
    aliases: dict[str, int] = Field(description="What its aliases name now.", examples=[{"champion": 3}])
    created: dt.datetime
    created_by: Who
    changed: dt.datetime


class ModelDocument(ModelManifest):
    """A model: its manifest and its status."""

    status: ModelStatus


ModelPage = page_of("ModelPage", ModelDocument)


class FileOfVersion(Answer):
    path: str = Field(description="From the folder of the version.")
    size: int
    sha256: str = Field(description="Empty until the file has been read.")


class Lineage(Answer):
    """The origin of a version, kept when its run is deleted."""

    run: str | None = Field(default=None, examples=["train/3"])
    part_of: str | None = Field(default=None, description="The sweep or pipeline that the run was a part of.")
    image: str | None = None
    environment: str | None = None
    code: dict[str, Any] = Field(default_factory=dict, description="The commit or the digest that it started from.")
    input: dict[str, Any] = Field(default_factory=dict, description="The digest of what it read.")
    started_by: str | None = None
    finished: str | None = None
    told: dict[str, str] = Field(
        default_factory=dict,
        description="What the MLmodel that it was made from says of its origin. Nobody has proved it; of no run, it is all.",
    )


class ModelVersionShortSpec(Answer):
    datastore: str
    path: str
    format: Format
    description: str
    metrics: dict[str, float | None]


class ModelVersionShortStatus(Answer):
    """`state`: Pending while its files are being read, then Ready; Changed if the datastore now has different files; Failed."""

    state: Literal["Pending", "Ready", "Changed", "Failed"]
    message: str
    bytes: int
    checked: dt.datetime | None = Field(description="When its files were read last.")
    lineage: Lineage | None = Field(description="null where it is of no run, and no MLmodel says more.")
    created: dt.datetime
    created_by: Who


class ModelVersionShortMetadata(ModelVersionMetadata):
    number: int


class ModelVersionShort(Answer):
    kind: Literal["modelVersion"] = "modelVersion"
    metadata: ModelVersionShortMetadata
    spec: ModelVersionShortSpec
    status: ModelVersionShortStatus


class ModelVersionLongSpec(ModelVersionShortSpec):
    signature: Signature | None = Field(description="null where its files do not tell.")
    sample: Any = Field(description="A request that it answers.")


class ModelVersionLongStatus(ModelVersionShortStatus):
    aliases: list[str] = Field(description="Those that name it now.")
    files: list[FileOfVersion]
    digest: str = Field(description="Of the names, sizes and times of its files.")


class ModelVersionDocument(Answer):
    """A version of a model. It never changes; only the status of its files does."""

    kind: Literal["modelVersion"] = "modelVersion"
    metadata: ModelVersionShortMetadata
    spec: ModelVersionLongSpec
    status: ModelVersionLongStatus


ModelVersionPage = page_of("ModelVersionPage", ModelVersionShort)


class AliasDocument(Answer):
    """The version that an alias named for a time. `version` is null from the time of the alias's removal."""

    alias: str
    version: int | None
    since: dt.datetime
    until: dt.datetime | None = Field(description="null of what holds now.")
    moved_by: Who
    reason: str


AliasPage = page_of("AliasPage", AliasDocument)


class AllModels(APIView):
    @operation("models_list", ModelPage, parameters=LIST_PARAMETERS)
    def get(self, request: Request) -> Response:
        """The models of all your appcodes, newest first"""
        return _page(request, models_for(person(request)), "appcode__code")


class Versions(APIView):
    @operation("model_versions_list", ModelVersionPage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request, code: str, name: str) -> Response:
        """The versions of a model, newest first, without their files"""
        model = model_for(person(request), code, name)
        return page(request, versions_of(model), order="-number", render=lambda row: _short(model, row).json_value())

    @operation(
        "model_versions_register",
        {201: ModelVersionDocument},
        description="Nothing is copied: the folder is kept as it is from now on. Its files are read afterwards, for digests and "
        f"signature; until then the version is Pending. At most {actions.MAX_FILES:,} files.",
        request=ModelVersionManifest,
        examples=[VERSION_EXAMPLE],
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        """Register what a run has written, or what lies in a folder, as the next version of a model"""
        user = person(request)
        model = model_for(user, code, name, OPERATE)
        manifest = parse(ModelVersionManifest, request.data, appcode=code, model=name)
        with told(), LOOKS.enter(user.pk):
            made = actions.register(model.appcode, model.name, manifest.spec, acting_user=user)
        return created(request, made.number, _document(made))


class OneVersion(APIView):
    @operation("model_versions_read", ModelVersionDocument)
    def get(self, request: Request, code: str, name: str, number: int) -> Document:
        """A version of a model"""
        return _document(version_for(person(request), code, name, number))

    @operation("model_versions_delete", {204: None})
    def delete(self, request: Request, code: str, name: str, number: int) -> None:
        """Delete a version of a model

        409 while something uses it. Its files stay, and may be changed again; its number is never used again."""
        user = person(request)
        actions.delete_version(version_for(user, code, name, number, OPERATE), acting_user=user)


class VerifyVersion(APIView):
    @operation("model_versions_verify", {202: ModelVersionDocument})
    def post(self, request: Request, code: str, name: str, number: int) -> Document:
        """Read all files of a version again, and compare them with what they were

        202: it is Pending until they have been read; then it is Ready, or Changed."""
        user = person(request)
        version = version_for(user, code, name, number, OPERATE)
        actions.ask_check(version, acting_user=user)
        return _document(version_for(user, code, name, number))


class VersionOfMlflow(APIView):
    @operation("model_versions_mlflow", {(200, "application/octet-stream"): bytes})
    def get(self, request: Request, code: str, name: str, number: int) -> StreamingHttpResponse:
        """A version as an archive that MLflow reads

        A ZIP with MLmodel, requirements.txt, an example of its inputs, and its files in data/. 409 for a version that
        is not Ready."""
        user = person(request)
        version = version_for(user, code, name, number)
        with told():
            return download_packed(lambda: packed(version), f"{name}-{number}.zip", user)


class Aliases(APIView):
    @operation("aliases_list", AliasPage)
    def get(self, request: Request, code: str, name: str) -> Response:
        """What the aliases of a model name now, by name"""
        rows = aliases_now(model_for(person(request), code, name))
        return everything([_alias(row) for row in rows])


class OneAlias(APIView):
    @operation("aliases_read", AliasDocument, parameters=[AT])
    def get(self, request: Request, code: str, name: str, alias: str) -> Document:
        """Which version an alias names, or named at a moment"""
        return _alias(alias_at(model_for(person(request), code, name), alias, moment(request, "at")))

    @operation("aliases_move", AliasDocument, request=AliasMove)
    def put(self, request: Request, code: str, name: str, alias: str) -> Document:
        """Make an alias name a version

        From this moment on; what it named before stands in the history, and naming that again rolls back. Repeating it
        changes nothing. 409 for a version that is not Ready."""
        user = person(request)
        model = model_for(user, code, name, OPERATE)
        move = parse(AliasMove, request.data)
        return _alias(actions.move_alias(model, alias, move.version, move.reason, acting_user=user))

    @operation("aliases_remove", {204: None}, parameters=[REASON])
    def delete(self, request: Request, code: str, name: str, alias: str) -> None:
        """Remove an alias

        It names nothing from now on; its history stays."""
        user = person(request)
        model = model_for(user, code, name, OPERATE)
        if not aliases_now(model).filter(name=alias).exists():
            raise Http404(f"{name} has no alias “{alias}”.")
        actions.remove_alias(model, alias, text(request, "reason", longest=MAX_REASON), acting_user=user)


class History(APIView):
    @operation(
        "aliases_history",
        AliasPage,
        parameters=[*PAGE_PARAMETERS, OpenApiParameter("alias", str, description="Of this one alone.")],
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        """What the aliases of a model named, newest first"""
        rows = history_of(model_for(person(request), code, name))
        if alias := text(request, "alias", longest=200):
            rows = rows.filter(name=alias)
        return page(request, rows, order="-id", render=_alias)


def _model(row: RegisteredModel) -> dict[str, Any]:
    now = row.now if hasattr(row, "now") else aliases_now(row)
    made = ModelStatus.of(
        row,
        versions=row.version_count,
        aliases={each.name: each.version.number for each in now if each.version},
        created=row.created_at,
        changed=row.changed_at,
    )
    metadata = ModelMetadata(name=row.name, appcode=row.appcode.code, description=row.description)
    return {"kind": "model", "metadata": metadata.model_dump(by_alias=True), "status": made.json_value()}


def _parts(model: RegisteredModel, row: ModelVersion) -> dict[str, dict[str, Any]]:
    return {
        "metadata": {"model": model.name, "appcode": model.appcode.code, "number": row.number},
        "spec": {
            "datastore": row.datastore, "path": row.folder, "format": row.format, "description": row.description,
            "metrics": row.metrics,
        },
        "status": {
            "state": row.state, "message": row.message, "bytes": row.size, "checked": row.checked_at,
            "lineage": row.lineage or None, "created": row.created_at,
            "createdBy": row.created_by,
        },
    }  # fmt: skip


def _short(model: RegisteredModel, row: ModelVersion) -> ModelVersionShort:
    return ModelVersionShort.model_validate(_parts(model, row))


def _document(row: ModelVersion) -> dict[str, Any]:
    parts = _parts(row.model, row)
    parts["spec"] |= {"signature": row.signature, "sample": row.sample}
    names = list(row.aliases.filter(until=None).order_by("name").values_list("name", flat=True))
    parts["status"] |= {"aliases": names, "files": row.files, "digest": row.frozen.digest if row.frozen else ""}
    return ModelVersionDocument.model_validate(parts).json_value()


def _alias(row: ModelAlias) -> dict[str, Any]:
    number = row.version.number if row.version else None
    return AliasDocument.of(row, alias=row.name, version=number).json_value()


def _page(request: Request, rows: QuerySet[RegisteredModel], *columns: str) -> Response:
    rows = search(request, rows, "name", "description", *columns)
    return page(request, rows.prefetch_related(with_aliases()), order="-id", render=_model)


AppcodeModels, OneModel = object_views(
    MODELS, ModelManifest, ModelDocument, ModelPage,
    render=_model, listing=_page, example=MODEL_EXAMPLE, list_id="appcode_models_list",
    create=actions.create_model, change=actions.change_model, delete=actions.delete_model,
    texts={
        "create": "Create a model, of which versions can be registered\n\n"
        "The name of a deleted one brings its history back, and its numbers go on.",
        "read": "A model",
        "change": "Change the description of a model",
        "delete": "Delete a model with its versions\n\n"
        "409 while an alias names a version. The files stay, and so does the history.",
    },
)  # fmt: skip
