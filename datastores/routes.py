"""Routes of datastores, their files, and the allowed folders."""

from django.urls import URLPattern, URLResolver, path

from datastores.files import pages as files
from datastores.files import rules_pages as rules
from datastores.pages import folders, views
from datastores.storage import pages as storage

ONE = "datastores/<slug:appcode>/<slug:name>"

urlpatterns: list[URLPattern | URLResolver] = [
    path("datastores", views.datastores, name="datastores"),
    path("datastores/new", views.new_datastore, name="new_datastore"),
    path("datastores/cost", views.volume_cost, name="volume_cost"),
    path("datastores/parquet.js", files.parquet_worker, name="datastore_parquet_worker"),
    path(ONE, files.browse, name="datastore"),
    path(f"{ONE}/change", views.change_datastore, name="change_datastore"),
    path(f"{ONE}/test", views.test_datastore, name="test_datastore"),
    path(f"{ONE}/sharing", views.share_datastore, name="share_datastore"),
    path(f"{ONE}/delete", views.delete_datastore, name="delete_datastore"),
    path(f"{ONE}/file", files.file, name="datastore_file"),
    # The gateway streams bodies to this path: see portal/up/programs.py.
    path("uploads/<slug:appcode>/<slug:name>", files.upload, name="datastore_upload"),
    path(f"{ONE}/uploads/<int:upload>/drop", files.drop_upload, name="datastore_upload_drop"),
    path(f"{ONE}/freeze", files.freeze, name="datastore_freeze"),
    path(f"{ONE}/versions/<str:version>/remove", files.thaw, name="datastore_thaw"),
    path(f"{ONE}/chosen", files.chosen, name="datastore_chosen"),
    path(f"{ONE}/sizes", files.sizes, name="datastore_sizes"),
    path(f"{ONE}/preview", files.preview, name="datastore_preview"),
    path(f"{ONE}/rename", files.rename, name="datastore_rename"),
    path(f"{ONE}/trash", files.trash_page, name="datastore_trash"),
    path(f"{ONE}/trash/restore", files.restore, name="datastore_restore"),
    path(f"{ONE}/trash/empty", files.empty_trash, name="datastore_empty_trash"),
    path(f"{ONE}/rules", rules.rules_page, name="datastore_rules"),
    path(f"{ONE}/rules/<int:rule>/remove", rules.forget, name="datastore_forget_rule"),
    path(f"{ONE}/remove", files.remove, name="datastore_remove"),
    path("storage/<slug:appcode>", storage.storage, name="storage"),
    path("storage/<slug:appcode>/keys", storage.keys, name="storage_keys"),
    path("storage/<slug:appcode>/limit", storage.limit, name="storage_limit"),
    path("storage/<slug:appcode>/stop", storage.stop, name="storage_stop"),
    path("admin/folders", folders.folders, name="admin_folders"),
    path("admin/folders/new", folders.edit_folder, name="new_folder"),
    path("admin/folders/<int:pk>", folders.edit_folder, name="admin_folder"),
    path("admin/folders/<int:pk>/delete", folders.delete_folder, name="delete_folder"),
]
