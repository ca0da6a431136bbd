"""REST of all rooms, below /api/v1/. Each room has its addresses in its routes.py."""

from django.urls import URLPattern, URLResolver

from clusters.applications import routes as applications
from clusters.benchmarks import routes as benchmarks
from clusters.catalog import routes as catalog
from clusters.cloud_admin import routes as cloud_admin
from clusters.cluster import routes as cluster
from clusters.cluster_templates import routes as cluster_templates
from clusters.comparison import routes as comparison
from clusters.environments import routes as environments
from clusters.git_tokens import routes as git_tokens
from clusters.hooks import routes as hooks
from clusters.model_registry import routes as model_registry
from clusters.pipelines import routes as pipelines
from clusters.pull_secrets import routes as pull_secrets
from clusters.results import routes as results
from clusters.schedules import routes as schedules
from clusters.services import routes as services
from clusters.sweeps import routes as sweeps

urlpatterns: list[URLPattern | URLResolver] = [
    *cluster.REST,
    *applications.REST,
    *benchmarks.REST,
    *catalog.REST,
    *cloud_admin.REST,
    *cluster_templates.REST,
    *comparison.REST,
    *environments.REST,
    *git_tokens.REST,
    *hooks.REST,
    *model_registry.REST,
    *pipelines.REST,
    *pull_secrets.REST,
    *results.REST,
    *schedules.REST,
    *services.REST,
    *sweeps.REST,
]
