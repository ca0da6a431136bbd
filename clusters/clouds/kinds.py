"""The kinds of clouds. To add one: write a driver in a folder of `drivers/` and add it to DRIVERS."""

from __future__ import annotations

from collections.abc import Mapping

from clusters.clouds.drivers.base import Cloud, KeepsVolumes, MeasuresGpus, RunsCommands, SamplesTasks
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.local.client import LocalCloud

DRIVERS: dict[str, type[Cloud]] = {driver.kind: driver for driver in (LocalCloud, KubernetesCloud)}
# Clouds that are part of the portal: one of each kind, named after it.
OWN = frozenset(kind for kind, driver in DRIVERS.items() if not driver.is_remote)
# Optional abilities, in the words that pages use.
ABILITIES: Mapping[type, str] = {
    KeepsVolumes: "volumes",
    RunsCommands: "commands inside tasks",
    MeasuresGpus: "measured GPUs",
    SamplesTasks: "what tasks use of their machines",
}


def lacks(driver: type[Cloud]) -> str:
    """Returns a sentence on what clouds of this kind cannot do, or ""."""
    missing = [name for ability, name in ABILITIES.items() if not issubclass(driver, ability)]
    return f"Without {', '.join(missing)}." if missing else ""
