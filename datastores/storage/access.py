"""Reading the object storage of appcodes."""

from __future__ import annotations

from django.db.models import QuerySet

from datastores.models import Datastore, Storage
from portal.models import Appcode


def storage_of(appcode: Appcode) -> Storage | None:
    """The storage of an appcode that the caller may see; None while it is not switched on."""
    return Storage.objects.select_related("appcode").filter(appcode=appcode).first()


def datastore_of(row: Storage) -> Datastore | None:
    """The datastore of the whole bucket, for mounting and browsing; None if it was deleted."""
    return datastores_of(row).filter(spec__prefix="").first()


def datastores_of(row: Storage) -> QuerySet[Datastore]:
    """The datastores in the bucket that use the portal's own key."""
    if not row.own_key:
        return Datastore.objects.none()
    return Datastore.objects.filter(appcode=row.appcode, kind=Datastore.Kind.S3, spec__access_key=row.own_key)
