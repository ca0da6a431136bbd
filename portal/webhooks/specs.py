"""Webhooks as values: manifest, kinds of events, message body, signature and retries. Pure.

Messages follow the Standard Webhooks specification, so receivers can use its libraries. The same event always gives the
same body and id, so that a receiver can detect duplicates.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints
from standardwebhooks import Webhook as Signer

from portal.manifests import DnsLabel, Manifest, Strict, stripped
from portal.manifests.kept import Kept

MAX_URL = 500
MAX_EVENTS = 50
# Bytes of a response that are stored.
MAX_EXCERPT = 1024

# The first word of all kinds of events with a description; the most used groups come first.
GROUPS = {
    "run": "Runs: queued, starting, running, succeeded, failed, stopped; GPU-seconds and cost when they end",
    "task": "Tasks that failed, commands run inside tasks",
    "cluster": "Clusters: created, changed, deployed, restarted, disabled, deleted",
    "pipeline": "Pipelines: created, changed, started, cancelled, retried, succeeded, failed, stopped, deleted",
    "schedule": "Schedules: created, changed, deleted, could not start something",
    "sweep": "Sweeps: created, changed, paused, resumed, cancelled, succeeded, failed, deleted",
    "benchmark": "Benchmarks: created, paused, resumed, cancelled, succeeded, failed, deleted",
    "invoice": "Invoices closed, credit notes",
    "budget": "Budgets: changed, steps reached, what they did",
    "price": "Prices added and withdrawn",
    "discount": "Discounts",
    "credit": "Credits",
    "datastore": "Datastores: created, changed, shared, files stored, removed and restored, rules",
    "storage": "Object storage: switched on, keys refreshed and stopped, limit changed, nearly full",
    "environment": "Environments: saved, deleted",
    "template": "Templates of clusters: created, changed, deleted",
    "hook": "Hooks of runs: created, changed, deleted",
    "model": "Models: created, registered, alias moved and removed, retention rule, versions deleted, deleted",
    "service": "Services: created, changed, rolled out and back, scaled, degraded, drift, disabled, tokens, deleted",
    "git": "Git tokens: saved, removed",
    "appcode": "The appcode itself: members, requests, quota, expiry",
    "webhook": "Webhooks: changed, tested, disabled",
}
# Events outside any appcode; only global webhooks get them.
PLATFORM_GROUPS = {
    "month": "Months closed", "prices": "Price lists imported", "person": "People", "token": "API tokens",
    "org": "Business lines", "branding": "Branding", "invoicing": "What invoices state",
    "kubernetes": "Kubernetes clusters registered and changed",
    "cloud": "What clouds say of themselves", "window": "Maintenance and reservations of nodes",
    "flavor": "Flavors", "image": "Images", "folder": "Allowed folders",
    "registry": "Registries of images", "plugin": "Plugins of images", "servingruntime": "Serving runtimes",
    "demo": "The demonstration",
}  # fmt: skip
EVERYTHING = "*"

_KIND = re.compile(r"\*|[a-z]+\.\*|[a-z]+(\.[a-z_-]+)+")
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|[0-9a-f:.]+")


@dataclass(frozen=True)
class Target:
    """The parsed URL: `host` in lower case, without brackets; `path` with its query."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def name(self) -> str:
        """The Host header: with the port only if it is not the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def target(url: str) -> Target:
    """Parses a URL. Raises ValueError with a sentence for people."""
    if not _PRINTABLE.fullmatch(url):
        raise ValueError("Write it in ASCII without spaces, a name in other letters in its xn-- form.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError("This is not a URL.") from error
    host = (parts.hostname or "").removesuffix(".")
    if parts.scheme not in ("https", "http") or not _HOST.fullmatch(host) or len(host) > 253 or port == 0:
        raise ValueError("Give the URL of a server, like https://example.com/hooks/gpu.")
    if "@" in parts.netloc:
        raise ValueError("Leave user and password out: messages are signed instead.")
    if parts.fragment:
        raise ValueError("Leave the part from “#” on out: it is never sent.")
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(secure, host, port or (443 if secure else 80), path)


def _url(value: str) -> str:
    target(value)
    return value


def _kind(value: str) -> str:
    if not _KIND.fullmatch(value) or len(value) > 60:
        raise ValueError(f"“{value[:60]}” is no kind of events; write them like run.failed, run.* or *.")
    return value


def _once(value: list[str]) -> list[str]:
    return list(dict.fromkeys(value))


Url = Annotated[
    str, BeforeValidator(stripped), StringConstraints(min_length=1, max_length=MAX_URL), AfterValidator(_url)
]
Kind = Annotated[str, BeforeValidator(stripped), AfterValidator(_kind)]


def _not_new(value: str) -> str:
    if value == "new":
        raise ValueError("“new” is the address of the form; choose another name.")
    return value


class WebhookMetadata(Strict):
    name: Annotated[DnsLabel, AfterValidator(_not_new), Kept("A name cannot be changed; make another webhook.")]


class WebhookSpec(Strict):
    """Where to send which events. `events` are kinds like `run.failed`, groups like `run.*`, or `*`."""

    url: Url
    events: Annotated[
        list[Kind], Field(min_length=1, max_length=MAX_EVENTS, examples=[["run.*", "invoice.closed"]]), AfterValidator(_once)
    ]  # fmt: skip
    enabled: bool = True


class WebhookManifest(Manifest):
    """`{"kind":"webhook","metadata":{"name"},"spec":{…}}`; `status` is ours and is ignored in requests."""

    kind: Literal["webhook"] = "webhook"
    metadata: WebhookMetadata
    spec: WebhookSpec


# Messages


def body(facts: Mapping[str, Any]) -> bytes:
    """The message of an event: `facts` has id, at, actor, kind, appcode, object, message, details (see `sending.facts`)."""
    data = {key: facts[key] for key in ("id", "actor", "appcode", "object", "message", "details")}
    moment = facts["at"].astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return orjson.dumps({"type": facts["kind"], "timestamp": moment, "data": data})


def headers(message: str, secrets: Sequence[str], content: bytes, at: dt.datetime) -> dict[str, str]:
    """Signed with every current secret: while one is being replaced, a receiver may know either."""
    signatures = [Signer(secret).sign(message, at, content.decode()) for secret in secrets]
    return {
        "content-type": "application/json",
        "user-agent": "gpu-cloud-portal",
        "webhook-id": message,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


# Retries

FIRST_WAIT, LONGEST_WAIT = dt.timedelta(seconds=5), dt.timedelta(hours=12)
TRY_FOR = dt.timedelta(days=3)
# Spreads deliveries that failed together.
JITTER = 0.2


def wait(attempts: int, chance: float) -> dt.timedelta:
    """The delay after attempt number `attempts`: four times as long each time. `chance` is from 0 to 1."""
    grown = min(LONGEST_WAIT, FIRST_WAIT * 4 ** min(attempts - 1, 10))
    return dt.timedelta(seconds=grown.total_seconds() * (1 + JITTER * (2 * chance - 1)))
