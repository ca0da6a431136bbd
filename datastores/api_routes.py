from django.urls import URLPattern, URLResolver, path

from datastores import api
from datastores.files import api as files
from datastores.files import rules_api, trash_api, uploads_api, versions_api
from datastores.storage import api as storage

ONE = "appcodes/<slug:code>/datastores/<slug:name>"

urlpatterns: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/datastores", api.AppcodeDatastores.as_view()),
    path(ONE, api.OneDatastore.as_view()),
    path(f"{ONE}/test", api.TestDatastore.as_view()),
    path(f"{ONE}/sharing", api.Sharing.as_view()),
    path(f"{ONE}/files", files.Files.as_view()),
    path(f"{ONE}/uploads", uploads_api.Uploads.as_view()),
    path(f"{ONE}/uploads/<int:upload>", uploads_api.OneUpload.as_view()),
    path(f"{ONE}/uploads/<int:upload>/urls", uploads_api.UploadUrls.as_view()),
    path(f"{ONE}/uploads/<int:upload>/finish", uploads_api.FinishUpload.as_view()),
    path(f"{ONE}/trash", trash_api.Trash.as_view()),
    path(f"{ONE}/trash/<int:removal>", trash_api.OneRemoval.as_view()),
    path(f"{ONE}/trash/<int:removal>/restore", trash_api.Restore.as_view()),
    path(f"{ONE}/rules", rules_api.Rules.as_view()),
    path(f"{ONE}/rules/preview", rules_api.PreviewRule.as_view()),
    path(f"{ONE}/rules/<int:rule>", rules_api.OneRule.as_view()),
    path(f"{ONE}/rules/<int:rule>/preview", rules_api.RuleNow.as_view()),
    path(f"{ONE}/versions", versions_api.Versions.as_view()),
    path(f"{ONE}/versions/<str:version>", versions_api.OneVersion.as_view()),
    path(f"{ONE}/sizes", files.Sizes.as_view()),
    path(f"{ONE}/archive", files.Archive.as_view()),
    path(f"{ONE}/files/<path:path>", files.OneFile.as_view()),
    path("appcodes/<slug:code>/storage", storage.AppcodeStorage.as_view()),
    path("appcodes/<slug:code>/storage/keys", storage.StorageKeys.as_view()),
]
