from django.urls import URLPattern, URLResolver, path

from billing import api

urlpatterns: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/usage", api.AppcodeUsage.as_view()),
]
