"""`manage.py router --host HOST --port PORT`: runs one router with the portal's settings.

Loads Django's settings only: models and pages would occupy memory in this process for months.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging.config
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings

from clusters.router import http_server
from clusters.router.proxy import Where


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="manage.py router", description="Takes the requests to services.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--table", type=Path, help="Where it keeps who answers, for a start without the database.")
    given = parser.parse_args(argv)
    logging.config.dictConfig(settings.LOGGING)
    path = given.table or settings.DATA_DIR / "router" / f"{given.port}.json"
    where = Where(settings.SERVE_DOMAIN, settings.SERVE_PORT, settings.SERVE_USUAL_PORT)
    # In a pod the host name is the pod's name.
    name = f"{socket.gethostname()[:63]}:{given.port}"
    database = address(settings.DATABASES["default"])
    asking = http_server.run(
        given.host, given.port, database=database, path=path, name=name, where=where, form=settings.LOG_FORMAT
    )
    # Objects loaded so far live as long as the process: keep the garbage collector from scanning them during requests.
    gc.freeze()
    return asyncio.run(asking)


def address(database: Mapping[str, Any]) -> str:
    """Returns the database as a libpq URL."""
    user, password = (quote(str(database.get(name) or ""), safe="") for name in ("USER", "PASSWORD"))
    options = {**database.get("OPTIONS", {})}
    # Host and port go into the query, because the host may be the folder of a socket.
    host, port = str(database.get("HOST") or ""), str(database.get("PORT") or "")
    options |= {key: value for key, value in (("host", host), ("port", port)) if value}
    who = f"{user}{f':{password}' if password else ''}@" if user else ""
    return f"postgresql://{who}/{quote(str(database['NAME']), safe='')}?{urlencode(options)}"
