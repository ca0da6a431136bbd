"""REST: the trash of a datastore."""

from __future__ import annotations

from http import HTTPStatus

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from datastores.access import datastore_for, removal_for
from datastores.drivers.patience import within
from datastores.files import contents, trash
from datastores.files.api import RemovalDocument, removal_document, told
from portal.access import OPERATE
from portal.api.documents import page_of
from portal.api.operations import Document, operation
from portal.api.pagination import PAGE_PARAMETERS, page
from portal.api.views import person
from portal.errors import Conflict
from portal.web.limits import LOOKS

RemovalPage = page_of("RemovalPage", RemovalDocument)


class Trash(APIView):
    @operation("trash_list", RemovalPage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request, code: str, name: str) -> Response:
        """What was removed and can be restored, the newest first

        It is gone for good after seven days. Until then it counts as used."""
        store = datastore_for(person(request), code, name, OPERATE)
        return page(request, trash.removals(store), order="-id", render=removal_document)

    @operation("trash_empty", {202: None})
    def delete(self, request: Request, code: str, name: str) -> Response:
        """Empty the trash

        All of it goes for good, within a minute or so after the answer."""
        user = person(request)
        trash.empty(datastore_for(user, code, name, OPERATE), acting_user=user)
        return Response(status=HTTPStatus.ACCEPTED)


class OneRemoval(APIView):
    @operation("trash_read", RemovalDocument)
    def get(self, request: Request, code: str, name: str, removal: int) -> Document:
        """Something that was removed"""
        return removal_document(removal_for(person(request), code, name, removal))

    @operation("trash_remove", {202: None})
    def delete(self, request: Request, code: str, name: str, removal: int) -> Response:
        """Remove it for good"""
        user = person(request)
        row = removal_for(user, code, name, removal)
        trash.empty(row.datastore, [row.pk], acting_user=user)
        return Response(status=HTTPStatus.ACCEPTED)


class Restore(APIView):
    @operation("trash_restore", {202: RemovalDocument, 204: None})
    def post(self, request: Request, code: str, name: str, removal: int) -> Response:
        """Bring it back to where it was

        204 when it is, 202 while a large folder is on its way. Nothing that lies there now is replaced: 409, and what
        could not be brought back stays in the trash."""
        user = person(request)
        row = removal_for(user, code, name, removal)
        with told(), LOOKS.enter(user.pk), within(contents.REMOVE_SECONDS):
            left = trash.restore(row.datastore, [row.pk], acting_user=user)
        if not left:
            return Response(status=HTTPStatus.NO_CONTENT)
        if left[0].settled:
            raise Conflict(left[0].trouble)
        return Response(removal_document(left[0]), status=HTTPStatus.ACCEPTED)
