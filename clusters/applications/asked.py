"""One request to what an application serves, sent by the portal for a person who tries it: on this machine straight to the
program, elsewhere by the gateway, with a proof that is good for this address alone.

What is sent and what is answered are bounded, and so is the time, however slowly the bytes of an answer come, because a thread of
the web server waits for it.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util.ssl_ import create_urllib3_context

from clusters.clouds.drivers import entrance
from clusters.clouds.registry import gateway_of
from clusters.gateway import own
from clusters.gateway.origins import name_of
from clusters.models import LOCAL, Cluster
from clusters.runs.routing import way_to
from datastores.drivers.patience import Allowance, SecureSocket, Socket
from portal.errors import Conflict, Invalid

CONNECTED, PATIENCE = 3.0, 30.0
MOST_SENT, MOST_READ = 1_000_000, 64 * 1024


@dataclass(frozen=True)
class Answered:
    """`text` is the body as far as MOST_READ bytes, `milliseconds` from when it was sent until that was there."""

    status: int
    text: str
    milliseconds: float
    is_cut: bool = False

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


def ask(cluster: Cluster, endpoint: str, path: str, body: bytes) -> Answered:
    """POSTs JSON. Raises Conflict where it does not answer, and Invalid for what is too long."""
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
        headers["Authorization"] = own.authorization(host.partition(".")[0], path, "POST")
    return _asked(address, host, headers, path, body)


def ask_at(cluster: Cluster, address: str, path: str, body: bytes) -> Answered:
    """The same of its program at an address that its cloud has said ("10.1.2.3:8501")."""
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
        except urllib3.exceptions.NewConnectionError as error:  # of urllib3 it is one of time-outs
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
    # The certificate of a gateway is for browsers to judge; what is sent there opens this one address for a minute.
    context = create_urllib3_context(cert_reqs=ssl.CERT_NONE)
    context.sslsocket_class = SecureSocket
    return _SecurePool(
        address.hostname or "", address.port, ssl_context=context, cert_reqs="CERT_NONE", server_hostname=host,
        assert_hostname=False,
    )  # fmt: skip


class _Patient:
    """A connection on which one answer has so much time altogether."""

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
