"""Access to endpoints: a Service and an Ingress for each, and the readiness of a pod. Pure.

In each pod with an endpoint a sidecar is the only way in (../../entrance.py): programs listen on its loopback, and connections
without the proof of the cluster, from another pod or the node itself, are refused.

The Ingress routes to tasks that are ready by the program's own health path; a task that is to end leaves it before its program
gets the signal. Every gateway asks the portal to authorize each request and replaces the client's headers with the portal's
(clusters/gateway/middleware.py):

- Traefik returns the portal's answers to the client unchanged. Its forward-auth is a Middleware that administrators create once,
  MIDDLEWARE (docker/kubernetes/traefik).
- NGINX understands only yes and no, so it redirects refused clients to an address of the same origin that the portal answers: by
  a second Ingress for /.portal/ and a Service that is the portal's name in the namespace of the run.
"""

from __future__ import annotations

from itertools import count
from typing import Any
from urllib.parse import SplitResult, urlsplit

from clusters.clouds.drivers import entrance
from clusters.clouds.drivers.base import Endpoint, Plan, RolePlan, RunRef, literal
from clusters.clouds.drivers.kubernetes.render import names, storage
from clusters.clouds.drivers.kubernetes.settings import Settings

Manifest = dict[str, Any]

# Each endpoint has its own name, so all use the default port.
HTTP = 80
# The sidecar that admits requests, and its CPU: about 1,500 small requests a second.
ENTRANCE, ENTRANCE_CPU = "entrance", "250m"
FIRST_PORT = 3143
# Seconds between the start of a pod's termination, when the gateway stops routing to it, and SIGTERM for its program.
DRAIN_SECONDS = 3
# Seconds for a probe, and failures before a ready pod leaves the route: a program may be busy for a while. Probes run every
# second.
PROBE_SECONDS, PROBE_FAILURES = 5, 15
TRAEFIK, NGINX = "traefik.ingress.kubernetes.io", "nginx.ingress.kubernetes.io"
MIDDLEWARE = "gpu-cloud-applications@kubernetescrd"
# One of these annotations is required: without it a gateway would admit everybody.
ASKS = (f"{TRAEFIK}/router.middlewares", f"{NGINX}/auth-url")
# Suffix of the name of an Ingress that only routes to the portal.
TO_PORTAL = ".portal"
# Request headers that the portal's answer replaces or removes.
REPLACED = "Cookie,Authorization,X-Portal-User,X-Portal-Gateway"
# Notebooks are silent for long and send large bodies.
_PATIENT = {"proxy-read-timeout": "3600", "proxy-send-timeout": "3600"}
_STREAMED = {"proxy-body-size": "0", "proxy-buffering": "off", "proxy-request-buffering": "off"}


def manifests(plan: Plan, settings: Settings) -> list[Manifest]:
    """Returns the objects of all endpoints, without the labels and owner that every object of a run gets."""
    made: list[Manifest] = []
    for role in plan.roles:
        for each in role.endpoints:
            made.append(_service(plan.run, role, each, settings))
            if settings.serves and each.origin:
                made += _ingresses(plan.run, role, each, settings)
    if settings.gateway == "nginx" and any(each["kind"] == "Ingress" for each in made):
        made.append(_portal(plan.run, settings))
    return made


def ports(role: RolePlan) -> dict[str, int]:
    """Returns the pod's port of the entrance for each endpoint, distinct from all programs' ports."""
    taken = {each.port for each in role.endpoints} | {names.PORT, storage.STREAM_PORT}
    free = (each for each in count(FIRST_PORT) if each not in taken)
    return {each.name: next(free) for each in role.endpoints}


def entrance_container(plan: Plan, role: RolePlan, settings: Settings) -> list[Manifest]:
    """Returns the entrance as a sidecar, which starts before the program and ends after it; none without endpoints."""
    if not role.endpoints:
        return []
    made, found = storage.container(ENTRANCE, settings), ports(role)
    for held in made["resources"].values():
        held["cpu"] = ENTRANCE_CPU
    led = [f"{found[each.name]}:{each.port}" for each in role.endpoints]
    proof = {"secretKeyRef": {"name": names.secret_name(plan.run), "key": storage.PROOF}}
    # A pod's readiness is that of its first endpoint.
    return [
        {
            **made,
            "args": [ENTRANCE, literal(role.endpoints[0].health), *led],
            "env": [{"name": "ENTRANCE_PROOF", "valueFrom": proof}],
            "ports": [
                {"name": each.name, "containerPort": found[each.name], "protocol": "TCP"} for each in role.endpoints
            ],
            "restartPolicy": "Always",
            "startupProbe": {
                "tcpSocket": {"port": found[role.endpoints[0].name]}, "periodSeconds": 1, "failureThreshold": 60,
            },
        }
    ]  # fmt: skip


def of_container(role: RolePlan) -> Manifest:
    """Returns the additional fields of a task's container with endpoints."""
    if not role.endpoints:
        return {}
    # Readiness is per container: use the first endpoint. The kubelet probes the entrance, which probes the program.
    first = role.endpoints[0]
    asked: Manifest = {"path": entrance.READY, "port": ports(role)[first.name]}
    if first.origin:
        # Many programs answer only to known names.
        asked["httpHeaders"] = [{"name": "Host", "value": urlsplit(first.origin).netloc}]
    often = {"periodSeconds": 1, "timeoutSeconds": PROBE_SECONDS, "failureThreshold": PROBE_FAILURES}
    if first.warm_up_seconds:
        often["successThreshold"] = first.warm_up_seconds
    return {
        "readinessProbe": {"httpGet": asked, **often},
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}},
    }


def _service(run: RunRef, role: RolePlan, endpoint: Endpoint, settings: Settings) -> Manifest:
    """Selects ready tasks only, so that nobody is routed to one that is starting."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": names.endpoint_name(run, endpoint.name), "labels": {names.ROLE: role.role}},
        "spec": {
            "selector": {**names.run_selector(settings.portal, run), names.ROLE: role.role},
            "ports": [
                {"name": endpoint.name, "port": HTTP, "targetPort": ports(role)[endpoint.name], "protocol": "TCP"}
            ],
        },
    }


def _ingresses(run: RunRef, role: RolePlan, endpoint: Endpoint, settings: Settings) -> list[Manifest]:
    service = names.endpoint_name(run, endpoint.name)
    if settings.gateway == "traefik":
        secure = {f"{TRAEFIK}/router.tls": "true"} if endpoint.origin.startswith("https:") else {}
        asks = {ASKS[0]: MIDDLEWARE, **secure}
        return [_ingress(service, endpoint, role, service, asks, settings)]
    plain = {f"{NGINX}/{name}": value for name, value in {**_PATIENT, **_STREAMED}.items()}
    asks = {
        ASKS[1]: f"{settings.gateway_portal}/gateway/judge/nginx",
        f"{NGINX}/auth-signin": f"{endpoint.origin}/.portal/sign-in?rd=$escaped_request_uri",
        f"{NGINX}/auth-response-headers": REPLACED,
    }
    portal = urlsplit(settings.gateway_portal)
    tls = {f"{NGINX}/backend-protocol": "HTTPS"} if portal.scheme == "https" else {}
    named, port = names.portal_name(run), _port(portal)
    return [
        _ingress(service, endpoint, role, service, {**asks, **plain}, settings),
        _ingress(f"{service}{TO_PORTAL}", endpoint, role, named, tls, settings, path="/.portal/", port=port),
    ]


def _ingress(
    name: str,
    endpoint: Endpoint,
    role: RolePlan,
    service: str,
    annotations: dict[str, str],
    settings: Settings,
    *,
    path: str = "/",
    port: int = HTTP,
) -> Manifest:
    origin = urlsplit(endpoint.origin)
    to = {"service": {"name": service, "port": {"number": port}}}
    spec: Manifest = {
        "rules": [{"host": origin.hostname, "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": to}]}}]
    }
    if settings.ingress_class:
        spec["ingressClassName"] = settings.ingress_class
    if origin.scheme == "https":
        # Without a Secret the gateway uses its own certificate.
        secret = {"secretName": settings.apps_certificate} if settings.apps_certificate else {}
        spec["tls"] = [{"hosts": [origin.hostname], **secret}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {
            "name": name,
            "labels": {names.ROLE: role.role, names.ENDPOINT: endpoint.name},
            "annotations": {**annotations, **(settings.ingress_annotations or {})},
        },
        "spec": spec,
    }


def _portal(run: RunRef, settings: Settings) -> Manifest:
    """Gives the portal a name in the namespace of the run."""
    portal = urlsplit(settings.gateway_portal)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": names.portal_name(run)},
        "spec": {
            "type": "ExternalName",
            "externalName": portal.hostname,
            # Unused by an ExternalName; drift detection compares the selector of every Service.
            "selector": names.run_selector(settings.portal, run),
            "ports": [{"name": "portal", "port": _port(portal), "protocol": "TCP"}],
        },
    }


def _port(address: SplitResult) -> int:
    return address.port or (443 if address.scheme == "https" else 80)
