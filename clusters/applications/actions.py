"""User actions that only applications have: creating and changing one by its own manifest, which may create or enlarge the
volume of its files. All other actions are those of clusters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from clusters.applications.manifest import ApplicationManifest, cluster_manifest, home_of, own_errors, with_storage
from clusters.catalog.package_index import last_refusal
from clusters.cluster import actions
from clusters.runs.models import Cluster
from clusters.runs.queries.preview import Preview, preview
from datastores.actions import change_datastore, create_datastore
from datastores.models import Datastore
from datastores.specs import DatastoreManifest
from portal.errors import FieldError, Invalid
from portal.manifests import parse
from portal.models import Appcode, User


def create_application(manifest: ApplicationManifest, *, acting_user: User, appcode: Appcode | None = None) -> Cluster:
    """Defines an application, creates its volume if requested, and deploys it; all or nothing.

    Raises Invalid (with paths of the application's manifest) or PermissionDenied, as `actions.create_cluster` does.
    """
    manifest = with_storage(manifest)
    cluster = cluster_manifest(manifest)
    actions.judge_requirements(cluster, acting_user=acting_user, appcode=appcode)
    with transaction.atomic():
        _make_home(manifest, acting_user)
        with _own_fields():
            return actions.create_cluster(cluster, acting_user=acting_user, appcode=appcode)


def change_application(cluster: Cluster, manifest: ApplicationManifest, *, acting_user: User) -> Cluster:
    """Replaces the definition; a live run keeps its own. A storage size enlarges or creates the application's own volume."""
    changed = cluster_manifest(manifest, before=cluster.spec)
    actions.judge_requirements(changed, acting_user=acting_user, instead_of=cluster)
    with transaction.atomic():
        _make_home(manifest, acting_user, cluster)
        with _own_fields():
            return actions.change_cluster(cluster, changed, acting_user=acting_user)


@transaction.atomic
def preview_application(manifest: ApplicationManifest, *, acting_user: User, cluster: Cluster | None = None) -> Preview:
    """What would happen if it were deployed now. `cluster` is the one that it would change. A requested volume is checked by
    creating it and rolling back. Raises what creating would, except for a taken name."""
    asked = cluster_manifest(manifest, before=cluster.spec if cluster else None)
    undone = transaction.savepoint()
    try:
        _make_home(manifest, acting_user, cluster)
        with _own_fields():
            if why := last_refusal(asked.spec.required):
                raise Invalid.at("spec", "requirements", message=why)
            return preview(asked, acting_user=acting_user, instead_of=cluster)
    finally:
        transaction.savepoint_rollback(undone)


def _make_home(manifest: ApplicationManifest, user: User, cluster: Cluster | None = None) -> None:
    """Creates the volume for a storage size, or enlarges that of `cluster`. Raises Invalid."""
    storage = manifest.spec.storage
    if storage is None or storage.size is None:
        return
    name, code = home_of(manifest), manifest.metadata.appcode
    own = None
    if cluster and cluster.spec.get("home") == name:
        own = Datastore.objects.filter(appcode=cluster.appcode_id, name=name, kind=Datastore.Kind.VOLUME).first()
    volume: dict[str, Any] = {**(own.spec if own else {}), "size": storage.size}
    try:
        asked = parse(DatastoreManifest, {"spec": {"volume": volume}, "metadata": {"name": name, "appcode": code}})
        if own:
            change_datastore(own, asked, acting_user=user)
        else:
            create_datastore(asked, acting_user=user)
    except Invalid as invalid:
        raise Invalid([_of_storage(error, name) for error in invalid.errors]) from None


def _of_storage(error: FieldError, name: str) -> FieldError:
    """An error of the volume, at the application's field. The user did not choose the volume's name."""
    if error.path == ("metadata", "name"):
        sentence = f"There is a datastore “{name}” already; choose it, or another name for the application."
        return FieldError(("spec", "storage"), sentence)
    if error.path[:1] == ("metadata",):
        return error
    return FieldError(
        ("spec", "storage", "size") if error.path[-1:] == ("size",) else ("spec", "storage"), error.message
    )


@contextmanager
def _own_fields() -> Iterator[None]:
    """Turns errors of the cluster into errors of the application."""
    try:
        yield
    except Invalid as invalid:
        raise Invalid(own_errors(invalid.errors)) from invalid
