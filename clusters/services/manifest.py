"""The manifest of a service as one typed value, and the clusters that follow from it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from clusters.manifest.cluster import MAX_NAME, MODEL_NAME, ClusterManifest, Text
from clusters.manifest.env import MAX_ENV_VARIABLES, check_env
from portal.manifests import AppcodeName, DnsLabel, Manifest, Strict, field_error, parse
from portal.manifests.appcode import Line
from portal.manifests.kept import Kept

# With the number of a slot appended, it becomes a cluster's name.
MAX_SERVICE_NAME = 30
MAX_REPLICAS = 50
# More slots than replicas, because one may start while another drains.
MAX_SLOTS = 2 * MAX_REPLICAS + 2
ROLE = "server"
CatalogName = Annotated[str, StringConstraints(min_length=1, max_length=63)]
ServiceName = Annotated[DnsLabel, StringConstraints(max_length=MAX_SERVICE_NAME)]
assert MAX_SERVICE_NAME + len(f"-{MAX_SLOTS}") <= MAX_NAME


def name_of_model(text: str) -> str:
    """NAME of NAME@ALIAS or NAME/VERSION."""
    return re.split("[@/]", text)[0]


def _env(value: dict[str, str]) -> dict[str, str]:
    check_env(value)
    return value


class ReplicasSpec(Strict):
    """Number of replicas. With `least` below `most` it follows the requests in flight: as many as keep each at `target`."""

    least: int = Field(
        default=1, ge=0, le=MAX_REPLICAS, description="0: none while nobody asks; the next one who asks waits."
    )
    most: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    target: int = Field(default=4, ge=1, le=1000, description="Requests in flight that one replica is meant to have.")
    idle_after: int = Field(
        default=300,
        ge=30,
        le=86_400,
        description="With least 0: seconds without a request after which the last one ends.",
    )

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.least > self.most:
            raise field_error(f"At least {self.least} are more than at most {self.most}.", "most")
        return self


class RolloutSpec(Strict):
    """What happens when the alias that it follows moves, or its definition changes."""

    follow: Literal["automatic", "gate", "never"] = Field(
        default="automatic",
        description="When the alias moves: roll out at once; wait until somebody agrees; do nothing until somebody deploys.",
    )
    kind: Literal["rolling", "canary", "shadow"] = "rolling"
    weight: int = Field(
        default=10, ge=1, le=99, description="Of a canary: per cent of the requests that it answers first."
    )
    minutes: int = Field(default=10, ge=1, le=1440, description="Of a canary or shadow: for how long it is compared.")
    promote: Literal["automatic", "by-hand"] = Field(
        default="automatic", description="What follows when it was no worse for so long."
    )
    when_full: Literal["wait", "replace", "cpu"] = Field(
        default="wait",
        description="Where no GPU is free for one more replica: wait for one; end an old one first, with an outage where it "
        "is the only one; or let the new ones answer on `cpuFlavor`.",
    )
    cpu_flavor: CatalogName | None = None
    keep_warm: int = Field(
        default=60, ge=0, le=3600, description="Seconds for which the old replicas stay after a promotion, so that going back is "
        "a moment. They cost what they hold.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _cpu(self) -> Self:
        if (self.when_full == "cpu") != (self.cpu_flavor is not None):
            raise field_error("Name a flavor without GPU if and only if whenFull is 'cpu'.", "cpuFlavor")
        return self


class ServiceSpec(Strict):
    """A service: what answers, with how many replicas, and how it changes."""

    model: Annotated[
        str,
        StringConstraints(pattern=MODEL_NAME),
        Kept("A service keeps its model; create another one for this.", part=name_of_model),
    ] = Field(
        examples=["digits@champion"], description="NAME@ALIAS, followed as `rollout.follow` says, or NAME/VERSION."
    )
    image: CatalogName | None = Field(
        default=None, description="With what the model was made with. Left out for a runtime that is a container."
    )
    environment: str | None = Field(
        default=None, description="A saved environment over the image: NAME or NAME:VERSION."
    )
    runtime: CatalogName = Field(
        default="portal", description="The program that serves it, an entry of /serving-runtimes."
    )
    flavor: CatalogName
    command: Text = Field(default="", description="What to run before the server.")
    env: Annotated[dict[str, Text], Field(max_length=MAX_ENV_VARIABLES), AfterValidator(_env)] = Field(
        default_factory=dict
    )
    replicas: ReplicasSpec = ReplicasSpec()
    rollout: RolloutSpec = RolloutSpec()
    request_seconds: int = Field(default=60, ge=1, le=600, description="The longest time that one request may take.")


class ServiceMetadata(Strict):
    name: Annotated[ServiceName, Kept("A service keeps its name: its callers have its address.")]
    appcode: Annotated[AppcodeName, Kept("A service stays in its appcode; create another one there.")]


class ServiceManifest(Manifest):
    """`{"kind":"service","metadata":{"name","appcode"},"spec":{…}}`. The portal writes `status` and ignores it in requests."""

    kind: Literal["service"] = "service"
    metadata: ServiceMetadata
    spec: ServiceSpec


class DeploySpec(Strict):
    """What should answer from now on. Omitted fields are as the service defines them."""

    version: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="Of its model; null: the one that its alias names now."
    )
    kind: Literal["rolling", "canary", "shadow"] | None = None
    weight: int | None = Field(default=None, ge=1, le=99)
    minutes: int | None = Field(default=None, ge=1, le=1440)
    promote: Literal["automatic", "by-hand"] | None = None
    reason: Annotated[Line, StringConstraints(max_length=300)] = ""


class ScaleSpec(Strict):
    """Number of replicas from now on: a single number, or a range in which it follows the requests."""

    replicas: int | None = Field(default=None, ge=0, le=MAX_REPLICAS)
    least: int | None = Field(default=None, ge=0, le=MAX_REPLICAS)
    most: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    target: int | None = Field(default=None, ge=1, le=1000)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.replicas is None) == (self.least is None and self.most is None and self.target is None):
            raise field_error("Say replicas, or least, most or target.", "replicas")
        return self


class TokenSpec(Strict):
    """A token for one caller."""

    name: Annotated[Line, StringConstraints(min_length=1, max_length=40)] = Field(examples=["checkout"])
    per_second: int | None = Field(default=None, ge=1, le=100_000, description="Requests a second at most.")
    at_once: int | None = Field(default=None, ge=1, le=10_000, description="Requests in flight at most.")
    days: int | None = Field(default=None, ge=1, le=3650, description="After how many days it ends.")


def replica_name(service: str, slot: int) -> str:
    """Name of the cluster in a slot; slots count from 1."""
    return f"{service}-{slot}"


def cluster_spec(
    spec: ServiceSpec,
    version: int,
    server: dict[str, Any] | None = None,
    flavor: str = "",
    env: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The cluster spec of each replica of a revision. `version` is the model's. `flavor` replaces the service's. `server`
    describes a runtime other than the portal's own; its `env` applies where the service sets nothing else. Without an image,
    the replica runs in its runtime's container, and the runtime's name is used as the image."""
    return {
        "framework": "serving", "image": spec.image or spec.runtime, "environment": spec.environment,
        "model": f"{name_of_model(spec.model)}/{version}", "command": spec.command, "env": {**env, **spec.env},
        "roles": {ROLE: {"flavor": flavor or spec.flavor}}, **({"server": server} if server else {}),
    }  # fmt: skip


def replica_manifest(service: str, appcode: str, slot: int, spec: dict[str, Any]) -> ClusterManifest:
    """The cluster of one replica; `spec` comes from `cluster_spec`."""
    metadata = {"name": replica_name(service, slot), "appcode": appcode}
    return parse(ClusterManifest, {"kind": "cluster", "metadata": metadata, "spec": spec})
