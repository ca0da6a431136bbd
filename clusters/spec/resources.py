"""What a task holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """What one task of a role holds; copied from the flavor when a run is made, because flavors change."""

    flavor: str
    cpu_milli: int
    memory_mb: int
    gpus: int
    gpu_model: str
