from django.urls import URLPattern, URLResolver, path

from billing.prices import pages

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/prices", pages.prices, name="admin_prices"),
    path("admin/prices/<int:pk>/effect", pages.price_effect, name="price_effect"),
    path("admin/prices/<int:pk>/withdraw", pages.withdraw_price, name="withdraw_price"),
    path("admin/prices/export", pages.export_prices, name="export_prices"),
    path("admin/prices/import", pages.import_prices, name="import_prices"),
    path("admin/prices/discounts", pages.discounts, name="admin_discounts"),
    path("admin/prices/discounts/<int:pk>/end", pages.end_discount, name="end_discount"),
]
