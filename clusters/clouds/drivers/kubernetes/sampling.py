"""What pods use of their nodes, from what the cluster has: the kubelets' statistics by the API server's node proxy, else those of
metrics-server; and for GPUs the Prometheus that scrapes NVIDIA's DCGM exporter.

The kubelet knows CPU, memory, network and disk; metrics-server CPU and memory alone. One request goes to each node that runs
tasks, at most MOST_NODES at a time: of more nodes each is asked less often. Answers are limited in time and size, and what is
malformed in them counts as not measured.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import orjson
import urllib3
from urllib3.exceptions import HTTPError

from clusters.clouds.drivers.base import CloudError, CloudRefused, GpuNow, Sample, Samples
from clusters.clouds.drivers.kubernetes import prometheus
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.api.errors import Forbidden
from clusters.clouds.drivers.kubernetes.settings import Settings, quantity

# Nodes that are asked in one turn, at once, and how much one may answer.
MOST_NODES, AT_ONCE, MOST_BYTES = 200, 8, 32 * 1024 * 1024
TIMEOUT = urllib3.Timeout(connect=3.0, read=5.0)
# Seconds after which what the portal may not read is tried again.
AGAIN = 600.0
METRICS = "/apis/metrics.k8s.io/v1beta1/pods"
NO_RIGHT = (
    "Network and disk of tasks are not known: the portal may not read the statistics of kubelets. An administrator allows it "
    "with docker/kubernetes/measuring.yaml."
)
NO_TRAFFIC = "The kubelets of this cluster do not tell the network traffic of pods."
NOTHING = (
    "What tasks use is not known: the portal may not read the statistics of kubelets, which an administrator allows with "
    "docker/kubernetes/measuring.yaml, and there is no metrics-server, which would tell CPU and memory."
)
NO_GPUS = (
    "An administrator installs NVIDIA's DCGM exporter, lets a Prometheus scrape it, and names that Prometheus in the settings of "
    "the cloud."
)


@dataclass(frozen=True)
class Place:
    """A running pod."""

    uid: str
    namespace: str
    name: str
    node: str


class Sampling:
    """Used by one thread."""

    def __init__(self, client: Client, settings: Settings, prometheus_token: str, selector: str) -> None:
        self._client, self._settings, self._token, self._selector = client, settings, prometheus_token, selector
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kubelets")
        self._first = 0
        # Until when the kubelets are not asked again.
        self._refused_until = 0.0

    def read(self, pods: Sequence[Place]) -> Samples:
        """Returns samples of these pods. Raises CloudError if nothing answers."""
        if not pods:
            return Samples()
        found, notes = self._usage(pods)
        gpus, note = self._gpus(pods)
        known = {uid: Sample(uid, time.time()) for uid in gpus} | {each.uid: each for each in found}
        found = [replace(each, gpus=gpus.get(each.uid, ())) for each in known.values()]
        return Samples(tuple(found), notes | ({"gpu": note} if note else {}))

    def _usage(self, pods: Sequence[Place]) -> tuple[list[Sample], dict[str, str]]:
        if time.monotonic() >= self._refused_until:
            try:
                found = self._kubelets(pods)
                return found, {"network": NO_TRAFFIC} if found and all(each.received is None for each in found) else {}
            except Forbidden:
                self._refused_until = time.monotonic() + AGAIN
        try:
            return list(of_metrics(self._client.get_once(METRICS, labelSelector=self._selector), pods)), {
                "network": NO_RIGHT
            }
        except (Forbidden, CloudRefused):
            return [], {"cpu": NOTHING}

    def _kubelets(self, pods: Sequence[Place]) -> list[Sample]:
        """Raises Forbidden. A node that does not answer leaves a gap."""
        nodes = sorted({pod.node for pod in pods})
        if len(nodes) > MOST_NODES:
            self._first = (self._first + MOST_NODES) % len(nodes)
            nodes = [*nodes, *nodes][self._first : self._first + MOST_NODES]
        wanted = {pod.uid for pod in pods}
        return [each for some in self._threads.map(self._kubelet, nodes) for each in some if each.uid in wanted]

    def _kubelet(self, node: str) -> list[Sample]:
        try:
            answer = self._client.open(f"/api/v1/nodes/{node}/proxy/stats/summary", TIMEOUT)
            try:
                data = answer.read(MOST_BYTES + 1)
            finally:
                answer.close()
        except Forbidden:
            raise
        except (CloudError, HTTPError):
            return []
        return list(of_summary(data)) if len(data) <= MOST_BYTES else []

    def _gpus(self, pods: Sequence[Place]) -> tuple[dict[str, tuple[GpuNow, ...]], str]:
        if not self._settings.prometheus:
            return {}, f"{prometheus.UNSET} {NO_GPUS}"
        try:
            told = prometheus.latest(self._settings.prometheus, self._token)
        except CloudError as error:
            return {}, str(error)
        found = {pod.uid: told[place] for pod in pods if (place := (pod.namespace, pod.name)) in told}
        return found, "" if told else f"{prometheus.SILENT} {NO_GPUS}"


def of_summary(data: bytes) -> Iterator[Sample]:
    """Yields the pods of a kubelet's /stats/summary (k8s.io/kubelet/pkg/apis/stats/v1alpha1)."""
    try:
        pods = orjson.loads(data)["pods"]
    except (ValueError, KeyError, TypeError):
        return
    for pod in pods if isinstance(pods, list) else ():
        try:
            cpu, memory, network = (pod.get(name) or {} for name in ("cpu", "memory", "network"))
            used = cpu.get("usageCoreNanoSeconds")
            yield Sample(
                str(pod["podRef"]["uid"]),
                _seconds(cpu["time"]),
                cpu_seconds=None if used is None else used / 1e9,
                memory_bytes=_whole(memory.get("workingSetBytes")),
                received=_whole(network.get("rxBytes")),
                sent=_whole(network.get("txBytes")),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            continue


def of_metrics(said: Mapping[str, Any], pods: Iterable[Place]) -> Iterator[Sample]:
    """Yields the pods of metrics-server's list (metrics.k8s.io/v1beta1 PodMetricsList), which it knows by name."""
    uids = {(pod.namespace, pod.name): pod.uid for pod in pods}
    for item in said.get("items") or ():
        try:
            uid = uids.get((item["metadata"]["namespace"], item["metadata"]["name"]))
            usage = [container["usage"] for container in item["containers"]]
            if uid is not None and usage:
                yield Sample(
                    uid,
                    _seconds(item["timestamp"]),
                    cores=sum(_cores(each["cpu"]) for each in usage),
                    memory_bytes=int(sum(quantity(each["memory"]) for each in usage)),
                )
        except (KeyError, TypeError, ValueError, AttributeError):
            continue


def _cores(text: str) -> float:
    """Returns a quantity of CPU; metrics-server writes nanocores."""
    for unit, size in (("n", 1e-9), ("u", 1e-6)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * size
    return quantity(text)


def _seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) and value >= 0 else None
