"""Endpoints of tasks on Kubernetes, opened through a real Traefik that reads its routes from the real API server.

Once with Traefik's own annotations and the Middlewares of docker/kubernetes, and once with those of ingress-nginx, which
Traefik also understands. Only the node is simulated: the web program's pod gets the address of this machine, where the test
runs the pod's entrance, which leads to an echo program on loopback.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import secrets
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request, Response
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import ServerConnection, serve

from clusters.clouds.drivers import entrance
from clusters.clouds.drivers.kubernetes.render import endpoints
from portal.up import services
from portal.up.services import Service
from tests.kube.loops import Loops
from tests.kube.plane import Plane
from tests.kube.test_deployment import filled_in, rendered
from tests.running import eventually

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]

GROUP = "traefik.io"
KINDS = (
    "IngressRoute", "IngressRouteTCP", "IngressRouteUDP", "Middleware", "MiddlewareTCP", "ServersTransport",
    "ServersTransportTCP", "TLSOption", "TLSStore", "TraefikService",
)  # fmt: skip
NAMESPACE = "gpu-cloud"
DOMAIN, PORT = "apps.localhost", 8000
IN_PAGE = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
VISIT = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Accept": "text/html"}


def own_address() -> str:
    """Returns an address of this machine that is not loopback, because EndpointSlices must not contain loopback addresses."""
    for found in psutil.net_if_addrs().values():
        for each in found:
            if each.family is socket.AF_INET and not each.address.startswith("127."):
                return str(each.address)
    subprocess.run(["ip", "address", "add", "10.250.0.1/32", "dev", "lo"], check=True)
    return "10.250.0.1"


@dataclass
class Gateway:
    """Traefik with the portal behind it. `dialect` names the kind of annotations of its Ingresses."""

    dialect: str
    plane: Plane
    port: int
    portal: str

    def ask(
        self, label: str, path: str = "/", headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> tuple[int, Mapping[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True)
            for name, value in {
                **({} if "Host" in (headers or {}) else {"Host": host_of(label)}),
                **(headers or {}),
            }.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            found = {**dict(answer.headers.items()), "cookies": cookies_in(answer.headers.get_all("Set-Cookie") or [])}
            return answer.status, found, answer.read().decode(errors="replace")

    def follow(self, label: str, path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], str]:
        """Requests a page as a browser does: follows redirects to the same origin and keeps the cookies set there."""
        cookies: dict[str, str] = {}
        for _ in range(6):
            sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())} if cookies else {}
            status, got, text = self.ask(label, path, {**headers, **sent})
            if given := got["cookies"]:
                name, _, value = given.partition("=")
                cookies[name] = value
            target = urllib.parse.urlsplit(got.get("Location", ""))
            if status not in (302, 303, 307) or (target.netloc and target.netloc != host_of(label)):
                break
            path = f"{target.path}?{target.query}" if target.query else target.path
        return status, {**got, "cookies": "; ".join(f"{name}={value}" for name, value in cookies.items())}, text


def cookies_in(given: list[str]) -> str:
    """Returns the only cookie that is set and not removed, or ""."""
    pairs = [each.partition(";")[0] for each in given]
    return next((each for each in pairs if each.partition("=")[2] not in ("", '""')), "")


def host_of(label: str) -> str:
    return f"{label}.{DOMAIN}:{PORT}"


@pytest.fixture(scope="module")
def address() -> str:
    return own_address()


@pytest.fixture
def portal(address: str, people: Any, settings: Any) -> Iterator[str]:
    """The portal's web server, at an address that the gateway reaches."""
    from pytest_django.live_server_helper import LiveServer

    server = LiveServer(address)
    yield server.url
    server.stop()


@pytest.fixture(params=["traefik", "nginx"])
def gateway(request: pytest.FixtureRequest, plane: Plane, portal: str, tmp_path: Path) -> Iterator[Gateway]:
    dialect: str = request.param
    _deploy(plane, portal, tmp_path, own=dialect == "traefik")
    port = services.free_port()
    nginx = {"ingressClass": "none", "watchIngressWithoutClass": True, "controllerClass": "test/none"}
    providers: dict[str, Any] = {
        "kubernetesIngress": {
            "allowExternalNameServices": True,
            "allowEmptyServices": False,
            "throttleDuration": "50ms",
        },
        "kubernetesCRD": {"throttleDuration": "50ms"},
    }
    if dialect == "nginx":
        providers = {"kubernetesIngressNGINX": nginx}
    config = {
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "log": {"level": "INFO", "noColor": True, "filePath": str(tmp_path / "traefik.log")},
        "entryPoints": {"web": {"address": f"127.0.0.1:{port}"}},
        "providers": {"providersThrottleDuration": "50ms", **providers},
    }
    path = tmp_path / "traefik.yaml"
    path.write_text(json.dumps(config))
    program = Service(
        "traefik", (services.program("traefik"), f"--configFile={path}"), env={"KUBECONFIG": str(plane.kubeconfig)}
    )
    process = services.spawn(program, tmp_path / "traefik.out", {})

    def listens() -> bool:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5):
            return True
        return False

    try:
        assert eventually(listens), (tmp_path / "traefik.log").read_text()[-3000:]
        yield Gateway(dialect, plane, port, portal)
        assert process.poll() is None, (tmp_path / "traefik.log").read_text()[-3000:]
    finally:
        process.kill()
        process.wait()


def _deploy(plane: Plane, portal: str, folder: Path, *, own: bool) -> None:
    """Applies what docker/kubernetes has for applications, with this portal in place of its pods."""
    copy = filled_in(folder)
    kustomization = copy / "kustomization.yaml"
    components = ["applications", *(["applications/traefik"] if own else [])]
    kustomization.write_text(f"{kustomization.read_text()}\ncomponents: {json.dumps(components)}\n")
    settings = copy / "portal.env"
    settings.write_text(settings.read_text().replace("https://apps.portal.example.org", f"http://{DOMAIN}"))
    where = urllib.parse.urlsplit(portal)
    for kind in KINDS if own else ():
        define(plane, kind)
    wanted = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
    for each in rendered(copy):
        if each["kind"] == "Ingress" and each["metadata"]["name"].endswith("applications"):
            assert each["spec"]["rules"][0]["host"] == f"*.{DOMAIN}"
            del each["spec"]["tls"]  # no certificate here
            wanted.append(each)
        if each["kind"] == "Middleware":
            if "forwardAuth" in each["spec"]:
                each["spec"]["forwardAuth"]["address"] = f"{portal}/gateway/judge"
            wanted.append(each)
        if each["kind"] == "Service" and each["metadata"]["name"] == "web":
            del each["spec"]["selector"]
            each["spec"]["ports"][0]["targetPort"] = where.port
            wanted.append(each)
    slice_: dict[str, Any] = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [where.hostname], "conditions": {"ready": True}}],
        "ports": [{"name": "http", "port": where.port, "protocol": "TCP"}],
    }
    for each in [*wanted, slice_]:
        plane.apply(path_of(each), each, force="true")


def path_of(each: Mapping[str, Any]) -> str:
    api, kind, name = each["apiVersion"], each["kind"].lower(), each["metadata"]["name"]
    plural = f"{kind}es" if kind.endswith("ss") else f"{kind}s"
    root = f"/api/{api}" if "/" not in api else f"/apis/{api}"
    return f"{root}/namespaces/{name}" if kind == "namespace" else f"{root}/namespaces/{NAMESPACE}/{plural}/{name}"


def define(plane: Plane, kind: str) -> None:
    """Defines a kind of Traefik's without its schema, because Traefik's own files are not available."""
    plural = f"{kind.lower()}s"
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": names,
            "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": anything}],
        },
    }
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    plane.apply(f"{path}/{plural}.{GROUP}", body)

    def served(found: dict[str, Any]) -> bool:
        conditions = found.get(f"{plural}.{GROUP}", {}).get("status", {}).get("conditions") or []
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    plane.until(path, served)


@pytest.fixture
def echo() -> Iterator[int]:
    """Returns the port of a program that echoes each request, and each WebSocket message."""

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return None
        body = json.dumps({"path": request.path, "headers": list(request.headers.raw_items())}).encode()
        found = Headers({"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"})
        return Response(HTTPStatus.OK.value, "OK", found, body)

    def talk(connection: ServerConnection) -> None:
        sent = connection.request
        assert sent
        connection.send(json.dumps(list(sent.headers.raw_items())))
        for message in connection:
            connection.send(message)

    with serve(talk, "127.0.0.1", 0, process_request=answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.socket.getsockname()[1])
        server.shutdown()


@pytest.fixture
def loops(plane: Plane, people: Any, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loops]:
    """The portal's loops, and a poll of the gateway."""
    monkeypatch.setattr(endpoints, "FIRST_PORT", services.free_port())
    from clusters.clouds.models import Cloud
    from clusters.runs.routing import Lookout
    from tests.kube.following import registered

    portal = f"test-{secrets.token_hex(4)}"
    registered(plane, "kubernetes", portal=portal, is_default=True)
    row = Cloud.objects.get(name="kubernetes")
    row.settings |= {
        "gateway": gateway.dialect,
        "gateway_namespace": "traefik",
        "gateway_address": f"http://127.0.0.1:{gateway.port}",
        "gateway_portal": gateway.portal,
    }
    if gateway.dialect == "nginx":
        # Traefik sends its own headers to the auth URL, whatever the dialect of the Ingress.
        asks = {"nginx.ingress.kubernetes.io/auth-url": f"{gateway.portal}/gateway/judge"}
        row.settings["ingress_annotations"] = asks
    row.save()
    loops = Loops(plane, portal, json.loads(row.credentials))
    stopped = threading.Event()
    lookout = Lookout(stopped)
    loops.start()
    lookout.start()
    yield loops
    stopped.set()
    lookout.changed.set()
    lookout.join()
    loops.stop()


def web(people: Any, name: str, port: int, **spec: Any) -> Any:
    from clusters.cluster.actions import create_cluster
    from clusters.manifest.cluster import ClusterManifest

    roles = {"server": {"flavor": "small", "endpoints": [{"name": "web", "port": port}]}}
    body = {"framework": "web", "image": "tensorflow", "command": "serve", "roles": roles, **spec}
    document = {"kind": "cluster", "metadata": {"name": name, "appcode": "ops-demo"}, "spec": body}
    return create_cluster(ClusterManifest.model_validate(document), acting_user=people.bob)


@pytest.fixture
def lead_here(plane: Plane, loops: Loops, address: str) -> Iterator[Callable[[Any], int]]:
    """Starts the entrance of a run's pod, and reports like a node that the pod has the address of this machine. Returns the
    port."""
    started: list[subprocess.Popen[bytes]] = []

    def lead(run: Any) -> int:
        (pod,) = loops.pods(run)
        (container,) = (each for each in pod["spec"]["initContainers"] if each["name"] == endpoints.ENTRANCE)
        (variable,) = container["env"]
        wanted = variable["valueFrom"]["secretKeyRef"]
        secret = plane.request("GET", loops.path("Secret", run, wanted["name"]))["data"][wanted["key"]]
        env = {variable["name"]: base64.b64decode(secret).decode()}
        port = int(container["ports"][0]["containerPort"])
        assert json.dumps(pod).count(env[variable["name"]]) == 0
        started.append(subprocess.Popen([sys.executable, entrance.__file__, *container["args"][1:]], env=env))
        body = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
        plane.request("PATCH", f"{loops.path('Pod', run, pod['metadata']['name'])}/status", body)
        return port

    yield lead
    for each in started:
        each.terminate()
        assert each.wait(30) == 0


def refused_without_a_proof(address: str, port: int) -> None:
    """Connects to the pod past the gateway, as another pod, a node or the portal could."""
    lies = {"X-Portal-User": "root", "Host": "x", "X-Portal-Gateway": "guessed"}
    for path, status in (("/x", 403), ("/", 403), (entrance.READY, 200)):
        connection = http.client.HTTPConnection(address, port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=lies)
            answer = connection.getresponse()
            assert (answer.status, b"headers" in answer.read()) == (status, False)


def make_ready(plane: Plane, loops: Loops, run: Any, ready: str) -> None:
    """Reports like a node that the pod's probe began or stopped to fail."""
    (pod,) = loops.pods(run)
    body = {"status": {"conditions": [{"type": "Ready", "status": ready}]}}
    path = f"{loops.path('Pod', run, pod['metadata']['name'])}/status"
    plane.request("PATCH", path, body, content_type="application/strategic-merge-patch+json")


def catalogue() -> None:
    from clusters.catalog.models import Flavor, Image

    Flavor.objects.create(name="small", title="Small", cpu_milli=100, memory_mb=128)
    Image.objects.create(name="tensorflow", title="TensorFlow", container="example/tensorflow:2.21")


def routed(cluster: Any) -> bool:
    from clusters.runs.models import Run

    return bool(Run.objects.get(current_of=cluster).endpoints.get("web", {}).get("routed"))


def seen_by(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in json.loads(text)["headers"]:
        found.setdefault(name.lower(), []).append(value)
    return found


def opened(gateway: Gateway, label: str, cookie: Mapping[str, str], origin: str | None) -> ClientConnection:
    """Opens a WebSocket as from a page of `origin`."""
    sock = socket.create_connection(("127.0.0.1", gateway.port), 30)
    return connect(f"ws://{host_of(label)}/ws", sock=sock, origin=origin, additional_headers=cookie)  # type: ignore[arg-type]


def foreign_sockets_are_refused(gateway: Gateway, label: str, cookie: Mapping[str, str]) -> None:
    for other in ("http://web-other-ops-demo.apps.localhost:8000", None):
        with pytest.raises(InvalidStatus, match="403"):
            opened(gateway, label, cookie, other)


def test_people_open_what_a_pod_serves_by_the_gateway_and_nothing_else_reaches_it(
    gateway: Gateway, loops: Loops, people: Any, plane: Plane, address: str, echo: int, lead_here: Callable[[Any], int]
) -> None:
    from django.test import Client

    from clusters.gateway import visits

    catalogue()
    # A unique name, because a failed try may have left objects for other names.
    name = f"{gateway.dialect}-{secrets.token_hex(3)}"
    label = f"web-{name}-ops-demo"
    cluster = web(people, name, echo)

    browsers = {}
    for person in (people.bob, people.mallory):
        browsers[person.username] = Client()
        browsers[person.username].force_login(person)

    def sent_back(person: str, path: str = "/lab?a=1") -> str:
        """Returns the portal's redirect for a browser that opens the origin, with the cookies set there."""
        status, got, _ = gateway.follow(label, path, VISIT)
        assert status == 302, got
        to_portal = urllib.parse.urlsplit(got["Location"])
        assert to_portal.path == f"/open/{label}"
        answer = browsers[person].get(f"{to_portal.path}?{to_portal.query}")
        if answer.status_code != 200:
            return ""
        ticket = urllib.parse.urlsplit(answer.context["address"])
        status, got, _ = gateway.ask(label, f"{ticket.path}?{ticket.query}", {"Cookie": got["cookies"], **VISIT})
        assert (status, got["Location"]) == (302, f"http://{host_of(label)}{path}")
        return got["cookies"]

    # Before the task is ready, the portal answers at its address, and tells those who may open it.
    loops.until(lambda: gateway.ask(label)[0] in (302, 401))
    cookie = {"Cookie": sent_back("bob")}
    run = loops.until_phase(cluster, "Running")
    port = lead_here(run)
    loops.until(lambda: routed(cluster) and gateway.ask(label, "/x", {**cookie, **IN_PAGE})[0] == 200)
    refused_without_a_proof(address, port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, echo), 30)

    # The program gets the user's name, but none of the portal's cookies.
    status, _, text = gateway.ask(label, "/lab?a=%2F", {"Cookie": f"{cookie['Cookie']}; mine=1", **VISIT})
    assert status == 200, text
    headers = seen_by(text)
    assert json.loads(text)["path"] == "/lab?a=%2F"
    assert headers["host"] == [host_of(label)]
    assert headers["x-portal-user"] == ["bob"]
    assert headers["cookie"] == ["mine=1"]
    assert headers["x-portal-gateway"] == [cluster.proof]
    for secret in (cookie["Cookie"].partition("=")[2], "portal-app", "sessionid"):
        assert secret not in text.lower()

    # Pages of the portal inside an application come from the portal, and only for a user who has it open.
    # (In Traefik's ingress-nginx mode, the endpoint gets all requests below its own name first.)
    status, got, _ = gateway.ask(label, "/.portal/idle", {**cookie, **IN_PAGE})
    if gateway.dialect == "traefik":
        assert (status, got["Content-Type"]) == (200, "application/json")
    assert '"headers"' not in gateway.ask(label, "/.portal/idle")[2]

    # Headers of the client can neither claim a user nor another target.
    lies = {
        "X-Portal-User": "root",
        "X-Portal-Gateway": "guessed",
        "X-Forwarded-Host": host_of("web-other-ops-demo"),
        "X-Forwarded-Uri": "/.portal/routed",
        "X-Forwarded-Method": "OPTIONS",
        "X-Original-URL": f"http://{host_of('web-other-ops-demo')}/",
        "X-Original-Method": "OPTIONS",
        "X-Auth-Request-Redirect": "/",
    }
    _, _, text = gateway.ask(label, "/x", {**cookie, **IN_PAGE, **lies})
    assert seen_by(text)["x-portal-user"] == ["bob"]
    assert seen_by(text)["x-portal-gateway"] == [cluster.proof]
    assert gateway.ask(label, "/x", lies)[0] in (302, 401)
    assert '"headers"' not in gateway.follow(label, "/x", {**lies, **IN_PAGE})[2]
    if gateway.dialect == "traefik":
        _, _, text = gateway.ask(label, "/x", {**cookie, **IN_PAGE, "X_Portal_User": "root"})
        assert "root" not in text

    # Foreign pages, other users, other origins and the portal's own cookies give no access.
    assert sent_back("mallory") == ""
    strange = {"Origin": "http://web-other-ops-demo.apps.localhost:8000", "Sec-Fetch-Site": "same-site"}
    portals = f"sessionid={browsers['bob'].cookies['sessionid'].value}"
    for sent in ({**cookie, **strange}, {"Cookie": portals}, {"Authorization": "token wrong"}, {}):
        status, _, text = gateway.follow(label, "/x", sent)
        assert '"headers"' not in text, sent
        assert status in (401, 403), sent
    assert gateway.ask("web-other-ops-demo", "/x", cookie)[0] in (302, 401)

    # A program gets in with its token and without a user name; a ticket works once.
    token = visits.new_token(cluster, acting_user=people.bob)
    status, _, text = gateway.ask(label, "/x", {"Authorization": f"token {token}"})
    assert status == 200
    assert token not in text
    assert "x-portal-user" not in seen_by(text)

    # A pod that is not ready gets no traffic until it is ready again.
    began = run_of(cluster).endpoints["web"]["since"]
    make_ready(plane, loops, run, "False")
    loops.until(lambda: not run_of(cluster).endpoints)
    if gateway.dialect == "traefik":
        loops.until(lambda: "does not answer yet" in gateway.ask(label, "/lab", {**cookie, **VISIT})[2])
    make_ready(plane, loops, run, "True")
    loops.until(lambda: routed(cluster) and gateway.ask(label, "/x", {**cookie, **IN_PAGE})[0] == 200)
    assert run_of(cluster).endpoints["web"]["since"] > began

    # If someone removes the annotation that makes the gateway ask the portal, it is restored.
    for each in loops.objects("Ingress", run):
        for name in set(endpoints.ASKS) & each["metadata"].get("annotations", {}).keys():
            path = loops.path("Ingress", run, each["metadata"]["name"])
            plane.request("PATCH", path, {"metadata": {"annotations": {name: None}}}, fieldManager="kubectl-annotate")
            # The run was updated a moment ago, and a run is repaired at most every 30 s.
            loops.until(
                lambda path=path, name=name: name in plane.request("GET", path)["metadata"].get("annotations", {}),  # type: ignore[misc]
                seconds=90,
            )
    loops.until(lambda: gateway.ask(label, "/x")[0] in (302, 401))

    # WebSockets work from its own pages only, by the Origin that browsers send.
    with opened(gateway, label, cookie, f"http://{host_of(label)}") as talk:
        assert ["X-Portal-User", "bob"] in json.loads(talk.recv(timeout=30))
        talk.send("hello")
        assert talk.recv(timeout=30) == "hello"
        foreign_sockets_are_refused(gateway, label, cookie)

        # A stop request ends new traffic at once, but open connections stay.
        loops.disable(people, cluster)
        loops.until(lambda: not run_of(cluster).endpoints)
    loops.until_phase(cluster, "Stopped")
    loops.until(lambda: "Stopped" in gateway.ask(label, "/lab", {**cookie, **VISIT})[2])
    loops.until_nothing_is_left(run)


class Worker:
    """A program that answers /activity with `says` and records the headers of the requests."""

    def __init__(self) -> None:
        self.says: dict[str, Any] = {"busy": ""}
        self.asked: list[list[tuple[str, str]]] = []
        worker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                if self.path == "/activity":
                    worker.asked.append([(name.lower(), value) for name, value in self.headers.items()])
                    self.wfile.write(json.dumps(worker.says).encode())

            def log_message(self, *_: Any) -> None:
                """Logs nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.server.shutdown()
    worker.server.server_close()


def test_the_portal_asks_through_the_gateway_whether_it_works_and_nobody_else_may(
    gateway: Gateway,
    loops: Loops,
    people: Any,
    plane: Plane,
    worker: Worker,
    lead_here: Callable[[Any], int],
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from clusters.frameworks.base import Endpoint
    from clusters.frameworks.web import Web
    from clusters.gateway import portal_proof as own
    from clusters.gateway.models import Origin
    from clusters.runs.probes import Asker

    catalogue()
    monkeypatch.setattr(Web, "idle_signal", "work")
    monkeypatch.setattr(Web, "endpoints", lambda *_: (Endpoint("web", worker.port, "/", "/activity"),))
    settings.ACTIVITY_SECONDS = 0.6
    name = f"asked-{gateway.dialect}-{secrets.token_hex(3)}"
    label = f"web-{name}-ops-demo"
    cluster = web(people, name, worker.port)
    stopped = threading.Event()
    asker = Asker(stopped)
    asker.start()
    try:
        run = loops.until_phase(cluster, "Running")
        lead_here(run)
        loops.until(lambda: run_of(cluster).activity == "idle")
        worker.says = {"busy": "A cell runs.", "count": 1}
        loops.until(lambda: run_of(cluster).activity_why == "A cell runs.")
        worker.says["busy"] = ""
        loops.until(lambda: run_of(cluster).activity == "idle")

        # It is no visit, and the program does not see the proof.
        assert Origin.objects.get(label=label).used_at is None
        for headers in worker.asked:
            assert ("host", host_of(label)) in headers
            assert not {"authorization", "x-portal-user", "cookie"} & dict(headers).keys()
        others = (own.authorization("web-other-ops-demo", "/activity"), own.authorization(label, "/"), "Portal x", "")
        for proof in others:
            assert gateway.ask(label, "/activity", {"Authorization": proof})[0] in (302, 401)
        assert gateway.ask(label, "/activity", {"Authorization": own.authorization(label, "/activity")})[0] == 200

        # Without a route the activity is unknown, and its timer restarts.
        since = run_of(cluster).activity_since
        make_ready(plane, loops, run, "False")
        loops.until(lambda: run_of(cluster).activity == "unknown")
        make_ready(plane, loops, run, "True")
        loops.until(lambda: run_of(cluster).activity == "idle")
        assert run_of(cluster).activity_since > since
    finally:
        stopped.set()
        asker.changed.set()
        asker.join()
    loops.disable(people, cluster)
    loops.until_phase(cluster, "Stopped")
    loops.until_nothing_is_left(run)


def run_of(cluster: Any) -> Any:
    from clusters.runs.models import Run

    return Run.objects.get(current_of=cluster)
