"""REST: rules of a datastore, previewed, saved, forgotten."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from drf_spectacular.utils import extend_schema
from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from datastores.access import datastore_for, rule_for
from datastores.drivers.patience import within
from datastores.files import rules
from datastores.files.api import told
from datastores.files.downloads import COUNT_SECONDS
from datastores.models import Datastore, Rule
from datastores.retention import Decision, RuleSpec
from portal.access import OPERATE
from portal.api.documents import Answer
from portal.api.pagination import PAGE_PARAMETERS, page
from portal.api.views import person
from portal.limits import LOOKS
from portal.manifests import parse
from portal.models import User

# Of what a rule would move, so many are named.
MOST_NAMED = 1_000


class RuleDocument(Answer):
    """A rule, and what it did at its last turn. `due` is when it is applied next."""

    id: int
    kind: Literal["failed-runs", "checkpoints", "files"]
    path: str
    days: int | None
    keep: int | None
    created: dt.datetime
    created_by: str | None
    due: dt.datetime
    applied: dt.datetime | None
    files: int = Field(description="Moved to the trash by its last turn.")
    bytes: int
    message: str = Field(description="Why its last turn could not be done, or was broken off; empty otherwise.")


class RulePage(Answer):
    items: list[RuleDocument]
    next: str | None


class GoingDocument(Answer):
    path: str
    kind: Literal["file", "folder"]
    files: int
    bytes: int
    reason: str


class HeldBackDocument(Answer):
    reason: str = Field(examples=["run train/3 reads it"])
    files: int
    bytes: int


class RulePreview(Answer):
    """What would go now, in all; what of it by name; and what would, were it not held back."""

    files: int
    bytes: int
    items: list[GoingDocument] = Field(description=f"In the order of paths, the first {MOST_NAMED:,}.")
    complete: bool = Field(description="Whether `items` has all.")
    held: list[HeldBackDocument]


class Rules(APIView):
    @extend_schema(
        operation_id="rules_list",
        summary="The rules of a datastore, the newest first",
        parameters=PAGE_PARAMETERS,
        responses=RulePage,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        store = datastore_for(person(request), code, name, OPERATE)
        rows = Rule.objects.filter(datastore=store).select_related("created_by")
        return page(request, rows, order="-id", render=lambda row: _document(row).json_value())

    @extend_schema(
        operation_id="rules_make",
        summary="Make a rule by which files go from a datastore",
        description="It is applied within minutes and then every day; what goes lies in the trash for seven days. Preview it "
        "first. What cannot be previewed is refused, and so is a second rule of a kind for a folder.",
        request=RuleSpec,
        responses={201: RuleDocument},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        user = person(request)
        store = datastore_for(user, code, name, OPERATE)
        spec = parse(RuleSpec, request.data)
        with told(), LOOKS.enter(user.pk), within(COUNT_SECONDS):
            made = rules.add(store, spec, acting_user=user)
        address = request.build_absolute_uri(f"{request.path}/{made.pk}")
        return Response(_document(made).json_value(), status=status.HTTP_201_CREATED, headers={"Location": address})


class PreviewRule(APIView):
    @extend_schema(
        operation_id="rules_try",
        summary="What a rule would do, were it saved",
        description="Changes nothing.",
        request=RuleSpec,
        responses={200: RulePreview},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        user = person(request)
        store = datastore_for(user, code, name, OPERATE)
        return _previewed(user, store, parse(RuleSpec, request.data))


class OneRule(APIView):
    @extend_schema(operation_id="rules_read", summary="A rule of a datastore", responses=RuleDocument)
    def get(self, request: Request, code: str, name: str, rule: int) -> Response:
        return Response(_document(rule_for(person(request), code, name, rule)).json_value())

    @extend_schema(
        operation_id="rules_forget",
        summary="Forget a rule",
        description="Nothing goes by it any more; what it moved to the trash stays there for its time.",
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str, rule: int) -> Response:
        user = person(request)
        rules.forget(rule_for(user, code, name, rule), acting_user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class RuleNow(APIView):
    @extend_schema(
        operation_id="rules_preview",
        summary="What a rule would do now",
        description="Changes nothing.",
        responses=RulePreview,
    )
    def get(self, request: Request, code: str, name: str, rule: int) -> Response:
        user = person(request)
        found = rule_for(user, code, name, rule)
        return _previewed(user, found.datastore, found.spec)


def _previewed(user: User, store: Datastore, spec: RuleSpec) -> Response:
    with told(), LOOKS.enter(user.pk), within(COUNT_SECONDS):
        return Response(_preview(rules.preview(store, spec)).json_value())


def _preview(found: Decision) -> RulePreview:
    return RulePreview(
        files=found.files,
        bytes=found.size,
        items=[
            GoingDocument(
                path=item.path,
                kind="folder" if item.is_folder else "file",
                files=item.files,
                bytes=item.size,
                reason=item.why,
            )
            for item in found.going[:MOST_NAMED]
        ],
        complete=len(found.going) <= MOST_NAMED,
        held=[HeldBackDocument(reason=each.why, files=each.files, bytes=each.size) for each in found.kept],
    )


def _document(row: Rule) -> RuleDocument:
    spec = row.spec
    return RuleDocument(
        id=row.pk,
        kind=spec.kind,
        path=spec.path,
        days=spec.days,
        keep=spec.keep,
        created=row.created_at,
        created_by=row.created_by.username if row.created_by else None,
        due=row.due_at,
        applied=row.applied_at,
        files=row.files,
        bytes=row.bytes,
        message=row.trouble,
    )
