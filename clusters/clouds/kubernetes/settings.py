"""What an administrator decides for a Kubernetes cluster, and the words of its GPUs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The extended resource of NVIDIA's device plugin, and the label that its discovery puts on nodes.
GPU = "nvidia.com/gpu"
GPU_MODEL = "nvidia.com/gpu.product"


@dataclass(frozen=True)
class Settings:
    """What an administrator decides once for a Kubernetes cluster.

    `portal` names this installation. `quota` is the `hard` of a ResourceQuota in every business line's namespace, `{}` for
    none: appcodes have quotas of their own. `runtime_class` is that of tasks with GPUs.
    """

    portal: str = "portal"
    storage_image: str = "gpu-cloud/rclone:1.75"
    runtime_class: str = ""
    priority_class: str = ""
    image_pull_policy: str = "IfNotPresent"
    store_seconds: int = 120
    quota: Mapping[str, str] | None = None
