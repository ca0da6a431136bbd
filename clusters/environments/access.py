"""Read access of users to saved environments. Environments of other appcodes look like missing ones."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, QuerySet
from django.http import Http404

from clusters.environments.models import Environment
from portal.access import VIEW, Capability, appcode_for, appcodes_for
from portal.models import User


def environments_for(user: User, appcode: str, capability: Capability = VIEW) -> QuerySet[Environment]:
    """Environments of one appcode, newest first. Raises Http404 or PermissionDenied."""
    found = appcode_for(user, appcode, capability)
    return Environment.objects.filter(appcode=found, deleted_at=None).select_related("appcode", "created_by")


def newest_environments_for(user: User) -> QuerySet[Environment]:
    """The newest version of each name, of all appcodes of the user."""
    rows = Environment.objects.filter(deleted_at=None)
    newer = rows.filter(appcode=OuterRef("appcode"), name=OuterRef("name"), version__gt=OuterRef("version"))
    found = rows.filter(~Exists(newer))
    return found if user.is_administrator else found.filter(appcode__in=appcodes_for(user).order_by().values("pk"))


def environment_for(
    user: User, appcode: str, name: str, version: int | None = None, capability: Capability = VIEW
) -> Environment:
    """One version, by default the newest. Raises Http404 or PermissionDenied."""
    rows = environments_for(user, appcode, capability).filter(name=name)
    found = (rows if version is None else rows.filter(version=version)).order_by("-version").first()
    if found is None:
        what = f"{name}:{version}" if version else name
        raise Http404(f"There is no environment “{what}” in {appcode} that you can see.")
    return found
