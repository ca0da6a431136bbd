"""A real Kubernetes control plane for tests: etcd, API server, controller manager and scheduler, up in seconds.

They are the real programs (see tests/plane), started on free loopback ports in a folder of their own. Only machines are
missing: kwok simulates nodes and kubelets by the rules in stages.py. So scheduling, scale, quotas, admission and lifecycle
are real; containers and their clocks are not. node.py adds a real machine. Everything ends with the process that started
it.

    plane = Plane(folder); plane.start(); plane.add_nodes(13)
    plane.until("/api/v1/namespaces/ops/pods", lambda pods: all(phase(pod) == "Running" for pod in pods.values()))
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config

from portal.up import services
from portal.up.services import Service
from tests.kube import stages
from tests.kube.binary import binary
from tests.kube.certificates import Authority, write_key, write_kubeconfig

GPU = "nvidia.com/gpu"
GPU_MODEL = "nvidia.com/gpu.product"  # the label set by NVIDIA's GPU feature discovery
# The API server's user name at kubelets. RBAC decides what it may do there, see node.py.
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
# With Kubernetes' client defaults (20 writes a second), tests would measure those limits.
FAST_CLIENT = ("--kube-api-qps=1000", "--kube-api-burst=1000", "--leader-elect=false")
GANGS = ("--feature-gates=GenericWorkload=true,GangScheduling=true",)
# Generous, because a program that ends is noticed earlier.
START_SECONDS = 120.0
# Seconds after which our watch checks whether the programs still run.
WATCH_SECONDS = 5.0

Object = dict[str, Any]


class Refused(Exception):
    """The API server answered with an error: `status` is the HTTP status, `message` its text."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Plane:
    """One control plane. Start it from a main thread (see services.spawn). Logs are in `folder`/log."""

    def __init__(
        self, folder: Path, address: str = "127.0.0.1", audited: str = "", gangs: Collection[str] = ()
    ) -> None:
        """`address`: where the API server listens; containers, if any, must be able to reach it. `audited`: a user whose
        calls the API server logs (see `calls_of_audited`). `gangs`: the programs in which PodGroups are switched on."""
        self.gangs = gangs
        self.folder = services.private_folder(folder)
        self.logs = services.private_folder(folder / "log")
        self._keys = services.private_folder(folder / "keys")
        self._address = address
        self._audited = audited
        self._held = [_held_port() for _ in range(4)]
        self._port, self._etcd_port, self._peer_port, self._scheduler_port = (
            int(each.getsockname()[1]) for each in self._held
        )
        self.url = f"https://{address}:{self._port}"
        self._authority = Authority(self._keys, address)
        self._admin = self._authority.issue("admin", ["system:masters"], file="admin")
        self._server = self._authority.issue("plane", file="server")
        self._kubelet_client = self._authority.issue(KUBELET_CLIENT, file="kubelet-client")
        self._pool = urllib3.PoolManager(
            ca_certs=str(self._authority.path),
            cert_file=str(self._admin[0]),
            key_file=str(self._admin[1]),
            retries=False,
            maxsize=8,
        )
        self.kubeconfig = self.kubeconfig_for("admin", ["system:masters"])
        self._running: dict[str, tuple[Service, subprocess.Popen[bytes]]] = {}
        # The requested nodes by name.
        self._nodes: dict[str, Object] = {}

    # Starting and stopping

    def start(self) -> None:
        """Starts everything. Returns when it works. Raises services.ServiceError with the end of a log if a program fails."""
        self._program = str(binary())
        self._service_accounts = write_key(self._keys / "service-accounts.key", ec.generate_private_key(ec.SECP256R1()))
        (self.folder / "kwok.yaml").write_text(stages.config())
        try:
            self._start(self._etcd())
            self._start(self._apiserver())
            self._start(self._controller_manager(), self._scheduler(), self._kwok())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for name in reversed(list(self._running)):
            self._stop(name)
        for port in self._held:
            port.close()

    def start_apiserver(self) -> None:
        """Starts the API server at the same address with the same data. Returns when everything works again.

        Restarts the programs that depend on it too. In a real cluster they end when they cannot renew their leadership.
        Left running, they would reconnect only after up to 40 s (their back-off doubles up to 30 s, with jitter), and tests
        would measure that.
        """
        self._start(self._apiserver())
        for name in ("kube-controller-manager", "kube-scheduler", "kwok"):
            self._stop(name)
        # A new kwok leaves nodes alone until the leases of the old one expire, so delete those.
        self.request("DELETE", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
        self._start(self._controller_manager(), self._scheduler(), self._kwok())

    def restart_scheduler(self) -> None:
        self._stop("kube-scheduler")
        self._start(self._scheduler())

    def stop_apiserver(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Stops the API server, by default as if its machine were lost: every watch breaks. SIGTERM says goodbye to
        clients, up to 10 s."""
        self._stop("kube-apiserver", how)

    def check(self) -> None:
        """Raises services.ServiceError if one of its programs has ended."""
        for name, (_, process) in self._running.items():
            if process.poll() is not None:
                log = self.logs / f"{name}.log"
                raise services.ServiceError(f"{name} ended: {services.last_line(log)} (more in {log})")

    def memory(self) -> dict[str, int]:
        """Returns the resident bytes of each program."""
        found = {}
        for name, (_, process) in self._running.items():
            status = Path(f"/proc/{process.pid}/status").read_text()
            match = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
            found[name] = int(match[1]) * 1024 if match else 0
        return found

    def calls_of_audited(self) -> list[Object]:
        """Returns the audited user's calls from the API server's audit log, oldest first: `verb`, `objectRef`,
        `requestReceivedTimestamp` …

        A call is logged when its answer begins (a watch) or ends (any other call).
        """
        return [
            json.loads(line) for line in self._audit_log.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"
        ]

    @property
    def _audit_log(self) -> Path:
        return self.logs / "audit.log"

    def pids(self) -> list[int]:
        return [process.pid for _, process in self._running.values()]

    # Nodes

    def add_nodes(
        self,
        count: int,
        gpus: int = 8,
        model: str = "NVIDIA-A100",
        *,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Object] = (),
    ) -> list[str]:
        """Adds this many simulated nodes. Returns their names when pods can be scheduled on them."""
        size = {"cpu": "96", "memory": "768Gi", "ephemeral-storage": "2Ti", "pods": "110"}
        marks = {stages.SIMULATED: "true", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        if gpus:
            size[GPU], marks[GPU_MODEL] = str(gpus), model
        made = len(self._nodes)
        names = [f"node-{number}" for number in range(made + 1, made + count + 1)]
        for name in names:
            self._nodes[name] = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **marks, **(labels or {})}},
                "spec": {"taints": list(taints)},
                "status": {"capacity": size, "allocatable": size},
            }
        self._make_nodes(names)
        return names

    def _make_nodes(self, names: Sequence[str]) -> None:
        """Creates the nodes. Returns when pods can be scheduled on them."""
        for name in names:
            self.request("POST", "/api/v1/nodes", self._nodes[name])

        def usable(nodes: dict[str, Object]) -> bool:
            return all(
                name in nodes and condition(nodes[name], "Ready") == "True" and not _system_taints(nodes[name])
                for name in names
            )

        self.until("/api/v1/nodes", usable)

    def nodes(self) -> dict[str, Object]:
        return {node["metadata"]["name"]: node for node in self.request("GET", "/api/v1/nodes")["items"]}

    def put_back(self, nodes: Collection[str]) -> None:
        """Makes these nodes, as `add_nodes` made them, the only ones, and starts the API server if it was stopped.

        Recreates a node that was lost, cordoned, tainted, labelled or removed since.
        """
        if "kube-apiserver" not in self._running:
            self.start_apiserver()
        found = self.nodes()
        as_made = {name for name in nodes if name in found and self._is_as_made(found[name])}
        for name in found.keys() - as_made:
            self.remove_node(name)
        if missing := [name for name in nodes if name not in as_made]:
            self._make_nodes(missing)

    def _is_as_made(self, node: Object) -> bool:
        """Compares the node with its manifest, except for what Kubernetes itself writes on nodes."""
        made = self._nodes[node["metadata"]["name"]]
        labels = {key: value for key, value in node["metadata"]["labels"].items() if not key.startswith("beta.")}
        taints = [each for each in node["spec"].get("taints", []) if each["key"] not in _system_taints(node)]
        size = node["status"]["allocatable"]
        return (labels, taints, size, node["spec"].get("unschedulable", False)) == (
            made["metadata"]["labels"],
            made["spec"]["taints"],
            made["status"]["allocatable"],
            False,
        )

    def lose_node(self, name: str) -> None:
        """Silences the node: its pods, even deleted ones, stay as they are until the node is removed.

        The node controller would notice after 50 s; this writes at once what it would write then.
        """
        self.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {stages.SIMULATED: None}}})
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        lost = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": now}
        body = {"status": {"conditions": [lost]}}
        self.request(
            "PATCH", f"/api/v1/nodes/{name}/status", body, content_type="application/strategic-merge-patch+json"
        )

    def remove_node(self, name: str) -> None:
        self.request("DELETE", f"/api/v1/nodes/{name}")

    # Requests

    def request(
        self, method: str, path: str, body: Object | None = None, *, content_type: str = "", **query: str
    ) -> Object:
        """Sends a request as the administrator and returns the JSON answer. Raises Refused. PATCH is a merge patch by
        default."""
        return self._request(self._pool, method, path, body, content_type, query)

    def apply(self, path: str, body: Object, **query: str) -> Object:
        """Server-side apply; `path` is that of the object. Query: fieldManager, force, dryRun, fieldValidation."""
        return self.request("PATCH", path, body, content_type=APPLY, **{"fieldManager": "tests", **query})

    def until(
        self, path: str, happened: Callable[[dict[str, Object]], bool], seconds: float = 60.0, **query: str
    ) -> dict[str, Object]:
        """Watches the list at `path` until `happened` is true of its objects by name, and returns them. Raises TimeoutError.

        Restarts a broken watch, also while the API server is down.
        """
        end = time.monotonic() + seconds
        objects: dict[str, Object] = {}
        while (left := end - time.monotonic()) > 0:
            self.check()
            try:
                found = self.request("GET", path, **query)
                objects = {item["metadata"]["name"]: item for item in found["items"]}
                if happened(objects):
                    return objects
                for event in self._watch(path, found["metadata"]["resourceVersion"], min(left, WATCH_SECONDS), query):
                    name = event["object"]["metadata"].get("name", "")
                    if event["type"] == "DELETED":
                        objects.pop(name, None)
                    elif event["type"] in ("ADDED", "MODIFIED"):
                        objects[name] = event["object"]
                    else:
                        break
                    if happened(objects):
                        return objects
            except (urllib3.exceptions.HTTPError, Refused):
                time.sleep(0.05)  # nothing notifies us when an API server is back
        raise TimeoutError(f"Not so after {seconds:.0f} s; {path} has: {json.dumps(objects)[:2000]}")

    def _watch(self, path: str, version: str, seconds: float, query: Mapping[str, str]) -> Iterator[Object]:
        asked = {**query, "watch": "1", "resourceVersion": version, "timeoutSeconds": str(max(1, round(seconds)))}
        timeout = urllib3.Timeout(connect=2, read=seconds + 2)
        response = self._pool.request(
            "GET", f"{self.url}{path}?{urlencode(asked)}", timeout=timeout, preload_content=False
        )
        try:
            if response.status >= 400:
                raise Refused(response.status, response.read().decode(errors="replace"))
            rest = b""
            for chunk in response.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)
        finally:
            response.close()

    def _request(
        self,
        pool: urllib3.PoolManager,
        method: str,
        path: str,
        body: Object | None,
        content_type: str,
        query: Mapping[str, str],
    ) -> Object:
        headers = {"Content-Type": content_type or (MERGE if method == "PATCH" else "application/json")}
        data = json.dumps(body) if body is not None else None
        response = pool.request(
            method, f"{self.url}{path}?{urlencode(query)}", body=data, headers=headers, timeout=30.0
        )
        answer: Object = json.loads(response.data)
        if response.status >= 400:
            raise Refused(response.status, str(answer.get("message", "")))
        return answer

    def make_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """Creates the namespace. Returns its name when it accepts pods: admission needs its service account from a
        controller."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        self.until(f"/api/v1/namespaces/{name}/serviceaccounts", lambda found: "default" in found)
        return name

    def end_pods(self, namespace: str, selector: str, exit_code: int, reason: str = "") -> None:
        """Makes the simulated kubelets end the containers of these pods with this exit code and reason."""
        notes = {stages.EXIT_CODE: str(exit_code), **({stages.REASON: reason} if reason else {})}
        path = f"/api/v1/namespaces/{namespace}/pods"
        for pod in self.request("GET", path, labelSelector=selector)["items"]:
            self.request("PATCH", f"{path}/{pod['metadata']['name']}", {"metadata": {"annotations": notes}})

    def until_admitted(self, path: str, body: Object, refusal: str = "", seconds: float = 60.0) -> None:
        """Waits until a dry run of the request is admitted or, with `refusal`, refused with that text. Admission learns of
        quotas, limits and classes through its own watches."""
        end, answer = time.monotonic() + seconds, ""
        while True:
            try:
                self.request("POST", path, body, dryRun="All")
                answer = ""
            except Refused as error:
                answer = error.message
            if bool(answer) == bool(refusal) and refusal in answer:
                return
            if time.monotonic() > end:
                raise TimeoutError(f"Admission says: {answer or 'yes'}")
            time.sleep(0.05)

    def until_allowed(self, user: str, verb: str, resource: str, seconds: float = 60.0) -> None:
        """Waits until RBAC allows this. The authorizer learns of roles and bindings through its own watches, without notice."""
        asked = {"user": user, "resourceAttributes": {"verb": verb, "resource": resource}}
        end = time.monotonic() + seconds
        while not self.request("POST", ACCESS_REVIEWS, {"spec": asked})["status"]["allowed"]:
            if time.monotonic() > end:
                raise TimeoutError(f"{user} may not {verb} {resource}.")
            time.sleep(0.05)

    def compact(self) -> None:
        """Compacts etcd's history, which it does itself every 5 minutes: after an API server's restart, old watches end
        with 410."""
        etcd, pool = f"http://127.0.0.1:{self._etcd_port}/v3/kv", urllib3.PoolManager()
        key = base64.b64encode(b"\0").decode()
        revision = json.loads(pool.request("POST", f"{etcd}/range", body=json.dumps({"key": key})).data)["header"][
            "revision"
        ]
        done = pool.request("POST", f"{etcd}/compaction", body=json.dumps({"revision": revision, "physical": True}))
        assert done.status == 200, done.data

    # Credentials

    def client(self, kubeconfig: Path | None = None) -> kubernetes_client.ApiClient:
        """Returns a client of the library that the portal uses, for the administrator or another kubeconfig."""
        return kubernetes_config.new_client_from_config(str(kubeconfig or self.kubeconfig))

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Returns a kubeconfig of a person with this name, whose rights RBAC decides by name and groups."""
        file = "user-" + quote(user, safe="")
        certificate, key = self._authority.issue(user, groups, file=file)
        credentials = {
            "client-certificate-data": base64.b64encode(certificate.read_bytes()).decode(),
            "client-key-data": base64.b64encode(key.read_bytes()).decode(),
        }
        return write_kubeconfig(self._keys / f"{file}.kubeconfig", self.url, self._authority, credentials)

    def kubeconfig_for_account(self, namespace: str, name: str) -> Path:
        """Returns a kubeconfig of an existing ServiceAccount with a token valid for one hour, like that of a pod."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = self.request("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        file = self._keys / f"account-{namespace}-{name}.kubeconfig"
        return write_kubeconfig(file, self.url, self._authority, {"token": token})

    @property
    def authority(self) -> Path:
        """Returns the certificate authority that all programs here trust."""
        return self._authority.path

    def serving_certificate(self, name: str, address: str) -> tuple[Path, Path]:
        """Returns (certificate, key) for a server of this name at this address."""
        return self._authority.issue(name, file=f"serving-{name}", addresses=[address])

    # The programs

    def _start(self, *asked: Service) -> None:
        for service in asked:
            process = services.spawn(service, self.logs / f"{service.name}.log", os.environ)
            self._running[service.name] = (service, process)
        for service in asked:
            services.wait_ready(
                service, self._running[service.name][1], self.logs / f"{service.name}.log", START_SECONDS
            )

    def _stop(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        # SIGKILL: what a clean shutdown would save is deleted with the folder anyway.
        service, process = self._running.pop(name)
        process.send_signal(how)
        services.stop(service, process)

    def _service(self, name: str, ready: Callable[[], bool], *flags: str) -> Service:
        if name in self.gangs:
            flags += GANGS
        # GOGC=200 halves the number of garbage collections at the cost of memory.
        return Service(name, (self._program, name, *flags), ready, env={"GOGC": "200"})

    def _etcd(self) -> Service:
        clients, peers = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        request = b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n"
        return self._service(
            "etcd",
            lambda: services.ask(self._etcd_port, request).split(b" ")[1:2] == [b"200"],
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            # A single member needs no election, and nothing must survive a power cut.
            "--heartbeat-interval=20",
            "--election-timeout=200",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def _apiserver(self) -> Service:
        certificate, key = self._server
        # A loopback address cannot be the endpoint of Service kubernetes.default, and no pod here would use it.
        endpoints = "none" if self._address.startswith("127.") else "lease"
        return self._service(
            "kube-apiserver",
            lambda: self._answers("/readyz"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--bind-address={self._address}",
            f"--advertise-address={self._address}",
            f"--endpoint-reconciler-type={endpoints}",
            f"--secure-port={self._port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self._authority.path}",
            f"--kubelet-client-certificate={self._kubelet_client[0]}",
            f"--kubelet-client-key={self._kubelet_client[1]}",
            f"--kubelet-certificate-authority={self._authority.path}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.96.0.0/16",
            *(["--runtime-config=scheduling.k8s.io/v1alpha2=true"] if "kube-apiserver" in self.gangs else []),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._service_accounts}",
            f"--service-account-signing-key-file={self._service_accounts}",
            *self._audit_flags(),
        )

    def _audit_flags(self) -> tuple[str, ...]:
        if not self._audited:
            return ()
        rules = [{"level": "Metadata", "users": [self._audited]}, {"level": "None"}]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
        file = self.folder / "audit.yaml"
        file.write_text(json.dumps(policy))
        return (f"--audit-policy-file={file}", f"--audit-log-path={self._audit_log}")

    def _controller_manager(self) -> Service:
        return self._service(
            "kube-controller-manager",
            # It does not report that its controllers work, so wait for the first objects that they create.
            lambda: self._answers(
                "/api/v1/namespaces/default/serviceaccounts/default",
                "/api/v1/namespaces/default/configmaps/kube-root-ca.crt",
            ),
            f"--kubeconfig={self.kubeconfig}",
            f"--root-ca-file={self._authority.path}",
            f"--service-account-private-key-file={self._service_accounts}",
            "--secure-port=0",
            *FAST_CLIENT,
        )

    def _scheduler(self) -> Service:
        certificate, key = self._server
        return self._service(
            "kube-scheduler",
            lambda: self._answers(f"https://127.0.0.1:{self._scheduler_port}/readyz"),
            f"--kubeconfig={self.kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._scheduler_port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            *FAST_CLIENT,
        )

    def _kwok(self) -> Service:
        # Without a server address of its own, which would run commands for anyone. Ready nodes show that it works.
        return self._service(
            "kwok",
            lambda: True,
            f"--kubeconfig={self.kubeconfig}",
            f"--config={self.folder / 'kwok.yaml'}",
            f"--manage-nodes-with-label-selector={stages.SIMULATED}=true",
            "--node-lease-duration-seconds=40",
            "--node-ip=192.0.2.1",
            "--cidr=10.128.0.0/9",
        )

    def _answers(self, *paths: str) -> bool:
        for path in paths:
            url = path if path.startswith("https:") else self.url + path
            try:
                if self._pool.request("GET", url, timeout=5.0).status != 200:
                    return False
            except urllib3.exceptions.HTTPError:
                return False
        return True


def _held_port() -> socket.socket:
    """Returns a bound loopback port. While the socket is open no other process gets the port, even if the server that is to
    listen on it is not running. Both sockets set SO_REUSEADDR, so it does not block that server."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def phase(pod: Object) -> str:
    return str(pod["status"].get("phase", ""))


def condition(thing: Object, kind: str) -> str:
    """Returns the status of this condition, or "" if the object has none."""
    found = thing.get("status", {}).get("conditions") or []
    return next((str(item["status"]) for item in found if item["type"] == kind), "")


def _system_taints(node: Object) -> list[str]:
    return [taint["key"] for taint in node["spec"].get("taints", []) if taint["key"].startswith("node.kubernetes.io/")]
