from django.urls import URLPattern, URLResolver, path

from billing.dashboards import overview, reconciliation_page, segment, utilisation, waste

urlpatterns: list[URLPattern | URLResolver] = [
    path("dashboard", overview.overview, name="dashboard"),
    path("dashboard/utilisation", utilisation.utilisation, name="dashboard_utilisation"),
    path("dashboard/waste", waste.wasted, name="dashboard_waste"),
    path("dashboard/reconciliation", reconciliation_page.reconciled, name="dashboard_reconciliation"),
    path("billing/<slug:code>/<slug:name>/<slug:number>/<int:pk>", segment.segment, name="billing_segment"),
]
