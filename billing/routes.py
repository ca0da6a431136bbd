from django.urls import URLPattern, URLResolver, path

from billing import dashboard_routes, invoice_routes, price_routes
from billing.views import usage

urlpatterns: list[URLPattern | URLResolver] = [
    path("billing", usage.billing, name="billing"),
    path("billing/<slug:code>", usage.appcode, name="billing_appcode"),
    path("billing/<slug:code>/<slug:name>", usage.cluster, name="billing_cluster"),
    path("billing/<slug:code>/<slug:name>/<slug:number>", usage.run, name="billing_run"),
    path("admin/usage", usage.admin_usage, name="admin_usage"),
    *dashboard_routes.urlpatterns,
    *price_routes.urlpatterns,
    *invoice_routes.urlpatterns,
]
