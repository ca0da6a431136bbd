"""Logging of all programs of the portal: lines for people, or one JSON object per line for log collectors.

The web server, workers and management commands all use it; gunicorn.conf.py and celery.py leave logging to it.
"""

from __future__ import annotations

import logging
from typing import Any

# Health checks come every few seconds and are not logged.
PROBES = ("/healthz", "/readyz")


def config(form: str, level: str) -> dict[str, Any]:
    """A configuration for logging.config.dictConfig. `form`: "line" on stderr, "json" on stdout."""
    stream, formatter = ("stdout", "json") if form == "json" else ("stderr", "line")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"},
            "json": {
                "()": "pythonjsonlogger.json.JsonFormatter",
                "fmt": "%(asctime)s %(levelname)s %(name)s %(message)s",
                "datefmt": "%Y-%m-%dT%H:%M:%S%z",
                "rename_fields": {"asctime": "time", "levelname": "level", "name": "logger"},
            },
        },
        "filters": {"no_probes": {"()": "portal.monitoring.logs.NoProbes"}},
        "handlers": {
            "portal": {"class": "logging.StreamHandler", "formatter": formatter, "stream": f"ext://sys.{stream}"},
        },
        "root": {"handlers": ["portal"], "level": level},
        "loggers": {
            "django.request": {"level": "ERROR"},
            "kombu": {"level": "WARNING"},
            # Sweeps every few seconds need no lines; tasks log their own results, and failures are errors.
            **{name: {"level": "WARNING"} for name in ("celery.beat", "celery.worker.strategy", "celery.app.trace")},
            "gunicorn.error": {"level": "INFO", "handlers": [], "propagate": True},
            "gunicorn.access": {"level": "INFO", "handlers": [], "propagate": True, "filters": ["no_probes"]},
        },
    }


class NoProbes(logging.Filter):
    """Drops gunicorn's access-log lines of successful health checks."""

    def filter(self, record: logging.LogRecord) -> bool:
        atoms = record.args
        return not (isinstance(atoms, dict) and atoms.get("U") in PROBES and atoms.get("s") == "200")
