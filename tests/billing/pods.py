"""Pods of a billing test, as clouds report them, and their recording."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from django.db import transaction

from billing.metering import record as metering_record
from billing.metering.segments import PodState

# Two hours before the end of a month.
T0 = dt.datetime(2026, 3, 31, 22, tzinfo=dt.UTC)
HOUR = 3600


def at(seconds: float) -> dt.datetime:
    return T0 + dt.timedelta(seconds=seconds)


def pod(
    appcode: int, uid: str = "p-1", *, begin: int = 0, end: int | None = HOUR, kind: str = "", **held: object
) -> PodState:
    """`kind`: its priority class, where it is not normal."""
    labels = {"cluster": "show1", "run": "1", "role": "worker", "index": "0", "framework": "tensorflow", "user": "bob"}
    labels |= {"class": kind} if kind else {}
    held = {"gpus": 1, "cpu_milli": 1500, "memory_mb": 2048} | held
    state = PodState(
        uid, "local", appcode, "run 1", labels, "Running", scheduled_at=at(begin), started_at=at(begin), **held
    )
    return state if end is None else replace(state, phase="Succeeded", finished_at=at(end))


def record(*states: PodState) -> None:
    with transaction.atomic():
        metering_record.record(states)
