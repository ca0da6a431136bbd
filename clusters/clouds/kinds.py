"""The kinds of clouds. To add one: a driver in a folder of `drivers/`, and its line here."""

from __future__ import annotations

from collections.abc import Mapping

from clusters.clouds.drivers.base import Cloud, KeepsVolumes, MeasuresGpus, RunsCommands
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.local.client import LocalCloud

DRIVERS: dict[str, type[Cloud]] = {driver.kind: driver for driver in (LocalCloud, KubernetesCloud)}
# Clouds that are a part of the portal: of each kind there is one, which has its name.
OWN = frozenset(kind for kind, driver in DRIVERS.items() if not driver.is_remote)
# What a cloud may be unable to do, as pages say it.
ABILITIES: Mapping[type, str] = {
    KeepsVolumes: "volumes",
    RunsCommands: "commands inside tasks",
    MeasuresGpus: "measured GPUs",
}


def lacks(driver: type[Cloud]) -> str:
    """What a cloud of this kind is not able to do, in a sentence, or ""."""
    missing = [name for ability, name in ABILITIES.items() if not issubclass(driver, ability)]
    return f"Without {', '.join(missing)}." if missing else ""
