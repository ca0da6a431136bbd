"""MLflow's own addresses, outside of the portal's REST."""

from django.urls import path

from clusters.tracking import api

PAGES = [
    path("api/2.0/mlflow/<path:name>", api.call),
    path("api/2.0/mlflow-artifacts/artifacts", api.artifacts),
    path("api/2.0/mlflow-artifacts/artifacts/<path:path>", api.artifacts),
]
