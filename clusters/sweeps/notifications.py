"""Mails the user a sweep acts for when it ends, once for all trials. For a sweep that is a stage, its pipeline sends the mail."""

from __future__ import annotations

from django.urls import reverse

from clusters.runs.status.notifications import Whole, tell_whole
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
    code = sweep.appcode.code
    whole = Whole(
        key=f"sweep {sweep.pk} {sweep.phase} {at.isoformat()}",
        appcode_id=sweep.appcode_id,
        name=str(sweep),
        url=reverse("sweep", args=[code, sweep.name]),
        phase=sweep.phase,
        sentence=sentence,
        gpu_seconds=sums.gpu_seconds,
        cost=sums.cost,
    )
    tell_whole(whole, user)
