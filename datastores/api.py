"""REST: datastores of an appcode. Thin: read, check access, act, answer with a manifest."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from datastores import actions, sharing
from datastores.access import datastore_for, datastores_for
from datastores.serializers import (
    DatastoreDocument,
    DatastorePage,
    ReadersDocument,
    ReadersManifest,
    TestAnswer,
    read_manifest,
    test_answer,
    to_manifest,
    to_manifests,
)
from datastores.specs import DatastoreManifest
from portal.access import MANAGE, OPERATE, VIEW, appcode_for, require
from portal.api.pagination import PAGE_PARAMETERS, SEARCH_PARAMETER, page, search
from portal.api.views import person
from portal.manifests import parse

# No secret: the keys that the documentation of S3 itself shows.
_BUCKET = {
    "server": "https://s3.example.com",
    "access_key": "AKIAIOSFODNN7EXAMPLE",
    "secret_key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "bucket": "tmp",
}
EXAMPLES = [
    OpenApiExample(
        title,
        request_only=True,
        value={"kind": "datastore", "metadata": {"name": name, "appcode": "ops-demo"}, "spec": spec},
    )
    for title, name, spec in (
        ("S3", "bucket-output", {"s3": _BUCKET}),
        ("NFS", "nfs-output", {"nfs": {"server": "10.0.0.7", "path": "/data/output"}}),
        ("Volume", "scratch", {"volume": {"size": "20Gi"}}),
        ("Folder of this machine", "folder-output", {"local": {"path": "/data/output"}}),
    )
]


class AppcodeDatastores(APIView):
    @extend_schema(
        operation_id="datastores_list",
        summary="The datastores of an appcode, by name",
        parameters=[*PAGE_PARAMETERS, SEARCH_PARAMETER],
        responses=DatastorePage,
    )
    def get(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code)
        rows = search(request, datastores_for(person(request)).filter(appcode=appcode), "name", "kind")
        answer = page(request, rows, order="name", render=lambda store: store)
        answer.data["items"] = to_manifests(answer.data["items"])
        return answer

    @extend_schema(
        operation_id="datastores_create",
        summary="Create a datastore",
        description="The secret key goes in and never comes out again. Nothing is tried: POST to …/test for that.",
        request=DatastoreManifest,
        responses={201: DatastoreDocument},
        examples=EXAMPLES,
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = read_manifest(request.data, appcode=appcode.code)
        store = actions.create_datastore(manifest, acting_user=person(request))
        address = request.build_absolute_uri(f"{request.path}/{store.name}")
        return Response(to_manifest(store), status=status.HTTP_201_CREATED, headers={"Location": address})


class OneDatastore(APIView):
    @extend_schema(operation_id="datastores_read", summary="A datastore as a manifest", responses=DatastoreDocument)
    def get(self, request: Request, code: str, name: str) -> Response:
        return Response(to_manifest(datastore_for(person(request), code, name), reader=person(request)))

    @extend_schema(
        operation_id="datastores_change",
        summary="Point a datastore to another place",
        description="Without `secret_key` the one that is stored is kept, as long as server and access key stay the same. "
        "Runs that have begun keep what they mounted. A volume that has been made only grows.",
        request=DatastoreManifest,
        responses=DatastoreDocument,
        examples=EXAMPLES,
    )
    def put(self, request: Request, code: str, name: str) -> Response:
        store = datastore_for(person(request), code, name, OPERATE)
        manifest = read_manifest(request.data, appcode=code, name=name)
        return Response(to_manifest(actions.change_datastore(store, manifest, acting_user=person(request))))

    @extend_schema(
        operation_id="datastores_delete",
        summary="Forget a datastore",
        description="Its files stay where they are, but for a volume, which goes with all data: then the name has to be said "
        "once more, as ?name=… Refused while clusters use it.",
        parameters=[OpenApiParameter("name", str, description="Its name, where data is lost with it.")],
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str) -> Response:
        store = datastore_for(person(request), code, name, OPERATE)
        actions.delete_datastore(store, acting_user=person(request), named=request.query_params.get("name", ""))
        return Response(status=status.HTTP_204_NO_CONTENT)


class TestDatastore(APIView):
    @extend_schema(
        operation_id="datastores_test",
        summary="Try the connection",
        description="Not for volumes, which a run makes when it first mounts them. "
        f"Answers within {actions.TEST_SECONDS} seconds what is wrong, and at which field of the manifest.",
        request=None,
        responses=TestAnswer,
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        store = datastore_for(person(request), code, name, OPERATE)
        return Response(test_answer(actions.try_datastore(store, acting_user=person(request))))


class Sharing(APIView):
    @extend_schema(
        operation_id="datastores_readers", summary="Who else may read a datastore", responses=ReadersDocument
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        user = person(request)
        store = datastore_for(user, code, name)
        require(user, store.appcode, VIEW)
        return Response(ReadersDocument.of(sharing.readers_of(store)).json_value())

    @extend_schema(
        operation_id="datastores_share",
        summary="Share a datastore, for reading",
        description="In the place of all who were named before. Their members see its files, and their runs name it as input: "
        "`ops-demo/digits`. For owners. Only what lies in S3 can be shared.",
        request=ReadersManifest,
        responses=ReadersDocument,
        examples=[OpenApiExample("With a team", request_only=True, value={"appcodes": ["flight-demo"]})],
    )
    def put(self, request: Request, code: str, name: str) -> Response:
        store = datastore_for(person(request), code, name, MANAGE)
        wanted = parse(ReadersManifest, request.data)
        readers = sharing.Readers(tuple(wanted.appcodes), tuple(wanted.lines), wanted.everybody)
        return Response(ReadersDocument.of(sharing.share(store, readers, acting_user=person(request))).json_value())
