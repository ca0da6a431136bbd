"""Who a sweep acts for is told of its end, by one mail for all of its trials; of one that is a stage, its pipeline tells."""

from __future__ import annotations

from django.urls import reverse

from clusters.models import Sweep
from clusters.runs.telling import Whole, tell_whole
from clusters.sweeps.sums import sums_of


def tell_end(sweep: Sweep) -> None:
    """In the transaction that ends it, after its message. Seven queries at most, whatever its trials are."""
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
