"""Addresses of webhooks: below their appcode, and for administrators those of everything."""

from django.urls import URLPattern, URLResolver, path

from portal.webhooks import views

urlpatterns: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/webhooks", views.webhook_list, name="webhooks"),
    path("appcodes/<slug:code>/webhooks/new", views.new_webhook, name="new_webhook"),
    path("admin/webhooks", views.all_webhooks, name="admin_webhooks"),
    path("admin/webhooks/new", views.new_webhook, name="new_admin_webhook"),
]
for _below, _prefix in (("appcodes/<slug:code>/webhooks", ""), ("admin/webhooks", "admin_")):
    urlpatterns += [
        path(f"{_below}/<slug:name>", views.one_webhook, name=f"{_prefix}webhook"),
        path(f"{_below}/<slug:name>/change", views.change_webhook, name=f"change_{_prefix}webhook"),
        path(f"{_below}/<slug:name>/test", views.send_test, name=f"test_{_prefix}webhook"),
        path(f"{_below}/<slug:name>/rotate", views.rotate, name=f"rotate_{_prefix}webhook"),
        path(f"{_below}/<slug:name>/delete", views.delete_webhook, name=f"delete_{_prefix}webhook"),
        path(f"{_below}/<slug:name>/deliveries/<uuid:uid>", views.delivery, name=f"{_prefix}delivery"),
        path(f"{_below}/<slug:name>/deliveries/<uuid:uid>/again", views.again, name=f"again_{_prefix}delivery"),
    ]
