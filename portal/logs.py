"""How programs of the portal write their logs: lines for people, or one JSON object a line for what collects them.

Web server, workers and management commands alike; gunicorn.conf.py and celery.py leave it to this.
"""

from __future__ import annotations

import logging
from typing import Any

# Asked every few seconds by whoever watches over us; that it was asked is no news.
PROBES = ("/healthz", "/readyz")


def config(form: str, level: str) -> dict[str, Any]:
    """For logging.config.dictConfig. `form`: "line" on stderr, "json" on stdout."""
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
        "filters": {"no_probes": {"()": "portal.logs.NoProbes"}},
        "handlers": {
            "portal": {"class": "logging.StreamHandler", "formatter": formatter, "stream": f"ext://sys.{stream}"},
        },
        "root": {"handlers": ["portal"], "level": level},
        "loggers": {
            "django.request": {"level": "ERROR"},
            "kombu": {"level": "WARNING"},
            # A sweep every few seconds is no news; what a task does is told by itself, and a failure is an error.
            **{name: {"level": "WARNING"} for name in ("celery.beat", "celery.worker.strategy", "celery.app.trace")},
            "gunicorn.error": {"level": "INFO", "handlers": [], "propagate": True},
            "gunicorn.access": {"level": "INFO", "handlers": [], "propagate": True, "filters": ["no_probes"]},
        },
    }


class NoProbes(logging.Filter):
    """Drops gunicorn's access lines of health checks that went well."""

    def filter(self, record: logging.LogRecord) -> bool:
        atoms = record.args
        return not (isinstance(atoms, dict) and atoms.get("U") in PROBES and atoms.get("s") == "200")
