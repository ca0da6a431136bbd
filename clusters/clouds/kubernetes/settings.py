"""What an administrator decides for a Kubernetes cluster, and the words of its GPUs. Pure.

`Settings` is stored as JSON with the cluster and read by `Settings.read`, which says at which field something is wrong; the
administrators' form and REST show every field with its title and description, so a new field needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter
from pydantic.dataclasses import dataclass

# The extended resource of NVIDIA's device plugin, and the label that its discovery puts on nodes.
GPU = "nvidia.com/gpu"
GPU_MODEL = "nvidia.com/gpu.product"

Label = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
# The name of an object of the cluster, "" for none.
Name = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")]
Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?([mkMGTPE]|[KMGTPE]i)?$")]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Settings:
    """What an administrator decides once for a Kubernetes cluster.

    `portal` names this installation. `quota` is the `hard` of a ResourceQuota in every business line's namespace, `{}` for
    none: appcodes have quotas of their own. `runtime_class` is that of tasks with GPUs.
    """

    portal: Label = Field(
        default="portal",
        title="Portal label",
        description="Names this installation on its objects; portals that share a Kubernetes cluster need different ones.",
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
    priority_class: Name = Field(
        default="", title="Priority class", description="Of every task. Empty for the cluster's own."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", title="Image pull policy", description="When nodes fetch an image."
    )
    store_seconds: int = Field(
        default=120,
        title="Seconds to store",
        description="How long a task that was stopped may still store its output.",
        ge=0,
        le=3600,
    )
    quota: Mapping[str, Quantity] | None = Field(
        default=None,
        title="Quota of a namespace",
        description="The hard limits of a ResourceQuota in every business line's namespace, e.g. requests.nvidia.com/gpu=16. "
        "Empty for none: appcodes have quotas of their own.",
    )

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Settings:
        """Raises pydantic's ValidationError."""
        return _ADAPTER.validate_python(dict(stored))

    def json_value(self) -> dict[str, Any]:
        """What differs from the defaults, so that better defaults reach clusters that were registered before."""
        value: dict[str, Any] = _ADAPTER.dump_python(self, mode="json", exclude_defaults=True)
        return value


_ADAPTER = TypeAdapter(Settings)
