"""Tells the user a sweep acts for of its end, once for all trials. For a sweep that is a stage, its pipeline does."""

from __future__ import annotations

from django.urls import reverse

from clusters.runs.status.notifications import Whole, tell_whole, told_whole
from clusters.sweeps.access import sweeps_for
from clusters.sweeps.models import Sweep
from clusters.sweeps.totals import sums_of


def tell_end(sweep: Sweep) -> None:
    """Called in the transaction that ends the sweep, after its message is set. At most seven queries for any number of trials."""
    user, at = sweep.acts_for, sweep.finished_at
    if user is None or at is None or sweep.phase.lower() not in user.mail_phases or sweep.stages.exists():
        return
    sums, sentence = sums_of([sweep.pk], at)[sweep.pk], sweep.message
    if parameters := (sweep.best or {}).get("parameters"):
        sentence += "\n" + ", ".join(f"{name} = {value}" for name, value in parameters.items())
    whole = Whole(
        key=f"sweep {sweep.pk} {sweep.phase} {at.isoformat()}",
        appcode_id=sweep.appcode_id,
        name=str(sweep),
        url=_url(sweep),
        phase=sweep.phase,
        sentence=sentence,
        gpu_seconds=sums.gpu_seconds,
        cost=sums.cost,
    )
    tell_whole(whole, user)


def _url(sweep: Sweep) -> str:
    return reverse("sweep", args=[sweep.appcode.code, sweep.name])


TOLD = told_whole("sweep", lambda user: sweeps_for(user).filter(acts_for=user, stages=None), _url)
