"""REST: runs opened in notebooks, and notebooks run as clusters."""

from __future__ import annotations

from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.access import application_for, cluster_for
from clusters.applications.api.applications import ApplicationDocument, WantedRuns, latest, to_manifest
from clusters.applications.notebook_runs import NotebookRunManifest, run_notebook
from clusters.applications.notebooks import open_in_notebook
from clusters.clouds.drivers.base import CloudError
from clusters.cluster.api.documents import ClusterDocument
from clusters.cluster.api.documents import to_manifest as cluster_manifest
from portal.access import OPERATE
from portal.api.operations import Document, operation
from portal.api.problems import Unavailable
from portal.api.views import person
from portal.manifests import parse


class WantedNotebook(WantedRuns):
    """The runs to show, and the notebook to show them in."""

    application: str = Field(
        default="", max_length=63, description="A notebook of the appcode; without it one that runs and shows them."
    )
    restart: bool = Field(
        default=False, description="It may be ended and started anew, where it runs without them; else that is a 409."
    )


class OpenInNotebook(APIView):
    @operation("clusters_notebook", ApplicationDocument, request=WantedNotebook)
    def post(self, request: Request, code: str, name: str) -> Document:
        """Open the output of runs in a notebook

        Answers the notebook that shows these runs, read-only at /elearn/runs/CLUSTER/NUMBER and in the folder
        elearn-runs of its home: one that does already, or the one that is named, which is started with them. Without
        `runs` it is the cluster's latest."""
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
        return to_manifest(made)


class RunNotebook(APIView):
    @operation("applications_run", {201: ClusterDocument}, request=NotebookRunManifest)
    def post(self, request: Request, code: str, name: str) -> Response:
        """Run a notebook as a cluster

        Its text is read in the running application, without its outputs, and run from its first cell to its last; what
        is not said is as in the application. The notebook with its outputs is kept in the output datastore, up to a
        cell that failed. 409 while the application does not run."""
        application = application_for(person(request), code, name, OPERATE)
        manifest = parse(NotebookRunManifest, request.data, appcode=code)
        try:
            made = run_notebook(application, manifest, acting_user=person(request))
        except CloudError as error:
            raise Unavailable(str(error)) from error
        address = request.build_absolute_uri(f"/api/v1/appcodes/{code}/clusters/{made.name}")
        return Response(cluster_manifest(made), status=status.HTTP_201_CREATED, headers={"Location": address})
