"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from clusters.applications.api import applications as applications_api
from clusters.applications.api import notebooks as notebooks_api
from clusters.applications.pages import applications, notebook_run, notebooks, tensorboard, try_model
from clusters.cluster.api.verbs import VERBS as REST_VERBS
from portal.api.verbs import verb_paths

APPLICATION = "applications/<slug:appcode>/<slug:name>"
ONE = "clusters/<slug:appcode>/<slug:name>"
REST_ONE = "appcodes/<slug:code>/clusters/<slug:name>"
REST_APPLICATION = "appcodes/<slug:code>/applications/<slug:name>"

PAGES: list[URLPattern | URLResolver] = [
    path("applications", applications.applications, name="applications"),
    path("applications/rows", applications.rows, name="application_rows"),
    path("applications/notebook", notebooks.my_notebook, name="my_notebook"),
    path("applications/new", applications.new_application, name="new_application"),
    path("applications/preview", applications.preview_step, name="preview_application"),
    path(APPLICATION, applications.application, name="application"),
    path(f"{APPLICATION}/boxes", applications.boxes),
    path(f"{APPLICATION}/billing", applications.billing),
    path(f"{APPLICATION}/ask", try_model.ask_page, name="ask_model"),
    path(f"{APPLICATION}/ask/send", try_model.send, name="send_to_model"),
    path(f"{APPLICATION}/token", applications.token, name="application_token"),
    path(f"{APPLICATION}/change", applications.change_application, name="change_application"),
    path(f"{APPLICATION}/run", notebook_run.run, name="run_notebook"),
    path(f"{ONE}/tensorboard", tensorboard.tensorboard, name="cluster_tensorboard"),
    path(f"{ONE}/notebook", notebooks.open_run, name="cluster_notebook"),
]

REST: list[URLPattern | URLResolver] = [
    path(f"{REST_ONE}/tensorboard", applications_api.TensorBoard.as_view()),
    path(f"{REST_ONE}/notebook", notebooks_api.OpenInNotebook.as_view()),
    path("applications", applications_api.AllApplications.as_view()),
    path("appcodes/<slug:code>/applications", applications_api.AppcodeApplications.as_view()),
    path(REST_APPLICATION, applications_api.OneApplication.as_view()),
    *verb_paths(applications_api.APPLICATION, REST_VERBS),
    path(f"{REST_APPLICATION}/access", applications_api.Access.as_view()),
    path(f"{REST_APPLICATION}/access/refresh", applications_api.RefreshAccess.as_view()),
    path(f"{REST_APPLICATION}/access/stop", applications_api.StopAccess.as_view()),
    path(f"{REST_APPLICATION}/run", notebooks_api.RunNotebook.as_view()),
]
