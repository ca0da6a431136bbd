"""REST of the objects of a kind (`portal/objects.py`): list and create them below their appcode, read, replace and delete one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.access import OPERATE, appcode_for
from portal.api.operations import Document, created, described, operation
from portal.api.pagination import LIST_PARAMETERS
from portal.api.views import person
from portal.manifests import Manifest, parse
from portal.objects import Objects


def object_views(
    objects: Objects[Any],
    manifest: type[Manifest],
    document: type[Any],
    page: type[Any],
    *,
    render: Callable[[Any], Document],
    listing: Callable[[Request, QuerySet[Any]], Response],
    create: Callable[..., Any],
    change: Callable[..., Any] | None = None,
    delete: Callable[..., Any],
    texts: Mapping[str, str],
    example: OpenApiExample,
    list_id: str = "",
    find: Callable[..., Any] | None = None,
) -> tuple[type[APIView], type[APIView]]:
    """The views of all objects of an appcode, and of one. `document` is the type of what `render` returns, `page` that of
    `listing`. The actions are `create(manifest, *, appcode, acting_user)`, `change(row, manifest, *, acting_user)` and
    `delete(row, *, acting_user)`. `texts` describes create, read, change and delete as a docstring does for `operation`."""
    plural = f"{objects.kind}s"
    one: Callable[..., Any] = find or objects.find

    class Many(APIView):
        @operation(list_id or f"{plural}_list", page, parameters=LIST_PARAMETERS)
        @described(f"The {plural} of an appcode, newest first")
        def get(self, request: Request, code: str) -> Response:
            return listing(request, objects.within(person(request), code))

        @operation(f"{plural}_create", {201: document}, request=manifest, examples=[example])
        @described(texts["create"])
        def post(self, request: Request, code: str) -> Response:
            appcode = appcode_for(person(request), code, OPERATE)
            sent = parse(manifest, request.data, appcode=code)
            made = create(sent, appcode=appcode, acting_user=person(request))
            return created(request, made.name, render(made))

    class One(APIView):
        @operation(f"{plural}_read", document)
        @described(texts["read"])
        def get(self, request: Request, code: str, name: str) -> Document:
            return render(one(person(request), code, name))

        @operation(f"{plural}_delete", {204: None})
        @described(texts["delete"])
        def delete(self, request: Request, code: str, name: str) -> None:
            delete(one(person(request), code, name, OPERATE), acting_user=person(request))

    if change is None:
        return Many, One
    replace: Callable[..., Any] = change

    class Changeable(One):
        @operation(f"{plural}_change", document, request=manifest, examples=[example])
        @described(texts["change"])
        def put(self, request: Request, code: str, name: str) -> Document:
            found = one(person(request), code, name, OPERATE)
            sent = parse(manifest, request.data, appcode=code, name=name)
            return render(replace(found, sent, acting_user=person(request)))

    return Many, Changeable


def all_view(
    objects: Objects[Any], page: type[Any], listing: Callable[[Request, QuerySet[Any]], Response]
) -> type[APIView]:
    """The view of the objects of all appcodes."""
    plural = f"{objects.kind}s"

    class All(APIView):
        @operation(f"{plural}_list_all", page, parameters=LIST_PARAMETERS)
        @described(f"All {plural} that I may see, newest first")
        def get(self, request: Request) -> Response:
            return listing(request, objects.visible(person(request)))

    return All
