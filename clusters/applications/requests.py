"""Sends one test request to an application on behalf of a user: on this machine directly to the program, elsewhere through the
gateway, with a proof that is valid for this address only.

Request, answer and total time are limited, however slowly an answer arrives, because a web server thread waits for it.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from urllib.parse import SplitResult, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util.ssl_ import create_urllib3_context

from clusters.clouds.drivers import entrance
from clusters.clouds.models import LOCAL
from clusters.clouds.registry import gateway_of
from clusters.gateway import portal_proof
from clusters.gateway.origins import name_of
from clusters.runs.models import Cluster
from clusters.runs.routing import way_to
from datastores.drivers.patience import Allowance, SecureSocket, Socket
from portal.errors import Conflict, Invalid

CONNECTED, PATIENCE = 3.0, 30.0
MOST_SENT, MOST_READ = 1_000_000, 64 * 1024


@dataclass(frozen=True)
class Answered:
    """`text` is up to MOST_READ bytes of the body, `milliseconds` the time from sending until it was read."""

    status: int
    text: str
    milliseconds: float
    is_cut: bool = False

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


def ask(cluster: Cluster, endpoint: str, path: str, body: bytes) -> Answered:
    """POSTs JSON. Raises Conflict if the application does not answer, and Invalid if the body is too long."""
    run = cluster.current_run
    there = run.endpoints.get(endpoint) if run and not run.is_terminal else None
    if run is None or there is None:
        raise Conflict(f"{cluster.name} does not answer yet, or not any more.")
    host = name_of(cluster.origins[endpoint])
    address, headers = f"http://{there['address']}", _headers(cluster)
    if run.cloud != LOCAL:
        gateway = gateway_of(run.cloud)
        if gateway is None:
            raise Conflict("Nothing leads to it: its cloud has no gateway any more.")
        way, headers["Host"] = way_to(host, gateway)
        address = way.geturl()
        headers.pop(entrance.HEADER)
        headers["Authorization"] = portal_proof.authorization(host.partition(".")[0], path, "POST")
    return _asked(address, host, headers, path, body)


def ask_at(cluster: Cluster, address: str, path: str, body: bytes) -> Answered:
    """The same directly to a program's address that its cloud reported ("10.1.2.3:8501")."""
    return _asked(f"http://{address}", "localhost", _headers(cluster), path, body)


def _headers(cluster: Cluster) -> dict[str, str]:
    return {"Content-Type": "application/json", "Host": "localhost", entrance.HEADER: cluster.proof}


def _asked(address: str, host: str, headers: Mapping[str, str], path: str, body: bytes) -> Answered:
    if len(body) > MOST_SENT:
        raise Invalid.at("body", message=f"Here at most {MOST_SENT / 1e6:.0f} MB are sent; use a program for more.")
    began = time.monotonic()
    with _pool(urlsplit(address), host) as pool:
        try:
            timeout = urllib3.Timeout(connect=CONNECTED, read=PATIENCE)
            answer = pool.request(
                "POST", path, body=body, headers=headers, retries=False, redirect=False,
                timeout=timeout, preload_content=False,
            )  # fmt: skip
            text = answer.read(MOST_READ + 1, decode_content=False)
            answer.close()
        except urllib3.exceptions.NewConnectionError as error:  # a subclass of TimeoutError in urllib3
            raise Conflict("Nobody listens at its address; its log may say why.") from error
        except urllib3.exceptions.TimeoutError as error:
            raise Conflict(f"It did not answer within {PATIENCE:.0f} s.") from error
        except urllib3.exceptions.HTTPError as error:
            raise Conflict("The connection broke before it had answered; its log may say why.") from error
    milliseconds = 1000 * (time.monotonic() - began)
    return Answered(answer.status, text[:MOST_READ].decode(errors="replace"), milliseconds, len(text) > MOST_READ)


def _pool(address: SplitResult, host: str) -> urllib3.HTTPConnectionPool:
    if address.scheme != "https":
        return _Pool(address.hostname or "", address.port)
    # Gateway certificates are verified by browsers only. The proof that is sent opens just this address, for a minute.
    context = create_urllib3_context(cert_reqs=ssl.CERT_NONE)
    context.sslsocket_class = SecureSocket
    return _SecurePool(
        address.hostname or "", address.port, ssl_context=context, cert_reqs="CERT_NONE", server_hostname=host,
        assert_hostname=False,
    )  # fmt: skip


class _Patient:
    """A connection with a time limit for the whole answer."""

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        connected: Any = self
        if not isinstance(connected.sock, SecureSocket):
            connected.sock = Socket.of(connected.sock)
        connected.sock.allowance = Allowance()
        connected.sock.allowance.seconds = PATIENCE


class _Connection(_Patient, HTTPConnection):
    pass


class _SecureConnection(_Patient, HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


# An example may have this many values; a larger one is no text to read or change.
MOST_VALUES = 5000
EXAMPLE = {"instances": [[0.0, 1.0]]}


def example_of(signature: Mapping[str, Any] | None) -> tuple[Any, bool]:
    """A request that a model of this signature takes, all zeros, and whether it is made of the signature: not if that is
    unknown or too large to be typed. Dimensions of any size are 1."""
    inputs = (signature or {}).get("inputs") or []
    shapes = [each["shape"] for each in inputs]
    if not inputs or any(shape is None for shape in shapes):
        return EXAMPLE, False
    sizes = [[size if size and size > 0 else 1 for size in shape] for shape in shapes]
    if sum(prod(each) for each in sizes) > MOST_VALUES:
        return EXAMPLE, False
    values = {each["name"]: _filled(shape, _zero(each["dtype"])) for each, shape in zip(inputs, sizes, strict=True)}
    if len(values) > 1:
        return {"inputs": values}, True
    (value,) = values.values()
    # An instance is one row; an input without rows is sent whole.
    return ({"instances": value} if sizes[0] else {"inputs": value}), True


def _zero(dtype: str) -> Any:
    if dtype in ("string", "str", "object", "bytes"):
        return "text"
    return False if dtype.startswith("bool") else 0 if dtype.startswith(("int", "uint", "long")) else 0.0


def _filled(shape: Sequence[int], value: Any) -> Any:
    for size in reversed(shape):
        value = [value] * size
    return value


def tensor_shown(said: Mapping[str, Any]) -> tuple[str, str, str]:
    """Name, type and shape for display: "any number × 64"."""
    shape = said["shape"]
    sizes = ("any number" if size is None else str(size) for size in shape or ())
    return said["name"], said["dtype"], "of any shape" if shape is None else " × ".join(sizes) or "one number"
