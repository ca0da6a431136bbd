"""What a waiting run could ask for instead, as *Change* makes it: it is ended, and the changed one waits behind all others."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.exceptions import PermissionDenied

from clusters.cluster.actions import gives_way
from clusters.manifest.cluster import ClusterManifest
from clusters.runs.models import Cluster
from clusters.runs.queries.offers import Offered
from clusters.runs.queries.preview import preview
from portal.errors import Invalid
from portal.models import User


def offers_of(cluster: Cluster, user: User) -> Sequence[Offered]:
    """Those with which it starts now; of a run that can never start, also those that wait. None for a run that does not wait."""
    run = cluster.current_run
    if run is None or not gives_way(run) or cluster.part_of:
        return ()
    metadata = {"name": cluster.name, "appcode": cluster.appcode.code}
    manifest = ClusterManifest.stored({"kind": "cluster", "metadata": metadata, "spec": cluster.spec})
    try:
        found = preview(manifest, acting_user=user, instead_of=cluster, with_offers=True)
    except (Invalid, PermissionDenied):
        return ()
    return [each for each in found.offers if each.starts or found.fits == "never"]
