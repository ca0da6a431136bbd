"""The programs of one machine: the servers, then the portal's own, each with as little memory as it needs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from portal import assets
from portal.up import servers, services
from portal.up.data import Data, host_of
from portal.up.services import Service
from portal.up.storage_address import bracketed

# Paths whose request bodies are passed on while they arrive, because files are large; the web server checks the sender before it
# reads. Every path segment is explicit, because users choose names and may choose "files" or "exec".
_ONE = "/api/v1/appcodes/[^/]+"
UPLOADS = f"(PathPrefix(`/uploads/`) || (Method(`PUT`) && PathRegexp(`^{_ONE}/datastores/[^/]+/files/`)))"
# For all other requests the gateway buffers the whole body first, so that slow senders occupy no thread of the web server. The
# limit is above the portal's own, so that nearly always the portal itself answers that a body is too large.
MAX_BODY, BODY_IN_MEMORY = 4 * 2**20, 64 * 2**10
# Maximum size in bytes of the portal's answer to the gateway: a page that explains a refusal.
JUDGEMENT = 64 * 2**10
# Middleware that buffers bodies also delays answers, but the output of a command must arrive while it runs.
COMMANDS = f"(Method(`POST`) && PathRegexp(`^{_ONE}/clusters/[^/]+/runs/[^/]+/tasks/[^/]+/[^/]+/exec$`))"
HAS_BODY = f"!Method(`GET`) && !Method(`HEAD`) && !{UPLOADS} && !{COMMANDS}"
# Time limit for receiving a whole request, the largest upload included.
READ_TIMEOUT = "1h"

# S3 keys may contain any character; keep the percent-encoding that the client signed.
ENCODED = dict.fromkeys(
    (
        "allowEncodedSlash",
        "allowEncodedBackSlash",
        "allowEncodedSemicolon",
        "allowEncodedPercent",
        "allowEncodedQuestionMark",
        "allowEncodedHash",
    ),
    True,
)

# Leaves memory to training: few allocator arenas, and no threads of numeric libraries in the portal.
FRUGAL = {"MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def own_servers(data: Data) -> list[Service]:
    """Returns PostgreSQL and Valkey, unless the environment names them."""
    found = []
    if not data.given.get("DATABASE_URL"):
        found.append(servers.postgres(data.folder / "postgres", data.sockets, log=data.logs / "initdb.log"))
    if not data.given.get("REDIS_URL"):
        found.append(servers.valkey(data.folder / "valkey", data.sockets))
    return found


def portal(data: Data, env: Mapping[str, str]) -> list[Service]:
    """Returns the portal's programs. Those that serve users stop first, then the agent with its tasks, then the controller."""
    web_port = data.inner_port("web")
    env = {**env, **FRUGAL}
    celery = (sys.executable, "-m", "celery", "--app", "portal")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO")
    packages = servers.package_index(Path(env["LOCAL_CLOUD_SOCKET"]), data.given, data.origin)
    return [
        packages,
        servers.node_agent(
            Path(env["LOCAL_CLOUD_DIR"]),
            Path(env["LOCAL_CLOUD_SOCKET"]),
            data.given,
            shared=data.given.get("PORTAL_SHARED_MACHINE", "0") not in ("0", "false", "no", ""),
            packages=packages.url,
        ),
        Service("controller", (sys.executable, "manage.py", "controller"), env=env, stop_order=2, background=True),
        Service(
            "worker",
            (*celery, "worker", "--pool", "threads", "--concurrency", "8", *quiet),
            env={**env, "PORTAL_BEAT_SCHEDULE": str(data.folder / "tmp" / "beat")},
            background=True,
        ),
        Service(
            "web",
            (sys.executable, "-m", "gunicorn", "--config", "portal/gunicorn.conf.py", "portal.wsgi"),
            ready=services.http_ready(web_port),
            env={
                **env,
                "PORTAL_WEB_PORT": str(web_port),
                "PORTAL_GATEWAY_SECRET": data.secrets["PORTAL_GATEWAY_SECRET"],
            },
            with_group=True,
        ),
        router(data, env),
        gateway(data, web_port),
    ]


def router(data: Data, env: Mapping[str, str]) -> Service:
    """Returns the router of services (clusters/router/). When stopped, it still answers the requests that it has accepted."""
    port, table = data.inner_port("router"), data.folder / "tmp" / "router.json"
    return Service(
        "router",
        (sys.executable, "manage.py", "router", "--port", str(port), "--table", str(table)),
        ready=services.http_ready(port),
        env=env,
        stop_seconds=35.0,
    )


def storage(data: Data, env: Mapping[str, str]) -> Service | None:
    """Returns the portal's own object storage, or None if the environment names another."""
    if data.given.get("PORTAL_STORAGE_URL"):
        return None
    ports = data.inner_port("storage-door"), data.inner_port("storage-store")
    return servers.storage(data.storage_folder, *ports, {**env, **FRUGAL})


def gateway(data: Data, web_port: int) -> Service:
    """Returns Traefik on PORTAL_PORT. It serves the portal's own names, those of services (*.serve.<domain>), which the
    router answers, and those of users' endpoints (*.apps.<domain>). An endpoint has a route of its own while it answers
    (clusters/runs/routing.py writes it next to these); the portal answers for all others.

    Traefik proves to the web server that a request came through it. It listens on every loopback address that browsers try
    for the portal's names, because another program on one of them would receive the portal's cookies.
    """
    hosts = sorted({host_of(data.origin), "localhost", "127.0.0.1"})
    rule = " || ".join(f"Host(`{host}`)" for host in hosts)
    proof = {"X-Portal-Gateway": data.secrets["PORTAL_GATEWAY_SECRET"]}
    buffering = {"maxRequestBodyBytes": MAX_BODY, "memRequestBodyBytes": BODY_IN_MEMORY}
    web, apps, serve = f"http://127.0.0.1:{web_port}", host_of(data.apps_origin), host_of(data.serve_origin)
    to_router = f"http://127.0.0.1:{data.inner_port('router')}"
    bodies = f"({rule}) && {HAS_BODY}"
    routes: dict[str, Any] = {
        "http": {
            "routers": {
                "portal": {"rule": rule, "service": "portal", "middlewares": ["proof"]},
                # The longer rule has priority.
                "bodies": {"rule": bodies, "service": "portal", "middlewares": ["proof", "whole-bodies"]},
                "apps": {
                    "rule": f"HostRegexp(`^[a-z0-9-]+[.]{re.escape(apps)}$`)",
                    "priority": 1,
                    "service": "portal",
                    "middlewares": ["proof", "whole-bodies"],
                },
                # The router reads bodies itself, and the portal is not asked.
                "services": {
                    "rule": f"HostRegexp(`^[a-z0-9-]+[.]{re.escape(serve)}$`)",
                    "service": "service-router",
                    "middlewares": ["no-proof"],
                },
                # Pages of the portal inside an application take priority over the endpoint's own route.
                "inside": {
                    "rule": f"HostRegexp(`^[a-z0-9-]+[.]{re.escape(apps)}$`) && (Path(`/.portal/idle`) || Path(`/.portal/keep`))",
                    "priority": 10_000,
                    "service": "portal",
                    "middlewares": ["proof", "whole-bodies"],
                },
            },
            "middlewares": {
                "proof": {"headers": {"customRequestHeaders": proof}},
                "whole-bodies": {"buffering": buffering},
                # Asks the portal about each request. The headers listed here are replaced by those of its answer, or removed.
                "who": {
                    "forwardAuth": {
                        "address": f"{web}/gateway/judge",
                        "authResponseHeaders": ["Cookie", "Authorization", "X-Portal-User", "X-Portal-Gateway"],
                        "maxResponseBodySize": JUDGEMENT,
                        "trustForwardHeader": False,
                    }
                },
                "no-proof": {"headers": {"customRequestHeaders": {"X-Portal-Gateway": ""}}},
                # Replaces the gateway's own error if a program does not listen any more.
                "trouble": {"errors": {"status": ["502", "504"], "service": "portal", "query": "/gateway/trouble"}},
            },
            "services": {
                "portal": {"loadBalancer": {"servers": [{"url": web}]}},
                "service-router": {
                    "loadBalancer": {"servers": [{"url": to_router}], "responseForwarding": {"flushInterval": "20ms"}}
                },
            },
        }
    }
    storage = {} if data.given.get("PORTAL_STORAGE_URL") else _storage_entry(data, routes["http"])
    # JSON is valid YAML and needs no library.
    folder = services.private_folder(data.gateway_folder)
    services.write_private(folder / "routes.yaml", json.dumps(routes, indent=2))
    # Python programs cannot tell X_Portal_User from X-Portal-User.
    names = {"aliasHeadersStrategy": "delete"}
    timeouts = {"respondingTimeouts": {"readTimeout": READ_TIMEOUT}}
    addresses = {
        f"web{n}": {"address": f"{address}:{data.port}", "transport": timeouts, "http": names, "asDefault": True}
        for n, address in enumerate(services.loopback())
    }
    static = {
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "log": {"level": "ERROR", "noColor": True},
        "entryPoints": addresses | storage,
        # Apply new routes at once, but batch bursts of them.
        "providers": {"providersThrottleDuration": "100ms", "file": {"directory": str(folder), "watch": True}},
    }
    config = data.folder / "tmp" / "traefik.yaml"
    services.write_private(config, json.dumps(static, indent=2))
    return Service(
        "gateway",
        (services.program("traefik"), f"--configFile={config}"),
        ready=services.http_ready(data.port),
        env={"GOGC": "50", "GOMEMLIMIT": "96MiB", "TMPDIR": str(data.folder / "tmp")},
    )


def _storage_entry(data: Data, routes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the entry point for S3 on a port of its own. Keys are any text and signatures cover every character, so paths
    are neither normalised nor refused here. The door is asked about each request first (datastores/storage/door.py). A host
    name on the portal's port would not do, because few clients resolve names below localhost."""
    door, store = (f"http://127.0.0.1:{data.inner_port(name)}" for name in ("storage-door", "storage-store"))
    at = data.storage_at
    beyond = [bracketed(at.host)] if at and not at.url else []
    entries = {
        f"storage{n}": {
            "address": f"{address}:{data.storage_port}",
            "transport": {"respondingTimeouts": {"readTimeout": READ_TIMEOUT}},
            "http": {"sanitizePath": False, "encodedCharacters": ENCODED},
        }
        for n, address in enumerate([*services.loopback(), *beyond])
    }
    routes["routers"]["storage"] = {
        "rule": "PathPrefix(`/`)",
        "entryPoints": [*entries],
        "service": "storage",
        "middlewares": ["storage-cors", "storage-door", "storage-proof"],
    }
    # Only pages of the portal may upload parts of files here, with presigned URLs.
    port = data.origin.removeprefix("http://" + host_of(data.origin))
    routes["middlewares"]["storage-cors"] = {
        "headers": {
            "accessControlAllowOriginList": [data.origin, f"http://localhost{port}", f"http://127.0.0.1{port}"],
            "accessControlAllowMethods": ["PUT"],
            "accessControlMaxAge": 600,
            "addVaryHeader": True,
        }
    }
    routes["middlewares"]["storage-door"] = {
        "forwardAuth": {
            "address": door,
            # Keep equal to HEARD in datastores/storage/door.py.
            "authRequestHeaders": [
                "Authorization",
                "X-Amz-Copy-Source",
                "X-Amz-Server-Side-Encryption",
                "X-Amz-Decoded-Content-Length",
                "X-Amz-Content-Sha256",
            ],
            "maxResponseBodySize": JUDGEMENT,
            "trustForwardHeader": False,
        }
    }
    proof = {servers.STORAGE_PROOF: data.secrets["PORTAL_STORAGE_PROOF"]}
    routes["middlewares"]["storage-proof"] = {"headers": {"customRequestHeaders": proof}}
    routes["services"]["storage"] = {"loadBalancer": {"servers": [{"url": store}]}}
    return entries


def static_files_changed(base: Path, data: Data) -> bool:
    """Returns True if `collectstatic` has something to do. It takes seconds, which a restart should not."""
    stamp = _stamp(data)
    return not (stamp.exists() and (data.folder / "static").exists()) or stamp.read_text() != _static_state(base)


def static_files_done(base: Path, data: Data) -> None:
    if (data.folder / "static").exists():
        _stamp(data).write_text(_static_state(base))


def _stamp(data: Data) -> Path:
    """A file next to the folder, because everything inside is served."""
    return data.folder / "static.stamp"


def _static_state(base: Path) -> str:
    """Returns a string that changes with a static file or the set of packages, which bring their own."""
    digest = hashlib.sha256((base / "requirements.txt").read_bytes())
    for root in (base / "static", assets.FOLDER):
        for folder, folders, names in os.walk(root):
            folders.sort()
            for path in (Path(folder) / name for name in sorted(names)):
                digest.update(f"{path.relative_to(root)} {path.stat().st_mtime_ns} {path.stat().st_size}\n".encode())
    return digest.hexdigest()
