"""What runs on one machine: the servers, then the portal's own programs, each with the little memory that it needs."""

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

# Where bodies are passed on as they come, because files are large; the web server asks who sends them before it reads any. Each
# part of the address is said: people choose names, and one of these may be “files”, or “exec”.
_ONE = "/api/v1/appcodes/[^/]+"
UPLOADS = f"(PathPrefix(`/uploads/`) || (Method(`PUT`) && PathRegexp(`^{_ONE}/datastores/[^/]+/files/`)))"
# Of all other requests the gateway reads a body whole before the web server hears of it, so that whoever sends slowly holds none
# of its threads. Larger than what the portal reads, so that nearly always the portal itself says what is too large.
MAX_BODY, BODY_IN_MEMORY = 4 * 2**20, 64 * 2**10
# The longest answer of the portal to the gateway: a page that says why.
JUDGEMENT = 64 * 2**10
# A middleware that reads bodies whole holds answers back, too: a command's output has to come while it runs.
COMMANDS = f"(Method(`POST`) && PathRegexp(`^{_ONE}/clusters/[^/]+/runs/[^/]+/tasks/[^/]+/[^/]+/exec$`))"
HAS_BODY = f"!Method(`GET`) && !Method(`HEAD`) && !{UPLOADS} && !{COMMANDS}"
# A request has come whole within this time, the largest upload included.
READ_TIMEOUT = "1h"

# Keys of S3 are any text, and their letters stay encoded as they were signed.
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

# A training run wants the memory: few allocator arenas, and no numeric library ever starts threads in the portal.
FRUGAL = {"MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def own_servers(data: Data) -> list[Service]:
    """Those of PostgreSQL and Valkey that the environment does not name already."""
    found = []
    if not data.given.get("DATABASE_URL"):
        found.append(servers.postgres(data.folder / "postgres", data.sockets, log=data.logs / "initdb.log"))
    if not data.given.get("REDIS_URL"):
        found.append(servers.valkey(data.folder / "valkey", data.sockets))
    return found


def portal(data: Data, env: Mapping[str, str]) -> list[Service]:
    """The portal's programs. Those that face people stop first, then the agent with its tasks, and the controller after it."""
    web_port = data.inner_port("web")
    env = {**env, **FRUGAL}
    celery = (sys.executable, "-m", "celery", "--app", "portal")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO")
    packages = servers.package_index(Path(env["LOCAL_CLOUD_SOCKET"]), data.given)
    return [
        *([packages] if packages else []),
        servers.node_agent(
            Path(env["LOCAL_CLOUD_DIR"]),
            Path(env["LOCAL_CLOUD_SOCKET"]),
            data.given,
            shared=data.given.get("PORTAL_SHARED_MACHINE", "0") not in ("0", "false", "no", ""),
            packages=packages.url if packages else "",
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
        front(data, env),
        gateway(data, web_port),
    ]


def front(data: Data, env: Mapping[str, str]) -> Service:
    """Takes the requests to services (clusters/front/). What it was asked before it is told to end it answers."""
    port = data.inner_port("front")
    return Service(
        "front",
        (sys.executable, "manage.py", "front", "--port", str(port), "--table", str(data.folder / "tmp" / "front.json")),
        ready=services.http_ready(port),
        env=env,
        stop_seconds=35.0,
    )


def storage(data: Data, env: Mapping[str, str]) -> Service | None:
    """The portal's own object storage, where the environment names none."""
    if data.given.get("PORTAL_STORAGE_URL"):
        return None
    ports = data.inner_port("storage-door"), data.inner_port("storage-store")
    return servers.storage(data.storage_folder, *ports, {**env, **FRUGAL})


def gateway(data: Data, web_port: int) -> Service:
    """Traefik on PORTAL_PORT: the portal's own names, those of services, for which the front answers (*.serve.<domain>), and
    those of what users serve (*.apps.<domain>). Each of these has a router of its own while it answers (clusters/runs/routing.py
    writes them beside these); the portal answers for all others.

    It proves to the web server that a request came through it, and listens on every loopback address that browsers try for the
    portal's names: what somebody else answered there would be sent the cookies of the portal.
    """
    hosts = sorted({host_of(data.origin), "localhost", "127.0.0.1"})
    rule = " || ".join(f"Host(`{host}`)" for host in hosts)
    proof = {"X-Portal-Gateway": data.secrets["PORTAL_GATEWAY_SECRET"]}
    buffering = {"maxRequestBodyBytes": MAX_BODY, "memRequestBodyBytes": BODY_IN_MEMORY}
    web, apps, serve = f"http://127.0.0.1:{web_port}", host_of(data.apps_origin), host_of(data.serve_origin)
    to_front = f"http://127.0.0.1:{data.inner_port('front')}"
    bodies = f"({rule}) && {HAS_BODY}"
    routes: dict[str, Any] = {
        "http": {
            "routers": {
                "portal": {"rule": rule, "service": "portal", "middlewares": ["proof"]},
                # The longer rule goes first.
                "bodies": {"rule": bodies, "service": "portal", "middlewares": ["proof", "whole-bodies"]},
                "apps": {
                    "rule": f"HostRegexp(`^[a-z0-9-]+[.]{re.escape(apps)}$`)",
                    "priority": 1,
                    "service": "portal",
                    "middlewares": ["proof", "whole-bodies"],
                },
                # Bodies are read by the front, and nothing is asked on the way.
                "services": {
                    "rule": f"HostRegexp(`^[a-z0-9-]+[.]{re.escape(serve)}$`)",
                    "service": "front",
                    "middlewares": ["no-proof"],
                },
                # What the portal says inside an application: before the router of its own.
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
                # Asks the portal of each request. A header that is named here is replaced by the one of the answer, or removed.
                "who": {
                    "forwardAuth": {
                        "address": f"{web}/gateway/judge",
                        "authResponseHeaders": ["Cookie", "Authorization", "X-Portal-User", "X-Portal-Gateway"],
                        "maxResponseBodySize": JUDGEMENT,
                        "trustForwardHeader": False,
                    }
                },
                "no-proof": {"headers": {"customRequestHeaders": {"X-Portal-Gateway": ""}}},
                # The gateway's own, of a program that does not listen any more.
                "trouble": {"errors": {"status": ["502", "504"], "service": "portal", "query": "/gateway/trouble"}},
            },
            "services": {
                "portal": {"loadBalancer": {"servers": [{"url": web}]}},
                "front": {
                    "loadBalancer": {"servers": [{"url": to_front}], "responseForwarding": {"flushInterval": "20ms"}}
                },
            },
        }
    }
    storage = {} if data.given.get("PORTAL_STORAGE_URL") else _storage_entry(data, routes["http"])
    # JSON is YAML, too, and needs no library.
    folder = services.private_folder(data.gateway_folder)
    services.write_private(folder / "routes.yaml", json.dumps(routes, indent=2))
    # Programs of Python take X_Portal_User for X-Portal-User.
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
        # New routes count at once; many at a time are taken together.
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
    """A port of its own for S3, whose keys are any text: nothing of an address is put in order or refused there, for its
    signature counts every letter. Of each request the door is asked first (datastores/storage/door.py). Not a name of the
    portal's own port: few clients know that localhost has names below it."""
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
    # Pages of the portal send parts of files here, at addresses that were signed for them; pages of nobody else.
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
            # HEARD of datastores/storage/door.py.
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
    """Whether `collectstatic` has something to do; it takes seconds, and a restart should not."""
    stamp = _stamp(data)
    return not (stamp.exists() and (data.folder / "static").exists()) or stamp.read_text() != _static_state(base)


def static_files_done(base: Path, data: Data) -> None:
    if (data.folder / "static").exists():
        _stamp(data).write_text(_static_state(base))


def _stamp(data: Data) -> Path:
    """Beside the folder, for everything in it is served."""
    return data.folder / "static.stamp"


def _static_state(base: Path) -> str:
    """Changes when a static file or the set of packages (which bring their own) changes."""
    digest = hashlib.sha256((base / "requirements.txt").read_bytes())
    for root in (base / "static", assets.FOLDER):
        for folder, folders, names in os.walk(root):
            folders.sort()
            for path in (Path(folder) / name for name in sorted(names)):
                digest.update(f"{path.relative_to(root)} {path.stat().st_mtime_ns} {path.stat().st_size}\n".encode())
    return digest.hexdigest()
