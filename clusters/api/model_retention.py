"""REST: the retention rule of a model, previewed, saved, forgotten."""

from __future__ import annotations

import datetime as dt

from drf_spectacular.utils import OpenApiExample, extend_schema
from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.model_registry import actions, rules
from clusters.model_registry.access import model_for
from clusters.model_registry.retention import Decision, RetentionSpec
from clusters.models import ModelRetention
from portal.access import OPERATE
from portal.api.documents import Answer
from portal.api.views import person
from portal.manifests import parse

RULE_EXAMPLE = OpenApiExample(
    "The last ten, and what is younger than a month", request_only=True, value={"keep": 10, "days": 30}
)


class ModelRetentionDocument(Answer):
    """The rule, and what it did at its last turn. `due` is when it is applied next."""

    keep: int
    days: int | None
    saved: dt.datetime
    saved_by: str | None
    due: dt.datetime
    applied: dt.datetime | None
    versions: int = Field(description="Deleted by its last turn.")
    bytes: int = Field(description="Of the files of these, which stay where they are.")


class GoingVersion(Answer):
    version: int
    registered: dt.datetime
    bytes: int


class HeldVersion(Answer):
    version: int
    registered: dt.datetime
    bytes: int
    reasons: list[str] = Field(examples=[["champion names it", "service answers has it"]])


class KeptVersions(Answer):
    reason: str = Field(examples=["among the last 10"])
    versions: list[int]


class ModelRetentionPreview(Answer):
    """Each version of the model is in one of the lists: deleted now, oldest first; deleted, were it not held by somebody; or left
    alone by the rule."""

    bytes: int = Field(
        description="Of the files of what would go. They stay where they are, and nothing keeps them any more."
    )
    items: list[GoingVersion]
    held: list[HeldVersion]
    kept: list[KeptVersions]


class Retention(APIView):
    @extend_schema(
        operation_id="model_retention_read", summary="The retention rule of a model", responses=ModelRetentionDocument
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        return Response(_document(rules.retention_of(model_for(person(request), code, name))))

    @extend_schema(
        operation_id="model_retention_save",
        summary="Save the rule by which versions of a model go",
        description="It takes the place of the one before, is applied within minutes and then every day. Preview it first. It "
        "deletes as DELETE of a version does: what an alias, a service, a rollout, a cluster, a pipeline or a sweep has stays, "
        "and files stay where they are.",
        request=RetentionSpec,
        responses=ModelRetentionDocument,
        examples=[RULE_EXAMPLE],
    )
    def put(self, request: Request, code: str, name: str) -> Response:
        user = person(request)
        model = model_for(user, code, name, OPERATE)
        return Response(_document(actions.save_retention(model, parse(RetentionSpec, request.data), acting_user=user)))

    @extend_schema(
        operation_id="model_retention_forget",
        summary="Forget the retention rule of a model",
        description="Nothing goes by it any more; what it deleted stays deleted.",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str) -> Response:
        user = person(request)
        model = model_for(user, code, name, OPERATE)
        rules.retention_of(model)
        actions.forget_retention(model, acting_user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class PreviewRetention(APIView):
    @extend_schema(
        operation_id="model_retention_preview",
        summary="What the retention rule of a model would do now",
        description="Changes nothing.",
        responses=ModelRetentionPreview,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        model = model_for(person(request), code, name)
        return Response(_preview(rules.preview(model, rules.spec_of(rules.retention_of(model)))))

    @extend_schema(
        operation_id="model_retention_try",
        summary="What a retention rule would do, were it saved",
        description="Changes nothing.",
        request=RetentionSpec,
        responses={200: ModelRetentionPreview},
        examples=[RULE_EXAMPLE],
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        model = model_for(person(request), code, name)
        return Response(_preview(rules.preview(model, parse(RetentionSpec, request.data))))


def _preview(found: Decision) -> dict[str, object]:
    return ModelRetentionPreview(
        bytes=found.size,
        items=[GoingVersion(version=each.number, registered=each.registered, bytes=each.size) for each in found.going],
        held=[
            HeldVersion(
                version=each.version.number,
                registered=each.version.registered,
                bytes=each.version.size,
                reasons=[who.why for who in each.held],
            )
            for each in found.held
        ],
        kept=[KeptVersions(reason=each.why, versions=list(each.numbers)) for each in found.kept],
    ).json_value()


def _document(row: ModelRetention) -> dict[str, object]:
    return ModelRetentionDocument(
        keep=row.keep,
        days=row.days,
        saved=row.created_at,
        saved_by=row.created_by.username if row.created_by else None,
        due=row.due_at,
        applied=row.applied_at,
        versions=row.versions,
        bytes=row.bytes,
    ).json_value()
