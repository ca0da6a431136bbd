"""Reading clusters: the only way from a person to rows. What is not theirs raises the same Http404 as what does not exist."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet
from django.http import Http404

from clusters.models import Cluster, Run
from portal.access import VIEW, Capability, appcodes_for, require
from portal.models import Event, User


def clusters_for(user: User, capability: Capability = VIEW) -> QuerySet[Cluster]:
    """Living clusters in the appcodes where `user` has `capability`, newest first, with appcode, creator and run joined."""
    clusters = clusters_in(None)
    if user.is_administrator:
        return clusters
    return clusters.filter(appcode__in=appcodes_for(user, capability).values("pk"))


def clusters_in(appcodes: Iterable[int] | None) -> QuerySet[Cluster]:
    """The same of these appcodes, of which somebody has been found to be a member; None: of all."""
    clusters = Cluster.objects.filter(deleted_at=None).select_related("appcode", "created_by", "current_run")
    return clusters if appcodes is None else clusters.filter(appcode__in=list(appcodes))


def cluster_for(user: User, appcode: str, name: str, capability: Capability = VIEW) -> Cluster:
    """Raises Http404 (absent or not theirs) or PermissionDenied (visible, but they may not do that)."""
    cluster = clusters_for(user).filter(appcode__code=appcode, name=name).first()
    if cluster is None:
        raise Http404(f"There is no cluster “{name}” in {appcode} that you can see.")
    require(user, cluster.appcode, capability)
    return cluster


def run_for(user: User, appcode: str, name: str, number: int) -> Run:
    cluster = cluster_for(user, appcode, name)
    run = cluster.runs.filter(number=number).first()
    if run is None:
        raise Http404(f"{name} has no run {number}.")
    run.cluster = cluster
    return run


def events_of(cluster: Cluster) -> QuerySet[Event]:
    """What people did to `cluster` and what the cloud said, newest first; not what an earlier one of that name went through."""
    appcode = cluster.appcode.code
    return Event.objects.filter(appcode=appcode, object=f"cluster {cluster}", at__gte=cluster.created_at)
