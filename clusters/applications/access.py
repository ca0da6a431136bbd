"""Reading applications: the clusters among those of a person that people open."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import Http404

from clusters.access import cluster_for, clusters_for
from clusters.frameworks import APPLICATIONS
from clusters.models import Cluster
from portal.access import VIEW, Capability
from portal.models import User


def applications_in(clusters: QuerySet[Cluster]) -> QuerySet[Cluster]:
    return clusters.filter(framework__in=list(APPLICATIONS))


def applications_for(user: User, capability: Capability = VIEW) -> QuerySet[Cluster]:
    """Those of `clusters_for` that are applications."""
    return applications_in(clusters_for(user, capability))


def application_for(user: User, appcode: str, name: str, capability: Capability = VIEW) -> Cluster:
    """Raises Http404 (absent, not theirs, or no application) or PermissionDenied (visible, but they may not do that)."""
    cluster = cluster_for(user, appcode, name, capability)
    if cluster.spec["framework"] not in APPLICATIONS:
        raise Http404(f"There is no application “{name}” in {appcode} that you can see.")
    return cluster
