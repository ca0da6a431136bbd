from django.urls import URLPattern, URLResolver, path

from datastores import api, files_api

ONE = "appcodes/<slug:code>/datastores/<slug:name>"

urlpatterns: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/datastores", api.AppcodeDatastores.as_view()),
    path(ONE, api.OneDatastore.as_view()),
    path(f"{ONE}/test", api.TestDatastore.as_view()),
    path(f"{ONE}/files", files_api.Files.as_view()),
    path(f"{ONE}/archive", files_api.Archive.as_view()),
    path(f"{ONE}/files/<path:path>", files_api.OneFile.as_view()),
]
