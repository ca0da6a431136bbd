"""REST: runs and notebooks, the one opened in the other."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.access import cluster_for
from clusters.api.applications import ApplicationDocument, WantedRuns, latest, to_manifest
from clusters.applications.notebooks import open_in_notebook
from portal.access import OPERATE
from portal.api.views import person
from portal.manifests import parse


class WantedNotebook(WantedRuns):
    """Which runs to see in which notebook."""

    application: str = Field(
        default="", max_length=63, description="A notebook of the appcode; without it one that runs and shows them."
    )
    restart: bool = Field(
        default=False, description="It may be ended and started anew, where it runs without them; else that is a 409."
    )


class OpenInNotebook(APIView):
    @extend_schema(
        operation_id="clusters_notebook",
        summary="Open the output of runs in a notebook",
        description="Answers the notebook that shows these runs, read-only at /elearn/runs/CLUSTER/NUMBER and in the folder "
        "elearn-runs of its home: one that does already, or the one that is named, which is started with them. Without `runs` it "
        "is the cluster's latest.",
        request=WantedNotebook,
        responses=ApplicationDocument,
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        cluster = cluster_for(person(request), code, name, OPERATE)
        wanted = parse(WantedNotebook, request.data)
        made = open_in_notebook(
            wanted.runs or latest(cluster),
            wanted.application,
            restart=wanted.restart,
            appcode=cluster.appcode,
            acting_user=person(request),
        )
        made.refresh_from_db()
        return Response(to_manifest(made))
