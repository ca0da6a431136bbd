"""The web server: two processes that share what was loaded before they forked, with threads for requests that wait."""

import os
from pathlib import Path
from typing import Any

from portal.monitoring import logs

bind = os.environ.get("PORTAL_WEB_BIND") or f"127.0.0.1:{os.environ['PORTAL_WEB_PORT']}"
workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
worker_class = "gthread"
# A live log or a terminal holds a thread while it is open. Three remain for pages when all places of portal/web/limits.py
# are taken.
threads = 20
# `make dev`: changes of code or templates restart the processes, which therefore have to load the code themselves.
reload = os.environ.get("PORTAL_DEBUG", "").lower() in ("1", "true", "yes", "on")
reload_extra_files = [str(path) for path in Path("templates").rglob("*.*")] if reload else []
preload_app = not reload
timeout = 60
graceful_timeout = int(os.environ.get("PORTAL_WEB_GRACE", "3"))
keepalive = 75
worker_tmp_dir = "/dev/shm"  # noqa: S108  a heartbeat on a slow disk would look like a hang
# Its default place is in the home folder, where two portals of the same user would conflict.
control_socket_disable = True
# Headers must not set the scheme or the path (portal/web/gateway.py).
forwarded_allow_ips = ""
accesslog = "-"
access_log_format = "%(s)s %(m)s %(U)s %(M)sms"
logconfig_dict = logs.config(os.environ.get("PORTAL_LOG_FORMAT", "line"), os.environ.get("PORTAL_LOG_LEVEL", "INFO"))


def post_worker_init(worker: Any) -> None:
    """Lets terminals close properly before their process ends."""
    from portal.web import websocket  # needs the settings, which are not loaded yet when this file is read

    websocket.is_stopping = lambda: not worker.alive
