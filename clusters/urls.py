"""Pages of all rooms. Each room has its addresses in its routes.py."""

from django.urls import URLPattern, URLResolver

from clusters.applications import routes as applications
from clusters.benchmarks import routes as benchmarks
from clusters.catalog import routes as catalog
from clusters.cloud_admin import routes as cloud_admin
from clusters.cluster import routes as cluster
from clusters.cluster_templates import routes as cluster_templates
from clusters.comparison import routes as comparison
from clusters.environments import routes as environments
from clusters.gateway import routes as gateway
from clusters.git_tokens import routes as git_tokens
from clusters.home import routes as home
from clusters.hooks import routes as hooks
from clusters.model_registry import routes as model_registry
from clusters.pipelines import routes as pipelines
from clusters.pull_secrets import routes as pull_secrets
from clusters.results import routes as results
from clusters.schedules import routes as schedules
from clusters.services import routes as services
from clusters.sweeps import routes as sweeps
from clusters.tracking import routes as tracking

urlpatterns: list[URLPattern | URLResolver] = [
    *home.PAGES,
    *cluster.PAGES,
    *applications.PAGES,
    *benchmarks.PAGES,
    *catalog.PAGES,
    *cloud_admin.PAGES,
    *cluster_templates.PAGES,
    *comparison.PAGES,
    *environments.PAGES,
    *gateway.PAGES,
    *git_tokens.PAGES,
    *hooks.PAGES,
    *model_registry.PAGES,
    *pipelines.PAGES,
    *pull_secrets.PAGES,
    *results.PAGES,
    *schedules.PAGES,
    *services.PAGES,
    *sweeps.PAGES,
    *tracking.PAGES,
]
