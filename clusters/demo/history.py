"""Creates the history of a demonstration through the path of real usage: pod states from the plan go through
`metering.record` to segments, are posted to the ledger, and become invoices when their month closes. The rows are not
marked as generated, because the whole installation is a demonstration and every page says so
(portal/installation/demonstration.py).
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal

from billing.budgets import actions, figures
from billing.efficiency import capacity, measured, waste
from billing.ledger import posting
from billing.metering import record as metering_record
from billing.models import Outcome, Price
from billing.periods import DAY
from clusters.demo.plan import CLOUD, LINES, MORE_AFTER, PER_HOUR, POOL, TEAMS, Job, Team, begins, ends, plan
from portal.actions.appcodes import request_appcode
from portal.actions.members import set_member
from portal.manifests.appcode import AppcodeManifest
from portal.models import Appcode, OrgNode, User


def fill(now: dt.datetime, *, owner: User, viewer: User) -> int:
    """Creates the weeks before `now` in the caller's transaction and returns the number of runs. `owner` is an administrator."""
    for path, title, namespace in LINES:
        OrgNode.objects.create(path=path, title=title, namespace=namespace)
    jobs, first, last = plan(now), begins(now), ends(now)
    appcodes = {team.code: _appcode(team, owner, viewer) for team in TEAMS}
    for model, per_hour in PER_HOUR.items():
        Price.objects.create(sku=f"gpu:{model}", per_hour=per_hour, valid_from=first)
    for at, place in ((first, 0), (first + MORE_AFTER * DAY, 1)):
        capacity.record(CLOUD, {model: (counts[place], 0) for model, counts in POOL.items()}, at)
    capacity.record(CLOUD, {}, last)
    metering_record.record([state for job in jobs for state in job.states(appcodes[job.team].pk)], seen_at=now)
    measured.add([use for job in jobs for use in _uses(job)])
    Outcome.objects.bulk_create(
        Outcome(
            consumer=job.consumer, appcode=appcodes[job.team], word=job.outcome, ended_at=job.ended,
            reason="NonZeroExit" if job.outcome == "Failed" else "",
        )
        for job in jobs
    )  # fmt: skip
    posting.post(now)
    _correct(jobs, appcodes, now)
    posting.post(now)
    waste.look()
    _budgets(list(appcodes.values()), now, owner)
    return len(jobs)


def _appcode(team: Team, owner: User, viewer: User) -> Appcode:
    spec = {
        "orgNode": team.line, "name": team.code.capitalize(), "owners": [owner.username],
        "emails": [f"{team.code}@example.com"], "remark": "Its history is generated.",
    }  # fmt: skip
    manifest = AppcodeManifest.model_validate({"metadata": {"name": team.code}, "spec": spec})
    made = request_appcode(manifest, acting_user=owner)
    set_member(made, viewer.username, "viewer", acting_user=owner)
    return made


def _uses(job: Job) -> Iterator[measured.Use]:
    """GPU activity by hour: services rest at night, and some jobs barely use their GPUs."""
    chance = random.Random(job.consumer)  # noqa: S311  the same history every time
    serves, asleep = job.framework == "serving", chance.random() < 0.08
    usual = chance.uniform(0.55, 0.93)
    for pod in job.pods:
        at = pod.started if pod.gpus else pod.ended
        while at < pod.ended:
            until = min(at.replace(minute=0, second=0) + dt.timedelta(hours=1), pod.ended)
            if serves:
                busy = 0.02 if at.hour < 5 else 0.35 + 0.3 * chance.random()
            else:
                busy = 0.01 if asleep else min(0.99, max(0.06, chance.gauss(usual, 0.06)))
            # Some hours are measured only in part.
            looked = (until - at).total_seconds() * (1 if chance.random() < 0.9 else 0.5)
            yield measured.Use(job.uid(pod), at, until, looked, round(busy, 4), int(20_000 + 50_000 * usual))
            at = until


def _correct(jobs: Iterable[Job], appcodes: dict[str, Appcode], now: dt.datetime) -> None:
    """Late corrections: the true ends of some pods, after an estimated end was charged. The ledger reverses and posts again."""
    late = [job for job in jobs if any(pod.estimated for pod in job.pods)][::2]
    told = []
    for job in late:
        known = replace(
            job,
            pods=tuple(replace(pod, ended=pod.ended - dt.timedelta(minutes=9), estimated=False) for pod in job.pods),
        )
        told += [state for state in known.states(appcodes[job.team].pk) if state.phase != "Running"]
    if told:
        metering_record.record(told, seen_at=now)


def _budgets(appcodes: Sequence[Appcode], now: dt.datetime, owner: User) -> None:
    """Three budgets: on track, running out early, and used up."""
    found, _ = figures.of_appcodes([appcode.pk for appcode in appcodes], (), now)
    dearest = sorted(appcodes, key=lambda appcode: (-found[appcode.pk].spent, appcode.code))
    for n, (appcode, policy) in enumerate(zip(dearest, ("block", "stop_services", "notify"), strict=False)):
        spent, expected = found[appcode.pk].spent, found[appcode.pk].forecast
        wanted = (expected * Decimal("1.2"), spent * Decimal("1.15"), spent * Decimal("0.9"))[n]
        # Round to hundreds, as people do.
        amount = max(1, round(wanted / 100)) * Decimal(100)
        actions.add(appcode, actions.Asked(amount, policy, 30), acting_user=owner)
