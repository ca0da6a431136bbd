"""Addresses of webhooks in REST: below their appcode, and for administrators those of everything."""

from django.urls import URLPattern, URLResolver, path

from portal.webhooks import api

urlpatterns: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/webhooks", api.AppcodeWebhooks.as_view()),
    path("appcodes/<slug:code>/webhooks/<slug:name>", api.OneWebhook.as_view()),
    path("appcodes/<slug:code>/webhooks/<slug:name>/rotate", api.RotateSecret.as_view()),
    path("appcodes/<slug:code>/webhooks/<slug:name>/test", api.SendTest.as_view()),
    path("appcodes/<slug:code>/webhooks/<slug:name>/deliveries", api.Deliveries.as_view()),
    path("appcodes/<slug:code>/webhooks/<slug:name>/deliveries/<uuid:uid>", api.OneDelivery.as_view()),
    path("appcodes/<slug:code>/webhooks/<slug:name>/deliveries/<uuid:uid>/again", api.DeliverAgain.as_view()),
    path("webhooks", api.AllWebhooks.as_view()),
    path("webhooks/<slug:name>", api.OneOfAll.as_view()),
    path("webhooks/<slug:name>/rotate", api.RotateOfAll.as_view()),
    path("webhooks/<slug:name>/test", api.TestOfAll.as_view()),
    path("webhooks/<slug:name>/deliveries", api.DeliveriesOfAll.as_view()),
    path("webhooks/<slug:name>/deliveries/<uuid:uid>", api.DeliveryOfAll.as_view()),
    path("webhooks/<slug:name>/deliveries/<uuid:uid>/again", api.AgainOfAll.as_view()),
]
