"""Reading sweeps: the only way from a person to their rows. What is not theirs raises the same Http404 as what does not exist."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import Http404

from clusters.models import Sweep, Trial
from portal.access import VIEW, Capability, appcode_for, appcodes_for, require
from portal.models import User


def sweeps_for(user: User) -> QuerySet[Sweep]:
    """Of all their appcodes, with appcode and creator joined."""
    sweeps = Sweep.objects.filter(deleted_at=None).select_related("appcode", "created_by")
    return sweeps if user.is_administrator else sweeps.filter(appcode__in=appcodes_for(user).order_by().values("pk"))


def sweeps_in(user: User, appcode: str) -> QuerySet[Sweep]:
    """Those of one appcode. Raises Http404."""
    return sweeps_for(user).filter(appcode=appcode_for(user, appcode))


def sweep_for(user: User, appcode: str, name: str, capability: Capability = VIEW) -> Sweep:
    """Raises Http404 (absent or not theirs) or PermissionDenied (visible, but they may not do that)."""
    sweep = sweeps_for(user).filter(appcode__code=appcode, name=name).first()
    if sweep is None:
        raise Http404(f"There is no sweep “{name}” in {appcode} that you can see.")
    require(user, sweep.appcode, capability)
    return sweep


def trial_for(sweep: Sweep, number: int) -> Trial:
    """The first training of a point. Raises Http404."""
    trial = sweep.trials.filter(number=number).order_by("fold").first()
    if trial is None:
        raise Http404(f"{sweep.name} has no trial {number}.")
    return trial
