"""REST: the retention rule of a model: preview, save, delete."""

from __future__ import annotations

import datetime as dt

from drf_spectacular.utils import OpenApiExample
from pydantic import Field
from rest_framework.request import Request
from rest_framework.views import APIView

from clusters.model_registry import actions, rules
from clusters.model_registry.access import model_for
from clusters.model_registry.models import ModelRetention
from clusters.model_registry.retention import Decision, RetentionSpec
from portal.access import OPERATE
from portal.api.documents import Answer, Who
from portal.api.operations import Document, operation
from portal.api.views import person
from portal.manifests import parse

RULE_EXAMPLE = OpenApiExample(
    "The last ten, and what is younger than a month", request_only=True, value={"keep": 10, "days": 30}
)


class ModelRetentionDocument(Answer):
    """The rule, and the result of its last application. `due` is when it is applied next."""

    keep: int
    days: int | None
    saved: dt.datetime
    saved_by: Who
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
    """Each version of the model is in one list: deleted now, oldest first; due for deletion but in use; or kept by the rule."""

    bytes: int = Field(
        description="Of the files of what would go. They stay where they are, and nothing keeps them any more."
    )
    items: list[GoingVersion]
    held: list[HeldVersion]
    kept: list[KeptVersions]


class Retention(APIView):
    @operation("model_retention_read", ModelRetentionDocument)
    def get(self, request: Request, code: str, name: str) -> Document:
        """The retention rule of a model"""
        return _document(rules.retention_of(model_for(person(request), code, name)))

    @operation("model_retention_save", ModelRetentionDocument, request=RetentionSpec, examples=[RULE_EXAMPLE])
    def put(self, request: Request, code: str, name: str) -> Document:
        """Save the rule by which versions of a model go

        It takes the place of the one before, is applied within minutes and then every day. Preview it first. It deletes
        as DELETE of a version does: what an alias, a service, a rollout, a cluster, a pipeline or a sweep has stays,
        and files stay where they are."""
        user = person(request)
        model = model_for(user, code, name, OPERATE)
        return _document(actions.save_retention(model, parse(RetentionSpec, request.data), acting_user=user))

    @operation("model_retention_forget", {204: None})
    def delete(self, request: Request, code: str, name: str) -> None:
        """Forget the retention rule of a model

        Nothing goes by it any more; what it deleted stays deleted."""
        user = person(request)
        model = model_for(user, code, name, OPERATE)
        rules.retention_of(model)
        actions.forget_retention(model, acting_user=user)


class PreviewRetention(APIView):
    @operation("model_retention_preview", ModelRetentionPreview)
    def get(self, request: Request, code: str, name: str) -> Document:
        """What the retention rule of a model would do now

        Changes nothing."""
        model = model_for(person(request), code, name)
        return _preview(rules.preview(model, rules.spec_of(rules.retention_of(model))))

    @operation("model_retention_try", {200: ModelRetentionPreview}, request=RetentionSpec, examples=[RULE_EXAMPLE])
    def post(self, request: Request, code: str, name: str) -> Document:
        """What a retention rule would do, were it saved

        Changes nothing."""
        model = model_for(person(request), code, name)
        return _preview(rules.preview(model, parse(RetentionSpec, request.data)))


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
    return ModelRetentionDocument.of(
        row, saved=row.created_at, saved_by=row.created_by, due=row.due_at, applied=row.applied_at
    ).json_value()
