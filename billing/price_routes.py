"""Addresses of prices, discounts and credits."""

from django.urls import URLPattern, URLResolver, path

from billing.views import prices

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/prices", prices.prices, name="admin_prices"),
    path("admin/prices/<int:pk>/effect", prices.price_effect, name="price_effect"),
    path("admin/prices/<int:pk>/withdraw", prices.withdraw_price, name="withdraw_price"),
    path("admin/prices/export", prices.export_prices, name="export_prices"),
    path("admin/prices/import", prices.import_prices, name="import_prices"),
    path("admin/prices/discounts", prices.discounts, name="admin_discounts"),
    path("admin/prices/discounts/<int:pk>/end", prices.end_discount, name="end_discount"),
    path("admin/prices/credits", prices.credits_, name="admin_credits"),
]
