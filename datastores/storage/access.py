"""Reading the object storage of appcodes."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet

from datastores.models import Datastore, Storage
from portal.models import Appcode


def storage_of(appcode: Appcode) -> Storage | None:
    """The storage of an appcode that the caller may see; None while it is not switched on."""
    return Storage.objects.select_related("appcode").filter(appcode=appcode).first()


def datastore_of(row: Storage) -> Datastore | None:
    """The datastore of the whole bucket, for mounting and browsing; None if it was deleted."""
    return datastores_of(row).filter(spec__prefix="").first()


def buckets_of(stores: Iterable[Datastore]) -> dict[int, Storage]:
    """The storage of those datastores that are a whole bucket of the portal, by their primary key. One query."""
    whole = [store for store in stores if store.kind == Datastore.Kind.S3 and not store.spec["prefix"]]
    rows = Storage.objects.filter(appcode__in={store.appcode_id for store in whole}).exclude(own_key="")
    found = {(row.appcode_id, row.own_key): row for row in rows}
    places = {store.pk: (store.appcode_id, store.spec["access_key"]) for store in whole}
    return {pk: found[place] for pk, place in places.items() if place in found}


def inside(stores: Iterable[Datastore]) -> dict[int, list[str]]:
    """The names of those datastores of the same appcode that lie inside these, by the primary key of those that are a whole
    bucket. At most one query."""
    whole = {
        _place(store): store.pk for store in stores if store.kind == Datastore.Kind.S3 and not store.spec["prefix"]
    }
    if not whole:
        return {}
    parts = Datastore.objects.filter(appcode__in={place[0] for place in whole}, kind=Datastore.Kind.S3)
    found: dict[int, list[str]] = {}
    for part in parts.exclude(spec__prefix="").order_by("name"):
        if pk := whole.get(_place(part)):
            found.setdefault(pk, []).append(part.name)
    return found


def _place(store: Datastore) -> tuple[int, str, str]:
    return store.appcode_id, store.spec["server"], store.spec["bucket"]


def datastores_of(row: Storage) -> QuerySet[Datastore]:
    """The datastores in the bucket that use the portal's own key."""
    if not row.own_key:
        return Datastore.objects.none()
    return Datastore.objects.filter(appcode=row.appcode, kind=Datastore.Kind.S3, spec__access_key=row.own_key)
