"""Reading the object storage of appcodes: the only way from a person to its rows."""

from __future__ import annotations

from django.db.models import QuerySet

from datastores.models import Datastore, Storage
from portal.models import Appcode


def storage_of(appcode: Appcode) -> Storage | None:
    """That of an appcode which somebody may see; None while it is not switched on."""
    return Storage.objects.select_related("appcode").filter(appcode=appcode).first()


def datastore_of(row: Storage) -> Datastore | None:
    """The datastore of all of it, by which runs mount it and people browse it; None where somebody has deleted it."""
    return datastores_of(row).filter(spec__prefix="").first()


def datastores_of(row: Storage) -> QuerySet[Datastore]:
    """Those that lie in it, and come by the portal's own key."""
    if not row.own_key:
        return Datastore.objects.none()
    return Datastore.objects.filter(appcode=row.appcode, kind=Datastore.Kind.S3, spec__access_key=row.own_key)
