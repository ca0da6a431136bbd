"""A trial of a sweep in the New Cluster form: what it trained, as a cluster of its own."""

from __future__ import annotations

from clusters.cluster.form.choices import Offer
from clusters.cluster.form.data import fields_of
from clusters.cluster.form.new import free_cluster_name, run_number
from clusters.cluster.form.sources import Source
from clusters.sweeps.access import sweep_for, trial_for
from clusters.sweeps.actions import cluster_of
from clusters.sweeps.manifest import name_again
from portal.models import User


def _fields(user: User, value: str, offer: Offer) -> dict[str, str]:
    appcode, name, number = (*value.split("/"), "", "")[:3]
    trial = trial_for(sweep_for(user, appcode, name), run_number(number))
    return fields_of(cluster_of(trial, free_cluster_name(user, name_again(name, trial.number))))


def _appcode(value: str, selected: str) -> str:
    return value.partition("/")[0]


SOURCE = Source("trial", _fields, _appcode)
