"""Read access to clusters: every query for a user starts here. Raises the same Http404 for absent and forbidden rows."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet
from django.http import Http404

from clusters.frameworks import APPLICATIONS
from clusters.runs.models import Cluster, Run
from portal.access import VIEW, Capability
from portal.models import Event, User
from portal.objects import Objects

CLUSTERS = Objects(
    "cluster", Cluster.objects.filter(deleted_at=None).select_related("appcode", "created_by", "current_run")
)
clusters_for, cluster_for = CLUSTERS.visible, CLUSTERS.find


def clusters_in(appcodes: Iterable[int] | None) -> QuerySet[Cluster]:
    """The live clusters of these appcodes (None: all appcodes). The caller has checked the user's membership."""
    return CLUSTERS.rows.all() if appcodes is None else CLUSTERS.rows.filter(appcode__in=list(appcodes))


def run_for(user: User, appcode: str, name: str, number: int) -> Run:
    cluster = cluster_for(user, appcode, name)
    run = cluster.runs.filter(number=number).first()
    if run is None:
        raise Http404(f"{name} has no run {number}.")
    run.cluster = cluster
    return run


def events_of(cluster: Cluster) -> QuerySet[Event]:
    """User actions and cloud events on `cluster`, newest first. Excludes events of an earlier cluster with the same name."""
    appcode = cluster.appcode.code
    return Event.objects.filter(appcode=appcode, object=f"cluster {cluster}", at__gte=cluster.created_at)


def applications_in(clusters: QuerySet[Cluster]) -> QuerySet[Cluster]:
    return clusters.filter(framework__in=list(APPLICATIONS))


def applications_for(user: User) -> QuerySet[Cluster]:
    """The applications among `clusters_for`."""
    return applications_in(clusters_for(user))


def application_for(user: User, appcode: str, name: str, capability: Capability = VIEW) -> Cluster:
    """Raises Http404 (missing, not theirs, or no application) or PermissionDenied (visible, but not allowed)."""
    cluster = cluster_for(user, appcode, name, capability)
    if cluster.spec["framework"] not in APPLICATIONS:
        raise Http404(f"There is no application “{name}” in {appcode} that you can see.")
    return cluster
