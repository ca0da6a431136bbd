"""Reads GPU utilization from the Prometheus that scrapes NVIDIA's DCGM exporter, with one query for all pods of a cluster.

Answers are untrusted: limited in time and size, and values outside 0 to 1 or without a pod are dropped. Series name the pod that
holds the GPU in `pod` and `namespace`, or in `exported_pod` and `exported_namespace` if Prometheus uses the former for the
exporter itself.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import orjson
import urllib3
from urllib3.exceptions import HTTPError

from clusters.clouds.drivers.base import CloudError, GpuNow

TIMEOUT = urllib3.Timeout(connect=3.0, read=8.0)
# Seconds for the whole answer, even if it arrives slowly.
SECONDS = 20.0
# Enough for 10 minutes of 30,000 pods.
MOST_BYTES = 64 * 1024 * 1024
MINUTE = dt.timedelta(minutes=1)
# Time after a minute until its last samples have been scraped.
SETTLED = dt.timedelta(seconds=30)
MOST_MINUTES = 10
UNSET = "Nothing measures how busy its GPUs are: its settings name no Prometheus."
SILENT = "Its Prometheus has no measurements of GPUs; is NVIDIA's DCGM exporter scraped there?"
NOT_PROMETHEUS = "Prometheus answered something that is not its API's; check the address."
_BY = "by (namespace, pod, exported_namespace, exported_pod)"
# Prefers the share of time in which the graphics engine was active, if the GPU reports it.
QUERY = (
    f"avg {_BY} (avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE[1m])) "
    f"or avg {_BY} (avg_over_time(DCGM_FI_DEV_GPU_UTIL[1m])) / 100"
)
# By pod and GPU: share and percent of time in which it was busy, and MiB of its memory in use.
_ENGINE, _BUSY, _MEMORY = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
LATEST = (
    "max by (__name__, gpu, namespace, pod, exported_namespace, exported_pod) "
    f'({{__name__=~"{_ENGINE}|{_BUSY}|{_MEMORY}"}})'
)
Place = tuple[str, str]


def minutes_due(since: str, now: dt.datetime) -> list[dt.datetime]:
    """Returns the starts of the complete minutes after the one at `since`, at most the latest MOST_MINUTES."""
    last = (now - SETTLED).replace(second=0, microsecond=0) - MINUTE
    try:
        first = dt.datetime.fromisoformat(since) + MINUTE
    except ValueError:
        first = last
    if first.tzinfo is None or first > last + 2 * MINUTE:
        # An invalid position, or one from a wrong clock.
        first = last
    first = max(first, last - (MOST_MINUTES - 1) * MINUTE)
    return [first + n * MINUTE for n in range(int((last - first) / MINUTE) + 1)]


def read(address: str, token: str, minutes: list[dt.datetime]) -> dict[tuple[dt.datetime, Place], float]:
    """Returns the utilization of pods (namespace, name) in these consecutive minutes. Raises CloudError."""
    asked = {
        "query": QUERY,
        "start": f"{(minutes[0] + MINUTE).timestamp():.0f}",
        "end": f"{(minutes[-1] + MINUTE).timestamp():.0f}",
        "step": "60",
    }
    return parse(_ask(f"{address.rstrip('/')}/api/v1/query_range", token, asked), minutes)


def latest(address: str, token: str) -> dict[Place, tuple[GpuNow, ...]]:
    """Returns the GPUs of all pods as they were scraped last. Raises CloudError."""
    return parse_latest(_ask(f"{address.rstrip('/')}/api/v1/query", token, {"query": LATEST}))


def parse_latest(data: bytes) -> dict[Place, tuple[GpuNow, ...]]:
    """Parses an answer for `latest`."""
    told: defaultdict[tuple[Place, str], dict[str, float]] = defaultdict(dict)
    try:
        answer = orjson.loads(data)
        if answer["status"] != "success" or answer["data"]["resultType"] != "vector":
            raise ValueError
        for each in answer["data"]["result"]:
            labels, value = each["metric"], float(each["value"][1])
            place, largest = _place(labels), {_ENGINE: 1.01, _BUSY: 101.0}.get(labels["__name__"], 2.0**40)
            if place[1] and math.isfinite(value) and 0 <= value <= largest:
                told[place, str(labels.get("gpu", ""))][labels["__name__"]] = value
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise CloudError(NOT_PROMETHEUS) from error
    found: defaultdict[Place, list[GpuNow]] = defaultdict(list)
    for (place, gpu), values in sorted(told.items()):
        share = values.get(_ENGINE)
        percent = values.get(_BUSY) if share is None else share * 100
        memory = values.get(_MEMORY)
        found[place].append(
            GpuNow(gpu, None if percent is None else min(percent, 100.0), None if memory is None else int(memory) << 20)
        )
    return {place: tuple(gpus) for place, gpus in found.items()}


def _place(labels: Mapping[str, str]) -> Place:
    place = labels.get("exported_namespace", ""), labels.get("exported_pod", "")
    return place if place[1] else (labels.get("namespace", ""), labels.get("pod", ""))


def parse(data: bytes, minutes: list[dt.datetime]) -> dict[tuple[dt.datetime, Place], float]:
    """Parses an answer for `read`. Averages several series of one pod, which occur when its exporter is replaced."""
    try:
        answer = orjson.loads(data)
        if answer["status"] != "success" or answer["data"]["resultType"] != "matrix":
            raise ValueError
        series: list[Any] = answer["data"]["result"]
        known = {(minute + MINUTE).timestamp(): minute for minute in minutes}
        found: defaultdict[tuple[dt.datetime, Place], list[float]] = defaultdict(list)
        for each in series:
            place = _place(each["metric"])
            for at, text in each["values"]:
                value = float(text)
                if at in known and math.isfinite(value) and 0 <= value <= 1.01:
                    found[known[at], place].append(min(value, 1.0))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise CloudError(NOT_PROMETHEUS) from error
    return {key: sum(values) / len(values) for key, values in found.items()}


def _ask(url: str, token: str, asked: dict[str, str]) -> bytes:
    headers = {"Accept": "application/json", "User-Agent": "gpu-cloud"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    deadline, data = time.monotonic() + SECONDS, bytearray()
    try:
        # No redirects: the token must not reach another server.
        with urllib3.PoolManager(retries=False, timeout=TIMEOUT) as pool:
            answer = pool.request(
                "GET", f"{url}?{urlencode(asked)}", headers=headers, preload_content=False, redirect=False
            )
            try:
                # `read1` returns what has arrived; `stream` would wait for a full piece.
                while piece := answer.read1(65536):
                    data += piece
                    if len(data) > MOST_BYTES:
                        raise CloudError(
                            f"Prometheus answered more than {MOST_BYTES >> 20} MiB; nothing of it is used."
                        )
                    if time.monotonic() > deadline:
                        raise CloudError(f"Prometheus did not answer within {SECONDS:.0f} s.")
            finally:
                answer.close()
    except (HTTPError, OSError, ValueError) as error:
        raise CloudError(f"Prometheus does not answer: {_plain(error)}.") from error
    if answer.status != 200:
        raise CloudError(_refusal(answer.status))
    return bytes(data)


def _refusal(status: int) -> str:
    if status in (401, 403):
        return f"Prometheus does not accept the token (HTTP {status}); give another one."
    if 300 <= status < 400:
        return f"Prometheus sends to another address (HTTP {status}); give the one that answers itself."
    return f"Prometheus answered HTTP {status}."


def _plain(error: Exception) -> str:
    """Returns a short reason without object addresses and without the query."""
    name = type(error).__name__.removesuffix("Error")
    words = {
        "NewConnection": "nothing listens at the address",
        "NameResolution": "its name is not known",
        "ConnectTimeout": "no connection within 3 s",
        "ReadTimeout": "no answer within 8 s",
        "SSL": "its certificate is not trusted",
        "Protocol": "the connection was cut off",
    }
    return words.get(name, name)
