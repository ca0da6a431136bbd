"""Reading datastores. Views get rows only here; what a user may not see raises the same Http404 as what does not exist."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q, QuerySet
from django.http import Http404

from datastores.models import AllowedFolder, Datastore, Removal, Rule, Share, Upload, Version
from datastores.specs import VERSION
from portal.access import OPERATE, VIEW, Capability, appcodes_for, require
from portal.models import Appcode, User


def datastores_for(user: User) -> QuerySet[Datastore]:
    """Datastores that `user` may see, with appcode, creator and volume joined: those of their appcodes, and those
    shared with one."""
    stores = Datastore.objects.select_related("appcode", "created_by", "volume")
    if user.is_administrator:
        return stores
    own = Q(appcode__in=appcodes_for(user).values("pk"))
    if user.is_active:
        own |= Q(pk__in=shared_with(appcodes_for(user).select_related("org_node")).values("datastore"))
    return stores.filter(own)


def shared_with(appcodes: Iterable[Appcode]) -> QuerySet[Share]:
    """Shares with one of these appcodes (with their nodes joined), including shares with everybody. An appcode that is
    only requested gets none, whatever its business line."""
    found = [appcode for appcode in appcodes if appcode.state == Appcode.State.ACTIVE]
    lines = {path for appcode in found for path in appcode.org_node.ancestors_and_self}
    everybody = Q(appcode=None, line=None)
    return Share.objects.filter(everybody | Q(appcode__in=[each.pk for each in found]) | Q(line__path__in=lines))


def readable_by(appcode: Appcode) -> QuerySet[Datastore]:
    """What runs of an appcode may read: its own datastores, and those shared with it."""
    shared = Q(pk__in=shared_with([appcode]).values("datastore"))
    return Datastore.objects.select_related("appcode", "volume").filter(Q(appcode=appcode) | shared)


def datastore_for(user: User, appcode: str, name: str, capability: Capability = VIEW) -> Datastore:
    """Raises Http404 (missing or not theirs) or PermissionDenied (visible, but not allowed)."""
    store = datastores_for(user).filter(appcode__code=appcode, name=name).first()
    if store is None:
        raise Http404(f"There is no datastore “{name}” in {appcode} that you can see.")
    if capability is not VIEW:
        require(user, store.appcode, capability)
    return store


def upload_for(user: User, appcode: str, name: str, pk: int) -> Upload:
    """An unfinished upload to a datastore that the user may write to. Raises as `datastore_for`."""
    store = datastore_for(user, appcode, name, OPERATE)
    upload = Upload.objects.filter(datastore=store, pk=pk).first()
    if upload is None:
        raise Http404(f"There is no upload {pk} to {name} that is not finished; it may be, or nothing came for a day.")
    upload.datastore = store
    return upload


def removal_for(user: User, appcode: str, name: str, pk: int) -> Removal:
    """A removal from a datastore that the user may write to. Raises as `datastore_for`."""
    store = datastore_for(user, appcode, name, OPERATE)
    removal = Removal.objects.select_related("removed_by").filter(datastore=store, pk=pk).first()
    if removal is None:
        raise Http404(f"There is nothing {pk} in the trash of {name}; it was restored, or is gone for good.")
    removal.datastore = store
    return removal


def rule_for(user: User, appcode: str, name: str, pk: int) -> Rule:
    """A rule of a datastore that the user may write to. Raises as `datastore_for`."""
    store = datastore_for(user, appcode, name, OPERATE)
    rule = Rule.objects.select_related("created_by").filter(datastore=store, pk=pk).first()
    if rule is None:
        raise Http404(f"{name} has no rule {pk}.")
    rule.datastore = store
    return rule


def version_for(user: User, appcode: str, name: str, version: str, capability: Capability = VIEW) -> Version:
    """Raises as `datastore_for`."""
    store = datastore_for(user, appcode, name, capability)
    named = store.versions.filter(name=version) if VERSION.fullmatch(version) else store.versions.none()
    found = named.select_related("created_by").first()
    if found is None:
        raise Http404(f"{name} has no version “{version}”.")
    found.datastore = store
    return found


def allowed_folders(appcode: Appcode) -> QuerySet[AllowedFolder]:
    """The folders of this machine in which datastores of `appcode` may lie."""
    return AllowedFolder.objects.filter(Q(appcodes=None) | Q(appcodes=appcode)).distinct()


def allowed_folder(appcode: Appcode, path: str) -> AllowedFolder | None:
    """The innermost allowed folder that contains `path`, or None."""
    inside = [folder for folder in allowed_folders(appcode) if folder.contains(path)]
    return max(inside, key=lambda folder: len(folder.path), default=None)
