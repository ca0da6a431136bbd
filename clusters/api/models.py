"""REST: models, their versions, and what their aliases name, now and at any moment before."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from django.http import Http404, StreamingHttpResponse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.model_registry import actions
from clusters.model_registry.access import (
    alias_at,
    aliases_now,
    history_of,
    model_for,
    models_for,
    models_in,
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
from clusters.model_registry.packing import packed
from clusters.models import ModelAlias, ModelVersion, RegisteredModel
from datastores.files.api import told
from datastores.files.downloads import download_packed
from portal.access import OPERATE, appcode_for
from portal.api.documents import Answer
from portal.api.pagination import PAGE_PARAMETERS, SEARCH_PARAMETER, everything, moment, page, search, text
from portal.api.views import person
from portal.limits import LOOKS
from portal.manifests import parse

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
    created_by: str | None
    changed: dt.datetime


class ModelDocument(ModelManifest):
    """A model as it is answered: the manifest, and what became of it."""

    status: ModelStatus


class ModelPage(Answer):
    items: list[ModelDocument]
    next: str | None


class FileOfVersion(Answer):
    path: str = Field(description="From the folder of the version.")
    size: int
    sha256: str = Field(description="Empty until the file has been read.")


class Lineage(Answer):
    """From where a version came, kept when its run is gone."""

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
    """`state`: Pending while its files are being read, Ready, Changed where something else lies there by now, Failed."""

    state: Literal["Pending", "Ready", "Changed", "Failed"]
    message: str
    bytes: int
    checked: dt.datetime | None = Field(description="When its files were read last.")
    lineage: Lineage | None = Field(description="null where it is of no run, and no MLmodel says more.")
    created: dt.datetime
    created_by: str | None


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
    """A version of a model: what it is never changes, only what is known of its files."""

    kind: Literal["modelVersion"] = "modelVersion"
    metadata: ModelVersionShortMetadata
    spec: ModelVersionLongSpec
    status: ModelVersionLongStatus


class ModelVersionPage(Answer):
    items: list[ModelVersionShort]
    next: str | None


class AliasDocument(Answer):
    """That an alias named a version for a time. `version` is null from when it was removed."""

    alias: str
    version: int | None
    since: dt.datetime
    until: dt.datetime | None = Field(description="null of what holds now.")
    moved_by: str | None
    reason: str


class AliasPage(Answer):
    items: list[AliasDocument]
    next: str | None


LIST_PARAMETERS = [*PAGE_PARAMETERS, SEARCH_PARAMETER]


class AllModels(APIView):
    @extend_schema(
        operation_id="models_list",
        summary="The models of all your appcodes, newest first",
        parameters=LIST_PARAMETERS,
        responses=ModelPage,
    )
    def get(self, request: Request) -> Response:
        rows = search(request, models_for(person(request)), "name", "description", "appcode__code")
        return page(request, rows.prefetch_related(with_aliases()), order="-id", render=_model)


class AppcodeModels(APIView):
    @extend_schema(
        operation_id="appcode_models_list",
        summary="The models of an appcode, newest first",
        parameters=LIST_PARAMETERS,
        responses=ModelPage,
    )
    def get(self, request: Request, code: str) -> Response:
        rows = search(request, models_in(person(request), code), "name", "description")
        return page(request, rows.prefetch_related(with_aliases()), order="-id", render=_model)

    @extend_schema(
        operation_id="models_create",
        summary="Create a model, of which versions can be registered",
        description="The name of a deleted one brings its history back, and its numbers go on.",
        request=ModelManifest,
        responses={201: ModelDocument},
        examples=[MODEL_EXAMPLE],
    )
    def post(self, request: Request, code: str) -> Response:
        user = person(request)
        appcode = appcode_for(user, code, OPERATE)
        made = actions.create_model(parse(ModelManifest, request.data, appcode=code), appcode, acting_user=user)
        address = request.build_absolute_uri(f"{request.path}/{made.name}")
        return Response(_model(made), status=status.HTTP_201_CREATED, headers={"Location": address})


class OneModel(APIView):
    @extend_schema(operation_id="models_read", summary="A model", responses=ModelDocument)
    def get(self, request: Request, code: str, name: str) -> Response:
        return Response(_model(model_for(person(request), code, name)))

    @extend_schema(
        operation_id="models_change",
        summary="Change the description of a model",
        request=ModelManifest,
        responses=ModelDocument,
        examples=[MODEL_EXAMPLE],
    )
    def put(self, request: Request, code: str, name: str) -> Response:
        user = person(request)
        found = model_for(user, code, name, OPERATE)
        manifest = parse(ModelManifest, request.data, appcode=code, name=name)
        return Response(_model(actions.change_model(found, manifest, acting_user=user)))

    @extend_schema(
        operation_id="models_delete",
        summary="Delete a model with its versions",
        description="409 while an alias names a version. The files stay, and so does the history.",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str) -> Response:
        actions.delete_model(model_for(person(request), code, name, OPERATE), acting_user=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class Versions(APIView):
    @extend_schema(
        operation_id="model_versions_list",
        summary="The versions of a model, newest first, without their files",
        parameters=PAGE_PARAMETERS,
        responses=ModelVersionPage,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        model = model_for(person(request), code, name)
        return page(request, versions_of(model), order="-number", render=lambda row: _short(model, row).json_value())

    @extend_schema(
        operation_id="model_versions_register",
        summary="Register what a run has written, or what lies in a folder, as the next version of a model",
        description="Nothing is copied: the folder is kept as it is from now on. Its files are read afterwards, for digests and "
        f"signature; until then the version is Pending. At most {actions.MAX_FILES:,} files.",
        request=ModelVersionManifest,
        responses={201: ModelVersionDocument},
        examples=[VERSION_EXAMPLE],
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        user = person(request)
        model = model_for(user, code, name, OPERATE)
        manifest = parse(ModelVersionManifest, request.data, appcode=code, model=name)
        with told(), LOOKS.enter(user.pk):
            made = actions.register(model.appcode, model.name, manifest.spec, acting_user=user)
        address = request.build_absolute_uri(f"{request.path}/{made.number}")
        return Response(_document(made), status=status.HTTP_201_CREATED, headers={"Location": address})


class OneVersion(APIView):
    @extend_schema(operation_id="model_versions_read", summary="A version of a model", responses=ModelVersionDocument)
    def get(self, request: Request, code: str, name: str, number: int) -> Response:
        return Response(_document(version_for(person(request), code, name, number)))

    @extend_schema(
        operation_id="model_versions_delete",
        summary="Delete a version of a model",
        description="409 while something uses it. Its files stay, and may be changed again; its number is never used again.",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str, number: int) -> Response:
        user = person(request)
        actions.delete_version(version_for(user, code, name, number, OPERATE), acting_user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class VerifyVersion(APIView):
    @extend_schema(
        operation_id="model_versions_verify",
        summary="Read all files of a version again, and compare them with what they were",
        description="202: it is Pending until they have been read; then it is Ready, or Changed.",
        request=None,
        responses={202: ModelVersionDocument},
    )
    def post(self, request: Request, code: str, name: str, number: int) -> Response:
        user = person(request)
        version = version_for(user, code, name, number, OPERATE)
        actions.ask_check(version, acting_user=user)
        return Response(_document(version_for(user, code, name, number)), status=status.HTTP_202_ACCEPTED)


class VersionOfMlflow(APIView):
    @extend_schema(
        operation_id="model_versions_mlflow",
        summary="A version as an archive that MLflow reads",
        description="A ZIP with MLmodel, requirements.txt, an example of its inputs, and its files in data/. 409 for a version "
        "that is not Ready.",
        responses={(200, "application/octet-stream"): bytes},
    )
    def get(self, request: Request, code: str, name: str, number: int) -> StreamingHttpResponse:
        user = person(request)
        version = version_for(user, code, name, number)
        with told():
            return download_packed(lambda: packed(version), f"{name}-{number}.zip", user)


class Aliases(APIView):
    @extend_schema(
        operation_id="aliases_list", summary="What the aliases of a model name now, by name", responses=AliasPage
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        rows = aliases_now(model_for(person(request), code, name))
        return everything([_alias(row) for row in rows])


class OneAlias(APIView):
    @extend_schema(
        operation_id="aliases_read",
        summary="Which version an alias names, or named at a moment",
        parameters=[AT],
        responses=AliasDocument,
    )
    def get(self, request: Request, code: str, name: str, alias: str) -> Response:
        return Response(_alias(alias_at(model_for(person(request), code, name), alias, moment(request, "at"))))

    @extend_schema(
        operation_id="aliases_move",
        summary="Make an alias name a version",
        description="From this moment on; what it named before stands in the history, and naming that again rolls back. "
        "Repeating it changes nothing. 409 for a version that is not Ready.",
        request=AliasMove,
        responses=AliasDocument,
    )
    def put(self, request: Request, code: str, name: str, alias: str) -> Response:
        user = person(request)
        model = model_for(user, code, name, OPERATE)
        move = parse(AliasMove, request.data)
        return Response(_alias(actions.move_alias(model, alias, move.version, move.reason, acting_user=user)))

    @extend_schema(
        operation_id="aliases_remove",
        summary="Remove an alias",
        description="It names nothing from now on; its history stays.",
        parameters=[REASON],
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str, alias: str) -> Response:
        user = person(request)
        model = model_for(user, code, name, OPERATE)
        if not aliases_now(model).filter(name=alias).exists():
            raise Http404(f"{name} has no alias “{alias}”.")
        actions.remove_alias(model, alias, text(request, "reason", longest=MAX_REASON), acting_user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class History(APIView):
    @extend_schema(
        operation_id="aliases_history",
        summary="What the aliases of a model named, newest first",
        parameters=[*PAGE_PARAMETERS, OpenApiParameter("alias", str, description="Of this one alone.")],
        responses=AliasPage,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        rows = history_of(model_for(person(request), code, name))
        if alias := text(request, "alias", longest=200):
            rows = rows.filter(name=alias)
        return page(request, rows, order="-id", render=_alias)


def _model(row: RegisteredModel) -> dict[str, Any]:
    now = row.now if hasattr(row, "now") else aliases_now(row)
    made = ModelStatus(
        versions=row.version_count,
        aliases={each.name: each.version.number for each in now if each.version},
        created=row.created_at,
        created_by=row.created_by.username if row.created_by else None,
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
            "createdBy": row.created_by.username if row.created_by else None,
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
    return AliasDocument(
        alias=row.name,
        version=row.version.number if row.version else None,
        since=row.since,
        until=row.until,
        moved_by=row.moved_by.username if row.moved_by else None,
        reason=row.reason,
    ).json_value()
