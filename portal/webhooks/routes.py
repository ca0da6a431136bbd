"""Routes of webhooks: of appcodes, the user's own below the profile, and global ones for administrators."""

from django.urls import URLPattern, URLResolver, path

from portal.webhooks import views

urlpatterns: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/webhooks", views.webhook_list, name="webhooks"),
    path("appcodes/<slug:code>/webhooks/new", views.new_webhook, name="new_webhook"),
    path("admin/webhooks", views.all_webhooks, name="admin_webhooks"),
    path("admin/webhooks/new", views.new_webhook, name="new_admin_webhook"),
]
_ONE = (
    ("appcodes/<slug:code>/webhooks/<slug:name>", ""),
    ("admin/webhooks/<slug:name>", "admin_"),
    ("profile/webhook", "own_"),
)
for _one, _prefix in _ONE:
    urlpatterns += [
        path(_one, views.one_webhook, name=f"{_prefix}webhook"),
        path(f"{_one}/test", views.send_test, name=f"test_{_prefix}webhook"),
        path(f"{_one}/rotate", views.rotate, name=f"rotate_{_prefix}webhook"),
        path(f"{_one}/delete", views.delete_webhook, name=f"delete_{_prefix}webhook"),
        path(f"{_one}/deliveries/<uuid:uid>", views.delivery, name=f"{_prefix}delivery"),
        path(f"{_one}/deliveries/<uuid:uid>/again", views.again, name=f"again_{_prefix}delivery"),
    ]
# The user's own webhook is changed on the profile, with the other notifications.
urlpatterns += [
    path(f"{_one}/change", views.change_webhook, name=f"change_{_prefix}webhook") for _one, _prefix in _ONE[:2]
]
