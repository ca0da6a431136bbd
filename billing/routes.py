from django.urls import URLPattern, URLResolver, path
from django.views.generic import RedirectView

from billing import budget_routes, dashboard_routes, invoice_routes, price_routes
from billing.views import usage

urlpatterns: list[URLPattern | URLResolver] = [
    path("billing", usage.billing, name="billing"),
    path("billing/<slug:code>", usage.appcode, name="billing_appcode"),
    path("billing/<slug:code>/<slug:name>", usage.cluster, name="billing_cluster"),
    path("billing/<slug:code>/<slug:name>/<slug:number>", usage.run, name="billing_run"),
    # Where it was before it became the dashboard.
    path("admin/usage", RedirectView.as_view(pattern_name="dashboard")),
    *dashboard_routes.urlpatterns,
    *price_routes.urlpatterns,
    *invoice_routes.urlpatterns,
    *budget_routes.urlpatterns,
]
