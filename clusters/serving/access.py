"""Reading services: the only way from a person to rows. What is not theirs raises the same Http404 as what does not exist."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import Http404

from clusters.models import Service
from portal.access import VIEW, Capability, appcode_for, appcodes_for, require
from portal.models import User


def services_for(user: User) -> QuerySet[Service]:
    """Of all their appcodes, with appcode and people joined; not those that were deleted."""
    rows = Service.objects.filter(deleted_at=None).select_related("appcode", "created_by", "acts_for")
    return rows if user.is_administrator else rows.filter(appcode__in=appcodes_for(user).order_by().values("pk"))


def services_in(user: User, appcode: str) -> QuerySet[Service]:
    """Those of one appcode. Raises Http404."""
    return services_for(user).filter(appcode=appcode_for(user, appcode))


def service_for(user: User, appcode: str, name: str, capability: Capability = VIEW) -> Service:
    """Raises Http404 (absent or not theirs) or PermissionDenied (visible, but they may not do that)."""
    found = services_for(user).filter(appcode__code=appcode, name=name).first()
    if found is None:
        raise Http404(f"There is no service “{name}” in {appcode} that you can see.")
    require(user, found.appcode, capability)
    return found
