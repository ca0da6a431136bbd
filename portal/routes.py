from django.urls import URLPattern, URLResolver, path

from portal import views

urlpatterns: list[URLPattern | URLResolver] = [
    path("frame/gpus", views.gpus, name="frame_gpus"),
    path("frame/appcodes", views.appcode_menu, name="frame_appcodes"),
    path("frame/appcode", views.switch_appcode, name="switch_appcode"),
    path("frame/theme", views.set_theme, name="set_theme"),
    path("search", views.search, name="search"),
]
