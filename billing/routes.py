from django.urls import URLPattern, URLResolver, path

from billing import views

urlpatterns: list[URLPattern | URLResolver] = [
    path("billing", views.billing, name="billing"),
    path("billing/<slug:code>", views.appcode, name="billing_appcode"),
    path("billing/<slug:code>/<slug:name>", views.cluster, name="billing_cluster"),
    path("billing/<slug:code>/<slug:name>/<slug:number>", views.run, name="billing_run"),
    path("admin/usage", views.admin_usage, name="admin_usage"),
    path("admin/prices", views.prices, name="admin_prices"),
    path("admin/prices/<int:pk>/withdraw", views.withdraw_price, name="withdraw_price"),
]
