from django.urls import URLPattern, URLResolver, path
from django.views.generic import RedirectView

from billing.accounts import routes as accounts_routes
from billing.budgets import routes
from billing.dashboards import routes as dashboards_routes
from billing.dashboards import usage
from billing.invoices import routes as invoices_routes
from billing.prices import routes as prices_routes

urlpatterns: list[URLPattern | URLResolver] = [
    path("billing", usage.billing, name="billing"),
    path("billing/<slug:code>", usage.appcode, name="billing_appcode"),
    path("billing/<slug:code>/<slug:name>", usage.cluster, name="billing_cluster"),
    path("billing/<slug:code>/<slug:name>/<slug:number>", usage.run, name="billing_run"),
    # The dashboard's former address.
    path("admin/usage", RedirectView.as_view(pattern_name="dashboard")),
    *dashboards_routes.urlpatterns,
    *prices_routes.urlpatterns,
    *accounts_routes.urlpatterns,
    *invoices_routes.urlpatterns,
    *routes.urlpatterns,
]
