"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path, re_path

from clusters.services import api as services_api
from clusters.services.pages import list as services
from clusters.services.pages import new as new_service
from clusters.services.pages import runtimes, service, try_out
from clusters.services.pages import tokens as service_tokens
from clusters.services.pages import verbs as service_acts
from portal.api.verbs import verb_paths

SERVICE = "services/<slug:appcode>/<slug:name>"
SERVICE_VERBS = "|".join(service_acts.ACTS)
REST_SERVICE = "appcodes/<slug:code>/services/<slug:name>"

PAGES: list[URLPattern | URLResolver] = [
    path("services", services.services, name="services"),
    path("services/rows", services.rows, name="service_rows"),
    path("services/new", new_service.new_service, name="new_service"),
    path("services/preview", new_service.preview_service, name="preview_service"),
    path(SERVICE, service.service, name="service"),
    path(f"{SERVICE}/live", service.live, name="service_live"),
    path(f"{SERVICE}/head", service.head, name="service_head"),
    path(f"{SERVICE}/minutes", service.minutes, name="service_minutes"),
    path(f"{SERVICE}/history", service.history, name="service_history"),
    path(f"{SERVICE}/manifest", service.manifest, name="service_manifest"),
    path(f"{SERVICE}/tokens", service_tokens.tokens, name="service_tokens"),
    path(f"{SERVICE}/tokens/remove", service_tokens.remove, name="remove_service_token"),
    path(f"{SERVICE}/try", try_out.try_page, name="try_service"),
    path(f"{SERVICE}/try/send", try_out.send, name="send_to_service"),
    path(f"{SERVICE}/change", new_service.change_service, name="change_service"),
    path(f"{SERVICE}/deploy", service_acts.deploy, name="deploy_service"),
    path(f"{SERVICE}/deploy/preview", service_acts.preview_deploy, name="preview_deploy"),
    re_path(rf"^services/(?P<appcode>[-\w]+)/(?P<name>[-\w]+)/(?P<verb>{SERVICE_VERBS})\Z", service_acts.act),
    path("admin/serving-runtimes", runtimes.runtimes, name="admin_runtimes"),
    path("admin/serving-runtimes/new", runtimes.runtime, name="admin_new_runtime"),
    path("admin/serving-runtimes/<slug:name>", runtimes.runtime, name="admin_runtime"),
]

REST: list[URLPattern | URLResolver] = [
    path("services", services_api.AllServices.as_view()),
    path("appcodes/<slug:code>/services", services_api.AppcodeServices.as_view()),
    path("appcodes/<slug:code>/services/preview", services_api.ServicesPreview.as_view()),
    path(REST_SERVICE, services_api.OneService.as_view()),
    *verb_paths(services_api.KIND, services_api.VERBS),
    path(f"{REST_SERVICE}/preview", services_api.ServicePreview.as_view()),
    path(f"{REST_SERVICE}/stats", services_api.ServiceStats.as_view()),
    path(f"{REST_SERVICE}/drift", services_api.ServiceDrift.as_view()),
    path(f"{REST_SERVICE}/tokens", services_api.ServiceTokens.as_view()),
    path(f"{REST_SERVICE}/tokens/<str:token>", services_api.OneServiceToken.as_view()),
]
