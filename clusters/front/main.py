"""`manage.py front --host HOST --port PORT`: one front, by the settings of the portal.

Of Django it has the settings alone: models and pages are memory that each process of a portal would hold for months.
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

from clusters.front import program


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="manage.py front", description="Takes the requests to services.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--table", type=Path, help="Where it keeps who answers, for a start without the database.")
    given = parser.parse_args(argv)
    logging.config.dictConfig(settings.LOGGING)
    path = given.table or settings.DATA_DIR / "front" / f"{given.port}.json"
    where = program.Where(settings.SERVE_DOMAIN, settings.SERVE_PORT, settings.SERVE_USUAL_PORT)
    # The name of a pod is that of its machine.
    name = f"{socket.gethostname()[:63]}:{given.port}"
    database = address(settings.DATABASES["default"])
    asking = program.run(
        given.host, given.port, database=database, path=path, name=name, where=where, form=settings.LOG_FORMAT
    )
    # What was loaded until here lives as long as the program: no request waits until it was looked through for garbage.
    gc.freeze()
    return asyncio.run(asking)


def address(database: Mapping[str, Any]) -> str:
    """The database as libpq has it."""
    user, password = (quote(str(database.get(name) or ""), safe="") for name in ("USER", "PASSWORD"))
    options = {**database.get("OPTIONS", {})}
    # A folder with a socket stands behind.
    host, port = str(database.get("HOST") or ""), str(database.get("PORT") or "")
    options |= {key: value for key, value in (("host", host), ("port", port)) if value}
    who = f"{user}{f':{password}' if password else ''}@" if user else ""
    return f"postgresql://{who}/{quote(str(database['NAME']), safe='')}?{urlencode(options)}"
