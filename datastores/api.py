"""REST: datastores of an appcode. Thin: parse, check access, act, answer with a manifest."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from datastores import actions, sharing
from datastores.access import datastore_for, datastores_for
from datastores.models import FOUND_MOST
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
from portal.api.operations import Document, created, operation
from portal.api.pagination import LIST_PARAMETERS, page_together, search
from portal.api.views import person
from portal.manifests import parse

# Not secret: the example keys of the S3 documentation.
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
    @operation("datastores_list", DatastorePage, parameters=LIST_PARAMETERS)
    def get(self, request: Request, code: str) -> Response:
        """The datastores of an appcode, by name"""
        appcode = appcode_for(person(request), code)
        rows = search(request, datastores_for(person(request)).filter(appcode=appcode), "name", "kind")
        return page_together(request, rows, order="name", render=to_manifests)

    @operation("datastores_create", {201: DatastoreDocument}, request=DatastoreManifest, examples=EXAMPLES)
    def post(self, request: Request, code: str) -> Response:
        """Create a datastore

        The secret key goes in and never comes out again. Nothing is tried: POST to …/test for that."""
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = read_manifest(request.data, appcode=appcode.code)
        store = actions.create_datastore(manifest, acting_user=person(request))
        return created(request, store.name, to_manifest(store))


class OneDatastore(APIView):
    @operation("datastores_read", DatastoreDocument)
    def get(self, request: Request, code: str, name: str) -> Document:
        """A datastore as a manifest"""
        return to_manifest(datastore_for(person(request), code, name), reader=person(request))

    @operation("datastores_change", DatastoreDocument, request=DatastoreManifest, examples=EXAMPLES)
    def put(self, request: Request, code: str, name: str) -> Document:
        """Point a datastore to another place

        Without `secret_key` the one that is stored is kept, as long as server and access key stay the same. Runs that
        have begun keep what they mounted. A volume that has been made only grows."""
        store = datastore_for(person(request), code, name, OPERATE)
        manifest = read_manifest(request.data, appcode=code, name=name)
        return to_manifest(actions.change_datastore(store, manifest, acting_user=person(request)))

    @operation(
        "datastores_delete",
        {204: None},
        parameters=[OpenApiParameter("name", str, description="Its name, where data is lost with it.")],
    )
    def delete(self, request: Request, code: str, name: str) -> None:
        """Forget a datastore

        Its files stay where they are, but for a volume, which goes with all data: then the name has to be said once
        more, as ?name=… Refused while clusters use it."""
        store = datastore_for(person(request), code, name, OPERATE)
        actions.delete_datastore(store, acting_user=person(request), named=request.query_params.get("name", ""))


class TestDatastore(APIView):
    @operation(
        "datastores_test",
        TestAnswer,
        description="Reads, and writes and removes a small file where a cluster has it as output or home; counts the first "
        f"{FOUND_MOST:,} files. Not for volumes, which a run makes when it first mounts them. "
        f"Answers within {actions.TEST_SECONDS} seconds what is wrong, and at which field of the manifest.",
    )
    def post(self, request: Request, code: str, name: str) -> Document:
        """Try the connection"""
        store = datastore_for(person(request), code, name, OPERATE)
        return test_answer(actions.try_datastore(store, acting_user=person(request)))


class Sharing(APIView):
    @operation("datastores_readers", ReadersDocument)
    def get(self, request: Request, code: str, name: str) -> Document:
        """Who else may read a datastore"""
        user = person(request)
        store = datastore_for(user, code, name)
        require(user, store.appcode, VIEW)
        return ReadersDocument.of(sharing.readers_of(store)).json_value()

    @operation(
        "datastores_share",
        ReadersDocument,
        request=ReadersManifest,
        examples=[OpenApiExample("With a team", request_only=True, value={"appcodes": ["flight-demo"]})],
    )
    def put(self, request: Request, code: str, name: str) -> Document:
        """Share a datastore, for reading

        In the place of all who were named before. Their members see its files, and their runs name it as input:
        `ops-demo/digits`. For owners. Only what lies in S3 can be shared."""
        store = datastore_for(person(request), code, name, MANAGE)
        wanted = parse(ReadersManifest, request.data)
        readers = sharing.Readers(tuple(wanted.appcodes), tuple(wanted.lines), wanted.everybody)
        return ReadersDocument.of(sharing.share(store, readers, acting_user=person(request))).json_value()
