"""REST routes of webhooks: of appcodes, global ones for administrators, and the user's own."""

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
    path("me/webhook", api.OneOfMine.as_view()),
    path("me/webhook/rotate", api.RotateOfMine.as_view()),
    path("me/webhook/test", api.TestOfMine.as_view()),
    path("me/webhook/deliveries", api.DeliveriesOfMine.as_view()),
    path("me/webhook/deliveries/<uuid:uid>", api.DeliveryOfMine.as_view()),
    path("me/webhook/deliveries/<uuid:uid>/again", api.AgainOfMine.as_view()),
]
