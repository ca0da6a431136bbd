"""Access of users to sweeps (`portal/objects.py`) and their trials."""

from __future__ import annotations

from django.http import Http404

from clusters.sweeps.models import Sweep, Trial
from portal.objects import Objects

SWEEPS = Objects("sweep", Sweep.objects.filter(deleted_at=None).select_related("appcode", "created_by"))
sweeps_for, sweep_for = SWEEPS.visible, SWEEPS.find


def trial_for(sweep: Sweep, number: int) -> Trial:
    """The first trial (fold) of a point. Raises Http404."""
    trial = sweep.trials.filter(number=number).order_by("fold").first()
    if trial is None:
        raise Http404(f"{sweep.name} has no trial {number}.")
    return trial
