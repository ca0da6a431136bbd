"""An administrator's settings for a Kubernetes cluster, and the names of GPU resources. Pure.

`Settings` is stored as JSON with the cluster and parsed by `Settings.read`, whose errors name the field. The administrators'
form and REST show every field with its title and description, so a new field needs nothing else.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from clusters.admission.demand import GPU as GPU
from clusters.clouds.drivers.closed_networks import NEAR

# The labels that the discovery of NVIDIA's and AMD's device plugins puts on nodes.
GPU_MODEL = "nvidia.com/gpu.product"
AMD_MODEL = "amd.com/gpu.product-name"
# Seconds; longer than most registry outages.
IMAGE_SECONDS = 900

_TAINT = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9./_-]{0,252})(?:=([A-Za-z0-9._-]{0,63}))?(?::(NoSchedule|PreferNoSchedule|NoExecute))?"
)
_UNITS = {
    **{unit: 1000**power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)},
}


def quantity(text: str) -> float:
    """Returns a Kubernetes quantity ("500m", "96", "768Gi") as a number."""
    number = text.rstrip("mkKMGTPEi")
    unit = text.removeprefix(number)
    return float(number) / 1000 if unit == "m" else float(number) * _UNITS.get(unit, 1)


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as error:
        raise ValueError("Write networks like 10.20.0.0/16, and a single address like 10.20.0.7/32.") from error


def _taint(value: str) -> str:
    if not _TAINT.fullmatch(value):
        raise ValueError("Write taints as kubectl does: key=value:NoSchedule, or key:NoSchedule for any value.")
    return value


def _address(value: str) -> str:
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if value and (
        not good or "@" in parts.netloc or parts.query or parts.fragment or not value.isascii() or " " in value
    ):
        raise ValueError("Write an address like https://prometheus.example.org or http://10.0.0.9:9090/prometheus.")
    return value.rstrip("/")


def toleration(taint: str) -> dict[str, str]:
    """Returns the toleration for a taint in kubectl's syntax; without a value it matches any value, without an effect all."""
    found = _TAINT.fullmatch(taint)
    assert found
    key, value, effect = found.groups()
    wanted = {"operator": "Exists"} if value is None else {"operator": "Equal", "value": value}
    return {"key": key, **wanted, **({"effect": effect} if effect else {})}


def _matches(pattern: str, sentence: str) -> AfterValidator:
    """Returns a validator that explains the pattern when it does not match."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(sentence)
        return value

    return AfterValidator(check)


Network = Annotated[str, AfterValidator(_network)]
Taint = Annotated[str, AfterValidator(_taint)]
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_QUANTITY = r"[0-9]+(\.[0-9]+)?([mkMGTPE]|[KMGTPE]i)?"
_LABELS = "Use at most 63 lower-case letters, digits and '-' inside of them."
_QUANTITIES = "Write quantities as Kubernetes does: 16, 500m or 20Gi."
Label = Annotated[str, _matches(_LABEL, _LABELS)]
LabelOrNone = Annotated[str, _matches(f"({_LABEL})?", _LABELS)]
# Name of an object in the cluster, "" for none.
Name = Annotated[
    str,
    _matches(
        r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?", "Names there have lower-case letters, digits, '-' and '.' inside."
    ),
]
LabelValue = Annotated[
    str, _matches(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", "Write labels as key=value, as kubectl does.")
]
LabelName = Annotated[
    str,
    _matches(
        r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?",
        "Write names of labels as Kubernetes does: rack, or example.com/rack.",
    ),
]
Quantity = Annotated[str, _matches(_QUANTITY, _QUANTITIES)]
QuantityOrNone = Annotated[str, _matches(f"({_QUANTITY})?", _QUANTITIES)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Settings:
    """An administrator's settings for one Kubernetes cluster.

    `portal` names this installation. `quota` is the `hard` of a ResourceQuota in every business line's namespace, `{}` for none,
    because appcodes have their own quotas. `runtime_class` is for tasks with GPUs.
    """

    portal: Label = Field(
        default="portal",
        title="Portal label",
        description="Names this installation on its objects and namespaces; portals that share a Kubernetes cluster need "
        "different ones. Left as it is, one of this portal's own is made.",
    )
    storage_image: str = Field(
        default="gpu-cloud/rclone:1.75",
        title="Storage image",
        description="Fetches input and stores output; built from docker/rclone.",
        min_length=1,
        max_length=300,
    )
    runtime_class: Name = Field(
        default="", title="Runtime class", description="Of tasks with GPUs, e.g. nvidia. Empty for the cluster's own."
    )
    batch_priority_class: Name = Field(
        default="",
        title="Priority class of batch runs",
        description="Of all tasks of a run that comes to an end. Empty for the cluster's own.",
    )
    service_priority_class: Name = Field(
        default="",
        title="Priority class of services",
        description="Of all tasks of a run that is kept alive. Empty for the cluster's own.",
    )
    tolerations: tuple[Taint, ...] = Field(
        default=(),
        title="Tolerated taints",
        description="Of every task, as kubectl writes taints, e.g. team=ml:NoSchedule. Tasks with GPUs tolerate "
        "nvidia.com/gpu:NoSchedule anyway.",
    )
    topology: Annotated[tuple[LabelName, ...], Field(max_length=4)] = Field(
        default=("topology.kubernetes.io/zone",),
        title="Topology labels",
        description="Labels of nodes that say where they are, from wide to narrow, e.g. topology.kubernetes.io/zone, "
        "example.com/rack. The tasks of a run go into one of the narrowest that holds them all.",
    )
    kueue_queue: LabelOrNone = Field(
        default="",
        title="Kueue queue",
        description="The LocalQueue of every business line's namespace through which runs go. Empty without Kueue.",
    )
    nodes_on_demand: bool = Field(
        default=False,
        title="Nodes on demand",
        description="A cluster autoscaler or Karpenter makes nodes when tasks wait. The portal then hands every run over at once "
        "and holds none back, and cannot promise that all tasks of a run start together.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", title="Image pull policy", description="When nodes fetch an image."
    )
    image_seconds: int = Field(
        default=IMAGE_SECONDS,
        title="Seconds to wait for an image",
        description="A run that has never run ends as failed when nodes could not pull an image of it for so long, and gives its "
        "GPUs back.",
        ge=1,
        le=86_400,
    )
    store_seconds: int = Field(
        default=120,
        title="Seconds to store",
        description="How long a task that has ended may still store its output, and waits for a store that is away.",
        ge=0,
        le=3600,
    )
    disk: QuantityOrNone = Field(
        default="50Gi",
        title="Disk of a task",
        description="How much a task may write to the node's disk, S3 data included; one that writes more is evicted. Empty "
        "for no limit: then one task can fill a node.",
    )
    disk_request: Quantity = Field(
        default="1Gi",
        title="Reserved disk of a task",
        description="How much of that is kept free for it on its node, so that no more tasks go there than fit.",
    )
    largest_task: Mapping[str, Quantity] | None = Field(
        default=None,
        title="Largest task",
        description="What one container may have at most, e.g. cpu=64, memory=512Gi, nvidia.com/gpu=8. Empty for no limit.",
    )
    largest_volume: Quantity = Field(
        default="1Ti", title="Largest volume", description="How large the volume of a datastore may be."
    )
    storage_classes: tuple[Name, ...] = Field(
        default=(),
        title="Storage classes",
        description="Those that volumes of datastores may have, e.g. ceph-rbd, cephfs. Empty for any.",
    )
    package_index: Annotated[str, AfterValidator(_address)] = Field(
        default="",
        title="Package index",
        description="From where tasks install packages, e.g. http://packages.gpu-cloud-packages.svc:3141/simple, which is "
        "docker/kubernetes/packages and knows the password that yours may want. Open to all tasks; of one outside the "
        "cluster that is given by its name, the port on any public address. Empty: none, and no saved environments.",
        max_length=300,
    )
    tracking: Annotated[str, AfterValidator(_address)] = Field(
        default="",
        title="Tracking for tasks",
        description="Where programs record parameters and metrics by MLflow's client, e.g. "
        "http://packages.gpu-cloud-packages.svc:3141, which is docker/kubernetes/packages and leads to the portal. Open to all "
        "tasks. Empty: they get no MLFLOW_TRACKING_URI.",
        max_length=300,
    )
    environment_class: Name = Field(
        default="",
        title="Storage class of environments",
        description="One whose volumes several pods mount (ReadWriteMany) and lock files in, e.g. cephfs: a saved environment is "
        "made once for an appcode. Empty: anew at the start of each task, on the disk of its node.",
    )
    environment_size: Quantity = Field(
        default="20Gi", title="Size of an environment", description="Of the volume that each has where it is made once."
    )
    cache_class: Name = Field(
        default="",
        title="Storage class of cached inputs",
        description="One whose volumes several pods mount (ReadWriteMany) and lock files in, e.g. cephfs: a version of an input "
        "is copied once for all runs of an appcode that read it. Empty: no input is cached.",
    )
    cache_space: Quantity = Field(
        default="1Ti",
        title="Space of cached inputs",
        description="Of the volumes of all of them; where one more has no room, those that were used longest ago go, but none "
        "that a run reads. Without room a run copies its input; one whose manifest says cache waits.",
    )
    storage_namespaces: tuple[Label, ...] = Field(
        default=(),
        title="Namespaces with storage",
        description="Where S3 servers inside the cluster run that tasks may reach by names like minio.storage.svc.",
    )
    storage_networks: tuple[Network, ...] = Field(
        default=(),
        title="Networks with storage",
        description="Where S3 servers with private addresses lie that tasks may reach, e.g. 10.20.0.7/32. Other private "
        "addresses, those of nodes, pods and services among them, are never reached.",
    )
    gateway: Literal["", "traefik", "nginx"] = Field(
        default="",
        title="Gateway",
        description="The ingress controller by which people open what tasks serve: traefik or nginx (ingress-nginx). Empty: "
        "nothing is served there. What it has to be told first is in docs/deployment.md.",
    )
    gateway_namespace: LabelOrNone = Field(
        default="",
        title="Namespace of the gateway",
        description="From there, and from nowhere else, the ports that tasks serve at are reached. A gateway needs it.",
    )
    router_namespace: LabelOrNone = Field(
        default="",
        title="Namespace of the service routers",
        description="Where routers of services run (docker/kubernetes/router.yaml): from there the replicas of services are "
        "reached. Empty: the namespace of the gateway.",
    )
    gateway_pods: Mapping[str, LabelValue] | None = Field(
        default=None,
        title="Pods of the gateway",
        description="Labels of its pods in that namespace, e.g. app.kubernetes.io/name=traefik. Empty for all pods there.",
    )
    gateway_portal: Annotated[str, AfterValidator(_address)] = Field(
        default="http://web.gpu-cloud.svc.cluster.local",
        title="Portal for the gateway",
        description="Where an nginx gateway asks the portal who comes. (A traefik one is told by its middlewares.)",
        max_length=300,
    )
    gateway_address: Annotated[str, AfterValidator(_address)] = Field(
        default="",
        title="Gateway for the portal",
        description="Where the portal looks whether it leads to an endpoint, and asks notebooks whether they work, e.g. "
        "http://traefik.traefik.svc.cluster.local. "
        "Empty: where the names of endpoints lead.",
        max_length=300,
    )
    ingress_class: Name = Field(
        default="", title="Ingress class", description="Of the Ingress of each endpoint. Empty for the cluster's own."
    )
    ingress_annotations: Mapping[str, str] | None = Field(
        default=None,
        title="Ingress annotations",
        description="Further ones of the Ingress of each endpoint, or others in the place of the portal's.",
    )
    apps_domain: Name = Field(
        default="",
        title="Domain of applications",
        description="Endpoints there are called <endpoint>-<cluster>-<appcode> below it, and *.<domain> leads to the gateway. "
        "Empty: that of the portal; a second cluster with a gateway needs one of its own.",
    )
    apps_certificate: Name = Field(
        default="",
        title="Certificate of applications",
        description="A Secret with the certificate of *.<domain>, in the namespace of each business line. Empty: the "
        "gateway's own.",
    )
    closed_networks: tuple[Network, ...] = Field(
        default=NEAR,
        title="Closed networks",
        description="What tasks never reach, whatever their datastores and the networks with storage say; by default the "
        "metadata services of clouds. Public addresses of nodes and of the API server belong here too.",
    )
    dns_addresses: tuple[Network, ...] = Field(
        default=(),
        title="Addresses of DNS",
        description="Only where tasks do not ask kube-dns in kube-system itself, e.g. 169.254.20.10/32 for NodeLocal DNSCache.",
    )
    quota: Mapping[str, Quantity] | None = Field(
        default=None,
        title="Quota of a namespace",
        description="The hard limits of a ResourceQuota in every business line's namespace, e.g. requests.nvidia.com/gpu=16. "
        "Empty for none: appcodes have quotas of their own.",
    )

    prometheus: Annotated[str, AfterValidator(_address)] = Field(
        default="",
        title="Prometheus",
        description="The address of the one that scrapes NVIDIA's DCGM exporter, e.g. http://10.20.0.9:9090: asked once a minute "
        "how busy GPUs are while they are held. Empty: nobody measures that.",
        max_length=300,
    )

    @property
    def serves(self) -> bool:
        """Whether people can open endpoints of tasks."""
        return bool(self.gateway and self.gateway_namespace)

    @property
    def task_disk(self) -> dict[str, str]:
        """A task's limit and reservation of the node's disk, as `limits` and `requests`; empty without a limit."""
        if not self.disk:
            return {}
        largest = (self.largest_task or {}).get("ephemeral-storage", self.disk)
        limit = min(self.disk, largest, key=quantity)
        return {"limits": limit, "requests": min(self.disk_request, limit, key=quantity)}

    @property
    def reserved_disk(self) -> float:
        """Bytes that a task's program reserves of its node's disk."""
        return quantity(self.task_disk.get("requests", "0"))

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Settings:
        """Parses stored settings. Raises pydantic's ValidationError."""
        return _ADAPTER.validate_python(dict(stored))

    @classmethod
    def readable(cls, stored: Mapping[str, Any]) -> Settings:
        """Parses stored settings without fields that this version cannot read, to show and save them again."""
        try:
            return cls.read(stored)
        except ValidationError as error:
            wrong = {str(each["loc"][0]) for each in error.errors()}
            return cls.read({name: value for name, value in stored.items() if name not in wrong})

    def json_value(self) -> dict[str, Any]:
        """Returns values that differ from the defaults, so that registered clusters get improved defaults."""
        value: dict[str, Any] = _ADAPTER.dump_python(self, mode="json", exclude_defaults=True)
        return value


_ADAPTER = TypeAdapter(Settings)
