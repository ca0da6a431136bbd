"""REST: rules of a datastore."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from datastores.access import datastore_for, rule_for
from datastores.drivers.patience import within
from datastores.files import rules
from datastores.files.api import told
from datastores.files.downloads import COUNT_SECONDS
from datastores.files.retention import Decision, RuleSpec
from datastores.models import Datastore, Rule
from portal.access import OPERATE
from portal.api.documents import Answer, Who, page_of
from portal.api.operations import Document, created, operation
from portal.api.pagination import PAGE_PARAMETERS, page
from portal.api.views import person
from portal.manifests import parse
from portal.models import User
from portal.web.limits import LOOKS

# Items listed in a preview.
MOST_NAMED = 1_000


class RuleDocument(Answer):
    """A rule and the result of its last turn. `due` is the next one."""

    id: int
    kind: Literal["failed-runs", "checkpoints", "files"]
    path: str
    days: int | None
    keep: int | None
    created: dt.datetime
    created_by: Who
    due: dt.datetime
    applied: dt.datetime | None
    files: int = Field(description="Moved to the trash by its last turn.")
    bytes: int
    message: str = Field(description="Why its last turn could not be done, or was broken off; empty otherwise.")


RulePage = page_of("RulePage", RuleDocument)


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
    """Totals of what the rule would remove now, the items, and what is held back."""

    files: int
    bytes: int
    items: list[GoingDocument] = Field(description=f"In the order of paths, the first {MOST_NAMED:,}.")
    complete: bool = Field(description="Whether `items` has all.")
    held: list[HeldBackDocument]


class Rules(APIView):
    @operation("rules_list", RulePage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request, code: str, name: str) -> Response:
        """The rules of a datastore, the newest first"""
        store = datastore_for(person(request), code, name, OPERATE)
        rows = Rule.objects.filter(datastore=store).select_related("created_by")
        return page(request, rows, order="-id", render=lambda row: _document(row).json_value())

    @operation("rules_make", {201: RuleDocument}, request=RuleSpec)
    def post(self, request: Request, code: str, name: str) -> Response:
        """Make a rule by which files go from a datastore

        It is applied within minutes and then every day; what goes lies in the trash for seven days. Preview it first.
        What cannot be previewed is refused, and so is a second rule of a kind for a folder."""
        user = person(request)
        store = datastore_for(user, code, name, OPERATE)
        spec = parse(RuleSpec, request.data)
        with told(), LOOKS.enter(user.pk), within(COUNT_SECONDS):
            made = rules.add(store, spec, acting_user=user)
        return created(request, made.pk, _document(made).json_value())


class PreviewRule(APIView):
    @operation("rules_try", {200: RulePreview}, request=RuleSpec)
    def post(self, request: Request, code: str, name: str) -> Response:
        """What a rule would do, were it saved

        Changes nothing."""
        user = person(request)
        store = datastore_for(user, code, name, OPERATE)
        return _previewed(user, store, parse(RuleSpec, request.data))


class OneRule(APIView):
    @operation("rules_read", RuleDocument)
    def get(self, request: Request, code: str, name: str, rule: int) -> Document:
        """A rule of a datastore"""
        return _document(rule_for(person(request), code, name, rule)).json_value()

    @operation("rules_forget", {204: None})
    def delete(self, request: Request, code: str, name: str, rule: int) -> None:
        """Forget a rule

        Nothing goes by it any more; what it moved to the trash stays there for its time."""
        user = person(request)
        rules.forget(rule_for(user, code, name, rule), acting_user=user)


class RuleNow(APIView):
    @operation("rules_preview", RulePreview)
    def get(self, request: Request, code: str, name: str, rule: int) -> Response:
        """What a rule would do now

        Changes nothing."""
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
            GoingDocument.of(item, kind="folder" if item.is_folder else "file", bytes=item.size, reason=item.why)
            for item in found.going[:MOST_NAMED]
        ],
        complete=len(found.going) <= MOST_NAMED,
        held=[HeldBackDocument.of(each, reason=each.why, bytes=each.size) for each in found.kept],
    )


def _document(row: Rule) -> RuleDocument:
    times = {"created": row.created_at, "due": row.due_at, "applied": row.applied_at}
    return RuleDocument.of(row, path=row.folder, message=row.trouble, **times)
