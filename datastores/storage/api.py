"""REST: the object storage of an appcode and its keys. The secret key is only in the response that made it."""

from __future__ import annotations

import datetime as dt

from django.conf import settings
from pydantic import Field
from rest_framework.request import Request
from rest_framework.views import APIView

from datastores.models import Storage
from datastores.storage import actions, limits
from datastores.storage.access import datastore_of, storage_of
from datastores.storage.store import KeyPair
from portal.access import OPERATE, appcode_for
from portal.api.documents import Answer
from portal.api.operations import Document, operation
from portal.api.views import person
from portal.errors import Conflict
from portal.manifests import Strict, parse
from portal.web.limits import LOOKS


class StorageUsage(Answer):
    """The bucket's contents when last measured."""

    bytes: int = Field(description="As the store keeps them: what can be compressed is.")
    measured: dt.datetime


class StorageAnswer(Answer):
    """Everything but `on` is null until it is switched on; `accessKey` is null while keys are stopped, `datastore` if
    it was deleted."""

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
    """`secretKey` is shown only once."""

    access_key: str
    secret_key: str


class SwitchedOn(StorageAnswer):
    secret_key: str | None = Field(description="Of keys that were just made; null where there are some already.")


class AppcodeStorage(APIView):
    @operation("storage_read", StorageAnswer)
    def get(self, request: Request, code: str) -> Document:
        """The object storage of an appcode"""
        row = storage_of(appcode_for(person(request), code))
        return StorageAnswer.model_validate(_fields(row)).json_value()

    @operation("storage_switch_on", SwitchedOn)
    def post(self, request: Request, code: str) -> Document:
        """Switch the object storage of an appcode on

        Makes its bucket, its first keys and a datastore for it. Repeated, it mends what is missing. The first one on a
        portal takes some seconds: then the store is started."""
        appcode = appcode_for(person(request), code, OPERATE)
        with LOOKS.enter(person(request).pk):  # the store may take long to start
            row, made = actions.switch_on(appcode, acting_user=person(request))
        secret = {"secret_key": made.secret_key if made else None}
        return SwitchedOn.model_validate(_fields(row) | secret).json_value()

    @operation("storage_limit", StorageAnswer, request=NewLimit)
    def patch(self, request: Request, code: str) -> Document:
        """Set how much may be in the bucket

        For administrators. Less than what is there lets nothing more in."""
        row = _on(request, code)
        limits.set_limit(row, parse(NewLimit, request.data).limit_gib, acting_user=person(request))
        return StorageAnswer.model_validate(_fields(row)).json_value()


class StorageKeys(APIView):
    @operation("storage_keys_refresh", KeysAnswer)
    def post(self, request: Request, code: str) -> Document:
        """Make new keys; the old ones stop within two seconds"""
        row = _on(request, code)
        with LOOKS.enter(person(request).pk):
            made = actions.refresh_keys(row, acting_user=person(request))
        return _keys(made)

    @operation("storage_keys_stop", {204: None})
    def delete(self, request: Request, code: str) -> None:
        """Stop the keys"""
        actions.stop_keys(_on(request, code), acting_user=person(request))


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
        "on": row.own_key is not None,  # otherwise switching on was interrupted: POST again
        "endpoint": settings.STORAGE["url"],
        "region": settings.STORAGE["region"],
        "bucket": row.bucket,
        "access_key": row.access_key,
        "datastore": found.name if found else None,
        "limit_gib": row.limit_gib,
        "usage": usage,
    }
