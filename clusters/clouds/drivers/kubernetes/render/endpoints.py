"""How people come to what tasks serve: a Service and an Ingress for each endpoint, and how a pod says that it is ready. Pure.

In each pod that serves something a sidecar is the only way in (../../entrance.py): programs listen on its loopback, and whoever
has not the proof of the cluster, another pod or the node itself, is refused.

The Ingress leads to the tasks that are ready by the program's own health path, and a task that is to end leaves it before its
program is told. Whatever the gateway is, it asks the portal about each request and passes on what that answered in the place of
what the client said (clusters/gateway/middleware.py):

- Traefik sends the portal's answers to the client as they are. What it asks is a Middleware that administrators make once,
  MIDDLEWARE (docker/kubernetes/traefik).
- NGINX knows only yes and no, so it sends who is not let in to an address of the same origin that the portal itself answers,
  by a second Ingress for /.portal/ and a Service that is the portal's name in the namespace of the run.
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

# Endpoints have a name of their own, so all have the port of their protocol.
HTTP = 80
# The container that lets requests in, and what it has of a CPU: about 1,500 small requests a second.
ENTRANCE, ENTRANCE_CPU = "entrance", "250m"
FIRST_PORT = 3143
# Between the moment at which a task is to end, when the gateway is told to lead nobody there, and its program's SIGTERM.
DRAIN_SECONDS = 3
# A program answers a probe within so many seconds, or it is asked again a second later. One that has answered may be busy for
# some time before nobody is led there any more.
PROBE_SECONDS, PROBE_FAILURES = 5, 15
TRAEFIK, NGINX = "traefik.ingress.kubernetes.io", "nginx.ingress.kubernetes.io"
MIDDLEWARE = "gpu-cloud-applications@kubernetescrd"
# Without one of these a gateway would let everybody in.
ASKS = (f"{TRAEFIK}/router.middlewares", f"{NGINX}/auth-url")
# The end of the name of an Ingress that leads to the portal alone.
TO_PORTAL = ".portal"
# What of a request the portal's answer replaces or takes away.
REPLACED = "Cookie,Authorization,X-Portal-User,X-Portal-Gateway"
# Notebooks are silent for long and send much.
_PATIENT = {"proxy-read-timeout": "3600", "proxy-send-timeout": "3600"}
_STREAMED = {"proxy-body-size": "0", "proxy-buffering": "off", "proxy-request-buffering": "off"}


def manifests(plan: Plan, settings: Settings) -> list[Manifest]:
    """Those of all endpoints; without labels and owner, which all objects of a run get alike."""
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
    """The port of the pod at which the entrance takes the requests for each endpoint, none of them one of a program."""
    taken = {each.port for each in role.endpoints} | {names.PORT, storage.STREAM_PORT}
    free = (each for each in count(FIRST_PORT) if each not in taken)
    return {each.name: next(free) for each in role.endpoints}


def entrance_container(plan: Plan, role: RolePlan, settings: Settings) -> list[Manifest]:
    """The entrance of a task that serves something. It is a sidecar: there before the program, and until that has ended."""
    if not role.endpoints:
        return []
    made, found = storage.container(ENTRANCE, settings), ports(role)
    for held in made["resources"].values():
        held["cpu"] = ENTRANCE_CPU
    led = [f"{found[each.name]}:{each.port}" for each in role.endpoints]
    proof = {"secretKeyRef": {"name": names.secret_name(plan.run), "key": storage.PROOF}}
    # The readiness of a pod is that of its first endpoint.
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
    """What the container of a task that serves something has besides."""
    if not role.endpoints:
        return {}
    # A container is ready or not as a whole: by its first endpoint. The kubelet asks the entrance, which asks the program.
    first = role.endpoints[0]
    asked: Manifest = {"path": entrance.READY, "port": ports(role)[first.name]}
    if first.origin:
        # Many programs answer only to the names that they know.
        asked["httpHeaders"] = [{"name": "Host", "value": urlsplit(first.origin).netloc}]
    often = {"periodSeconds": 1, "timeoutSeconds": PROBE_SECONDS, "failureThreshold": PROBE_FAILURES}
    if first.warm_up_seconds:
        often["successThreshold"] = first.warm_up_seconds
    return {
        "readinessProbe": {"httpGet": asked, **often},
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}},
    }


def _service(run: RunRef, role: RolePlan, endpoint: Endpoint, settings: Settings) -> Manifest:
    """Leads to the tasks that are ready, so that whoever opens it is not sent to one that starts."""
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
        # Without a Secret the gateway shows the certificate that it has.
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
    """The portal's name in the namespace of the run."""
    portal = urlsplit(settings.gateway_portal)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": names.portal_name(run)},
        "spec": {
            "type": "ExternalName",
            "externalName": portal.hostname,
            # Means nothing here; whether somebody changed a Service is told by what all have.
            "selector": names.run_selector(settings.portal, run),
            "ports": [{"name": "portal", "port": _port(portal), "protocol": "TCP"}],
        },
    }


def _port(address: SplitResult) -> int:
    return address.port or (443 if address.scheme == "https" else 80)
