"""boto3's client of one S3 server: its connections, with their timeouts and checked addresses, and its settings.

One client per server and pair of keys is cached, because creating one takes 50 ms and its connections stay open.
"""

from __future__ import annotations

import datetime as dt
import socket
import threading
from functools import lru_cache
from typing import Any

import boto3
from botocore import awsrequest
from botocore.config import Config
from botocore.session import get_session
from botocore.utils import parse_timestamp
from django.conf import settings
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

from datastores.drivers.base import CONNECT_SECONDS
from datastores.drivers.patience import ANSWER_SECONDS, Allowance, SecureSocket, Socket
from portal.network import outgoing

# Bodies that fit into a connection's buffers are sent without `Expect: 100-continue`, which saves a round trip.
UNASKED = 2**20


class _Patient:
    """Mixin for both kinds of connections: gives each request a new allowance."""

    allowance: Allowance

    def putrequest(self, *args: Any, **options: Any) -> None:
        self.allowance = Allowance()
        super().putrequest(*args, **options)  # type: ignore[misc]

    def send(self, data: Any) -> Any:
        connection: Any = self
        if connection.sock is None:
            connection.connect()
        connection.sock.allowance = self.allowance
        return super().send(data)  # type: ignore[misc]

    def getresponse(self) -> Any:
        answer = super().getresponse()  # type: ignore[misc]
        if answer.status >= 300:
            # The body is an error message, not the file.
            self.allowance.is_file = False
        return answer

    def _new_conn(self) -> Any:
        to: Any = self
        try:
            return Socket.of(outgoing.connect(to.host, to.port, settings.OUTGOING, CONNECT_SECONDS))
        except socket.gaierror as error:
            raise NameResolutionError(to.host, to, error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(to, str(error)) from error
        except OSError as error:
            raise NewConnectionError(to, str(error)) from error


class _Connection(_Patient, awsrequest.AWSHTTPConnection):  # type: ignore[misc]
    pass


class _SecureConnection(_Patient, awsrequest.AWSHTTPSConnection):  # type: ignore[misc]
    def connect(self) -> None:
        assert self.ssl_context is not None, "botocore gives one"
        self.ssl_context.sslsocket_class = SecureSocket
        super().connect()


class _Pool(awsrequest.AWSHTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(awsrequest.AWSHTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_session_lock = threading.Lock()


@lru_cache(maxsize=1)
def _session() -> boto3.session.Session:
    inner = get_session()
    inner.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time)
    return boto3.session.Session("unused", "unused", botocore_session=inner)  # see client_for


def _time(value: Any) -> dt.datetime:
    """Parses times of lists: botocore's own parser for all formats takes half of the time of a list. Raises ValueError."""
    try:
        try:
            found = dt.datetime.fromisoformat(value)
        except (TypeError, ValueError):
            found = parse_timestamp(value)
        return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (RuntimeError, OverflowError) as error:
        raise ValueError("a time that cannot be") from error


@lru_cache(maxsize=32)
def client_for(server: str, access_key: str, secret: str, region: str) -> Any:
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"total_max_attempts": 1},
        max_pool_connections=16,
        # No proxy, whatever the environment says: it would connect without the checks of portal/network/outgoing.py.
        proxies={},
        s3={"addressing_style": "path"},
        # By default botocore presigns URLs with the older signature, which does not cover headers.
        signature_version="s3v4",
        # Not all other servers support the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    with _session_lock:
        client = _session().client(
            "s3",
            endpoint_url=server,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret,
            region_name=region,
            config=config,
        )
    client.meta.events.register("before-call.s3", _stay_here)
    client.meta.events.register_last("before-call.s3", _unasked)
    # botocore has no public way to check a connection's address; a test covers this private one.
    session = client._endpoint.http_session
    session._pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    session._manager.pool_classes_by_scheme = session._pool_classes_by_scheme
    return client


def _stay_here(params: dict[str, Any], **_: Any) -> None:
    """Marks a region redirect as already followed, because botocore would follow a redirect loop for ever."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _unasked(params: dict[str, Any], **_: Any) -> None:
    if isinstance(params["body"], bytes) and len(params["body"]) <= UNASKED:
        params["headers"].pop("Expect", None)
