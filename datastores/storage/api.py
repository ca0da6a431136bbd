"""REST: the object storage of an appcode and its keys. The secret key is answered once, by whatever made it."""

from __future__ import annotations

import datetime as dt

from django.conf import settings
from drf_spectacular.utils import extend_schema
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from datastores.models import Storage
from datastores.storage import actions, limits
from datastores.storage.access import datastore_of, storage_of
from datastores.storage.store import KeyPair
from portal.access import OPERATE, appcode_for
from portal.api.documents import Answer
from portal.api.views import person
from portal.errors import Conflict
from portal.limits import LOOKS
from portal.manifests import Strict, parse


class StorageUsage(Answer):
    """What was in the bucket when it was last looked at."""

    bytes: int = Field(description="As the store keeps them: what can be compressed is.")
    measured: dt.datetime


class StorageAnswer(Answer):
    """All but the switch is null until it is on; `accessKey` is null while keys are stopped, `datastore` where it was deleted."""

    on: bool
    endpoint: str | None = Field(examples=["https://s3.example.com"])
    region: str | None
    bucket: str | None
    access_key: str | None
    datastore: str | None = Field(description="Its name, by which clusters mount it.")
    limit_gib: int | None = Field(alias="limitGiB")
    usage: StorageUsage | None


class NewLimit(Strict):
    limit_gib: int = Field(alias="limitGiB", examples=[500])


class KeysAnswer(Answer):
    """`secretKey` is shown now and never again."""

    access_key: str
    secret_key: str


class SwitchedOn(StorageAnswer):
    secret_key: str | None = Field(description="Of keys that were just made; null where there are some already.")


class AppcodeStorage(APIView):
    @extend_schema(operation_id="storage_read", summary="The object storage of an appcode", responses=StorageAnswer)
    def get(self, request: Request, code: str) -> Response:
        row = storage_of(appcode_for(person(request), code))
        return Response(StorageAnswer.model_validate(_fields(row)).json_value())

    @extend_schema(
        operation_id="storage_switch_on",
        summary="Switch the object storage of an appcode on",
        description="Makes its bucket, its first keys and a datastore for it. Repeated, it mends what is missing. The first one "
        "on a portal takes some seconds: then the store is started.",
        request=None,
        responses=SwitchedOn,
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        with LOOKS.enter(person(request).pk):  # the store may take its time to start
            row, made = actions.switch_on(appcode, acting_user=person(request))
        secret = {"secret_key": made.secret_key if made else None}
        return Response(SwitchedOn.model_validate(_fields(row) | secret).json_value())

    @extend_schema(
        operation_id="storage_limit",
        summary="Set how much may be in the bucket",
        description="For administrators. Less than what is there lets nothing more in.",
        request=NewLimit,
        responses=StorageAnswer,
    )
    def patch(self, request: Request, code: str) -> Response:
        row = _on(request, code)
        limits.set_limit(row, parse(NewLimit, request.data).limit_gib, acting_user=person(request))
        return Response(StorageAnswer.model_validate(_fields(row)).json_value())


class StorageKeys(APIView):
    @extend_schema(
        operation_id="storage_keys_refresh",
        summary="Make new keys; the old ones stop within two seconds",
        request=None,
        responses=KeysAnswer,
    )
    def post(self, request: Request, code: str) -> Response:
        row = _on(request, code)
        with LOOKS.enter(person(request).pk):
            made = actions.refresh_keys(row, acting_user=person(request))
        return Response(_keys(made))

    @extend_schema(operation_id="storage_keys_stop", summary="Stop the keys", request=None, responses={204: None})
    def delete(self, request: Request, code: str) -> Response:
        actions.stop_keys(_on(request, code), acting_user=person(request))
        return Response(status=204)


def _on(request: Request, code: str) -> Storage:
    row = storage_of(appcode_for(person(request), code, OPERATE))
    if row is None:
        raise Conflict(f"The object storage of {code} is not switched on.")
    return row


def _keys(made: KeyPair) -> dict[str, str]:
    return KeysAnswer(access_key=made.access_key, secret_key=made.secret_key).json_value()


def _fields(row: Storage | None) -> dict[str, object]:
    if row is None:
        return {"on": False} | dict.fromkeys(
            ("endpoint", "region", "bucket", "access_key", "datastore", "limit_gib", "usage")
        )
    usage = None
    if row.measured_at:
        usage = {"bytes": row.used_bytes, "measured": row.measured_at}
    found = datastore_of(row)
    return {
        "on": row.own_key is not None,  # else whoever switched it on died at it: POST again
        "endpoint": settings.STORAGE["url"],
        "region": settings.STORAGE["region"],
        "bucket": row.bucket,
        "access_key": row.access_key,
        "datastore": found.name if found else None,
        "limit_gib": row.limit_gib,
        "usage": usage,
    }
