from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from billing.accounts import pages

urlpatterns: list[URLPattern | URLResolver] = [path("admin/prices/credits", pages.credits_, name="admin_credits")]
