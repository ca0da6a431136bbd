"""The web server: two processes that share what is loaded before they fork, with threads for requests that wait."""

import os
from pathlib import Path
from typing import Any

from portal import logs

bind = os.environ.get("PORTAL_WEB_BIND") or f"127.0.0.1:{os.environ['PORTAL_WEB_PORT']}"
workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
worker_class = "gthread"
# A live log or a terminal holds a thread while it is open: three are left for pages when all of portal/limits.py are taken.
threads = 20
# `make dev`: a change of code or of a template starts the processes anew, which have to load the code themselves for that.
reload = os.environ.get("PORTAL_DEBUG", "").lower() in ("1", "true", "yes", "on")
reload_extra_files = [str(path) for path in Path("templates").rglob("*.*")] if reload else []
preload_app = not reload
timeout = 60
graceful_timeout = int(os.environ.get("PORTAL_WEB_GRACE", "3"))
keepalive = 75
worker_tmp_dir = "/dev/shm"  # noqa: S108  a heartbeat on a slow disk would look like a hang
# Its place would be in the home folder, where a second portal of the same user wants it too.
control_socket_disable = True
# Neither scheme nor path is told by headers (portal/gateway.py).
forwarded_allow_ips = ""
accesslog = "-"
access_log_format = "%(s)s %(m)s %(U)s %(M)sms"
logconfig_dict = logs.config(os.environ.get("PORTAL_LOG_FORMAT", "line"), os.environ.get("PORTAL_LOG_LEVEL", "INFO"))


def post_worker_init(worker: Any) -> None:
    """Terminals say goodbye before their process ends."""
    from portal import websocket  # needs the settings, which this file is read before

    websocket.is_stopping = lambda: not worker.alive
