"""Addresses of dashboards."""

from django.urls import URLPattern, URLResolver, path

from billing.views import dashboard

urlpatterns: list[URLPattern | URLResolver] = [
    path("dashboard", dashboard.overview, name="dashboard"),
    path("dashboard/utilisation", dashboard.utilisation, name="dashboard_utilisation"),
    path("dashboard/waste", dashboard.wasted, name="dashboard_waste"),
    path("dashboard/reconciliation", dashboard.reconciled, name="dashboard_reconciliation"),
    path("dashboard/examples/remove", dashboard.remove_examples, name="remove_examples"),
    path("billing/<slug:code>/<slug:name>/<slug:number>/<int:pk>", dashboard.segment, name="billing_segment"),
]
