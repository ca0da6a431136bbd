"""A thin client of the API server: JSON over kept-open connections, with parallel calls where that helps.

The official client finds and refreshes credentials. Bodies are read raw, because decoding typed pods is 18 times slower. Every
call has a timeout. Transient failures (429, 5xx, a lost connection) are retried for some seconds, no faster than the server
asks, and then raise CloudError; refusals raise CloudRefused with the server's own words.
"""

from __future__ import annotations

import base64
import gc
import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlencode

import orjson
import urllib3
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_exponential_jitter
from urllib3.exceptions import HTTPError, SSLError

from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.kubernetes.api.errors import (
    Missing,
    Taken,
    Unavailable,
    Unreachable,
    error_of,
    plain,
    raise_event,
)
from clusters.clouds.drivers.kubernetes.render.names import MANAGER

if TYPE_CHECKING:
    import kubernetes

Json = dict[str, Any]
T = TypeVar("T")

TIMEOUT = urllib3.Timeout(connect=3.0, read=15.0)
TRY_SECONDS = 6.0
PAGE = 500
AT_ONCE = 8
# Seconds after which the server ends a healthy watch; a watch silent for longer than WATCH_TIMEOUT is dead.
WATCH_SECONDS = 10
WATCH_TIMEOUT = urllib3.Timeout(connect=3.0, read=14.0)

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json"
# Requests only metadata, a third of the bytes.
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


# kind → (API, plural, whether it is namespaced)
KINDS = {
    "Lease": ("/apis/coordination.k8s.io/v1", "leases", True),
    "Namespace": ("/api/v1", "namespaces", False),
    "Node": ("/api/v1", "nodes", False),
    "PersistentVolume": ("/api/v1", "persistentvolumes", False),
    "RuntimeClass": ("/apis/node.k8s.io/v1", "runtimeclasses", False),
    "PriorityClass": ("/apis/scheduling.k8s.io/v1", "priorityclasses", False),
    "IngressClass": ("/apis/networking.k8s.io/v1", "ingressclasses", False),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "Event": ("/api/v1", "events", True),
    "LimitRange": ("/api/v1", "limitranges", True),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims", True),
    "Pod": ("/api/v1", "pods", True),
    "ResourceQuota": ("/api/v1", "resourcequotas", True),
    "Secret": ("/api/v1", "secrets", True),
    "Service": ("/api/v1", "services", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "StatefulSet": ("/apis/apps/v1", "statefulsets", True),
    "Job": ("/apis/batch/v1", "jobs", True),
    "Ingress": ("/apis/networking.k8s.io/v1", "ingresses", True),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies", True),
}


def path_of(kind: str, namespace: str = "", name: str = "") -> str:
    """Returns the path of an object, of a kind in one namespace, or (no namespace) in all."""
    api, plural, inside = KINDS[kind]
    return "/".join(
        [api, *(["namespaces", namespace] if inside and namespace else []), plural, *([name] if name else [])]
    )


class Client:
    """A client of one API server. Thread-safe."""

    def __init__(self, api: kubernetes.client.ApiClient, tls: ssl.SSLContext | None = None) -> None:
        """`tls` replaces the certificate files of the configuration for every connection."""
        self.api = api
        self.tls = tls
        self._configuration = api.configuration
        self._pool = api.rest_client.pool_manager
        if tls:
            self._pool.connection_pool_kw["ssl_context"] = tls
        # Runs single calls only. Background tasks wait for parallel calls, so they have their own threads.
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kubernetes")
        self._background = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kubernetes-background")

    @classmethod
    def connect(cls, kubeconfig: str | Mapping[str, Any] = "", context: str = "") -> Client:
        """Connects with a kubeconfig (a file or its content), or with the credentials of this pod. Raises CloudError without
        either. Content comes from people: it must have passed `kubeconfig.read`, and its keys are never written to a file."""
        # Its models occupy 22 MB per process, so only a portal with a Kubernetes cluster imports it.
        import kubernetes

        configuration = kubernetes.client.Configuration()
        configuration.connection_pool_maxsize = 4 * AT_ONCE
        configuration.retries = False
        tls: ssl.SSLContext | None = None
        try:
            if isinstance(kubeconfig, Mapping) and kubeconfig:
                tls = _read(kubeconfig, configuration)
            elif kubeconfig:
                kubernetes.config.load_kube_config(  # type: ignore[no-untyped-call]
                    kubeconfig, context or None, client_configuration=configuration, persist_config=False
                )
            else:
                kubernetes.config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        except (kubernetes.config.ConfigException, OSError, ValueError, LookupError, TypeError) as error:
            raise CloudError(f"There are no usable credentials for Kubernetes: {error}") from error
        return cls(kubernetes.client.ApiClient(configuration), tls)

    # -- objects ---------------------------------------------------------------------------------------------------

    def get(self, path: str, **query: Any) -> Json:
        return cast("Json", self.request("GET", path, query=query))

    def get_once(self, path: str, **query: Any) -> Json:
        """Sends one GET without retries."""
        return cast("Json", parsed(self._send("GET", path, query, TIMEOUT).data))

    def pages(self, path: str, *, accept: str = JSON, **query: Any) -> Iterator[Json]:
        """Yields a list in pages of PAGE objects; every page has `items` and the `metadata.resourceVersion` of the whole.
        Fetches the next page while the caller processes one."""
        asked = {"limit": PAGE, **query}
        page = self.request("GET", path, query=asked, accept=accept)
        while following := page["metadata"].get("continue", ""):
            coming = self._threads.submit(
                self.request, "GET", path, query={**asked, "continue": following}, accept=accept
            )
            yield page
            page = coming.result()
        yield page

    def create(self, manifest: Mapping[str, Any]) -> Json:
        """Creates an object. Raises Taken if the name exists."""
        metadata = manifest["metadata"]
        path = path_of(manifest["kind"], metadata.get("namespace", ""))
        return cast("Json", self.request("POST", path, body=manifest, query={"fieldManager": MANAGER}))

    def apply(self, manifest: Mapping[str, Any], **query: Any) -> Json:
        """Applies an object server-side as our manager; takes over fields that others changed."""
        metadata = manifest["metadata"]
        path = path_of(manifest["kind"], metadata.get("namespace", ""), metadata["name"])
        asked = {"fieldManager": MANAGER, "force": "true", **query}
        return cast("Json", self.request("PATCH", path, body=manifest, content_type=APPLY, query=asked))

    def apply_once(self, manifest: Mapping[str, Any]) -> None:
        """Applies without retries. With a `metadata.resourceVersion` raises Unavailable if the object has changed since."""
        metadata = manifest["metadata"]
        path = path_of(manifest["kind"], metadata.get("namespace", ""), metadata["name"])
        query = {"fieldManager": MANAGER, "force": "true"}
        self._send("PATCH", path, query, TIMEOUT, body=manifest, content_type=APPLY)

    def apply_all(self, manifests: Sequence[Mapping[str, Any]], **query: Any) -> list[Json]:
        """Applies in parallel. Raises the first error when all have been tried."""
        return [done.result() for done in [self._threads.submit(self.apply, each, **query) for each in manifests]]

    def all_at_once(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Runs calls in parallel. Ignores missing objects; raises the first other error at the end."""
        for done in [self._threads.submit(call) for call in calls]:
            try:
                done.result()
            except Missing:
                continue

    def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE) -> Json:
        """Patches an object and returns only its metadata: a whole pod is ten times as expensive to encode and to read."""
        return cast("Json", self.request("PATCH", path, body=body, content_type=content_type, accept=METADATA))

    def patch_once(self, path: str, body: Mapping[str, Any]) -> None:
        """Patches without retries. With a `metadata.resourceVersion` raises Unavailable if the object has changed since."""
        self._send("PATCH", path, {}, TIMEOUT, body=body, content_type=MERGE, accept=METADATA)

    def delete(self, path: str, *, propagation: str = "Background", **query: Any) -> None:
        """Deletes an object, or (with a labelSelector) all of a list. Raises Missing if the name does not exist."""
        self.request("DELETE", path, query={"propagationPolicy": propagation, **query})

    def in_background(self, task: Any, *arguments: Any) -> None:
        self._background.submit(task, *arguments)

    # -- calls -----------------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """Returns the answer as JSON. Retries for TRY_SECONDS while the server is unavailable."""
        answer = patiently(
            self._send, method, path, query or {}, TIMEOUT, body=body, content_type=content_type, accept=accept
        )
        return parsed(answer.data)

    def open(self, path: str, timeout: urllib3.Timeout = TIMEOUT, **query: Any) -> urllib3.BaseHTTPResponse:
        """Returns an open answer; read it with `pieces` and close it. No retries."""
        return self._send("GET", path, query, timeout, stream=True)

    def watch(self, path: str, version: str, *, accept: str = JSON, **query: Any) -> urllib3.BaseHTTPResponse:
        """Returns the events after `version` as lines; the server ends it after WATCH_SECONDS. Retries as `request`."""
        asked = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": WATCH_SECONDS,
            **query,
        }
        return patiently(self._send, "GET", path, asked, WATCH_TIMEOUT, accept=accept, stream=True)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        timeout: urllib3.Timeout,
        *,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": MANAGER}
        if token := self._configuration.auth_settings().get("BearerToken"):
            headers["Authorization"] = token["value"]
        url = f"{self._configuration.host}{path}?{urlencode(query, doseq=True)}"
        data = orjson.dumps(body) if body is not None else None
        try:
            answer = self._pool.request(
                method, url, body=data, headers=headers, timeout=timeout, retries=False, preload_content=not stream
            )
            if answer.status >= 400:
                error = error_of(answer, answer.data if not stream else answer.read())
                raise Taken(409, str(error)) if (method, answer.status) == ("POST", 409) else error
        except HTTPError as error:
            # A server with a certificate that we reject did answer.
            known = isinstance(error, SSLError) and isinstance(error.args[0], ssl.SSLCertVerificationError)
            raise (Unavailable if known else Unreachable)(f"The API server does not answer: {plain(error)}") from error
        return answer


def _read(kubeconfig: Mapping[str, Any], configuration: kubernetes.client.Configuration) -> ssl.SSLContext | None:
    """Converts a kubeconfig from `kubeconfig.read` into a configuration. The official loader would write keys to files in /tmp,
    and leave them there if the process is killed."""
    server, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    configuration.host = server["server"]
    configuration.verify_ssl = not server.get("insecure-skip-tls-verify", False)
    if name := server.get("tls-server-name"):
        configuration.tls_server_name = name
    if proxy := server.get("proxy-url"):
        # As kubectl does: NO_PROXY of the environment does not apply to an explicit proxy.
        configuration.proxy, configuration.no_proxy = proxy, ""
    if token := user.get("token"):
        configuration.api_key["authorization"] = f"Bearer {token}"
    if not configuration.host.startswith("https:"):
        return None
    authority = base64.b64decode(server.get("certificate-authority-data", ""))
    tls = ssl.create_default_context(cadata=authority.decode("ascii", "ignore") if authority else None)
    if not configuration.verify_ssl:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if certificate := user.get("client-certificate-data"):
        _load_key(tls, base64.b64decode(certificate), base64.b64decode(user["client-key-data"]))
    return tls


def _load_key(tls: ssl.SSLContext, certificate: bytes, private: bytes) -> None:
    """Loads a key by way of an anonymous memory file, because Python only reads keys from files."""
    handle = os.memfd_create("client-key", os.MFD_CLOEXEC)
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(certificate + b"\n" + private)
        tls.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def patiently(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Retries a call for TRY_SECONDS while it raises Unavailable."""
    for attempt in Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, Unavailable)),
        wait=_pause,
        stop=stop_before_delay(TRY_SECONDS),
        reraise=True,
    ):
        with attempt:
            return call(*arguments, **named)
    raise AssertionError("Retrying either returns or raises")


def parsed(data: bytes) -> Any:
    """Parses JSON with garbage collection off: JSON has no cycles, and scanning the objects of a long list takes longer than
    creating them. No other thread runs meanwhile, because the parser holds the GIL."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return orjson.loads(data)
    finally:
        if collecting:
            gc.enable()


def pieces(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yields the body as it arrives. Raises CloudError if the connection is lost or silent for too long."""
    try:
        yield from answer.stream(65536)
    except (HTTPError, OSError) as error:
        raise Unavailable(f"The API server was cut off: {plain(error)}") from error


def events(answer: urllib3.BaseHTTPResponse, hear: Callable[[], None] = lambda: None) -> Iterator[Json]:
    """Yields the events of a watch; calls `hear` for all that arrives. Raises WatchExpired (410) and CloudError."""
    rest = b""
    for piece in pieces(answer):
        hear()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            event = _event(line)
            if event["type"] == "ERROR":
                raise_event(event["object"])
            yield event


def _event(line: bytes) -> Json:
    """Parses an event. A proxy in between may end the stream with something else."""
    try:
        event: Json = orjson.loads(line)
        if isinstance(event["type"], str) and isinstance(event["object"], dict):
            return event
    except (ValueError, TypeError, LookupError):
        pass
    raise Unavailable(f"The watch was cut off by what is no event: {line[:100].decode(errors='replace')}")


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    jitter = wait_exponential_jitter(multiplier=0.1, max=3, jitter=0.3)(state)
    return max(jitter, error.after or 0.0) if isinstance(error, Unavailable) else jitter
