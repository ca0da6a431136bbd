"""What everything is called. Pure.

A run's base name is `<appcode>-<cluster>-<number>-<id>`: the front is for people and is cut when it is too long, the id of
the run is what makes it unique for ever (a deleted cluster's name and run numbers may come again while its pods still end).

Guarantees, for every run and role:
- A name is a DNS label (RFC 1035: a letter, then letters, digits and '-') of at most 63 characters, hostnames of tasks included.
- Names of different runs differ, and so do the names of different objects of one kind within a run.
- Names of roles have at most 52 characters: a StatefulSet's pods carry `<name>-<10 characters>` as a label value.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusters.clouds.drivers.base import RunRef, VolumeRef
from clusters.clouds.drivers.hostnames import BASE_LIMIT as BASE_LIMIT
from clusters.clouds.drivers.hostnames import ROLE_LIMIT as ROLE_LIMIT
from clusters.clouds.drivers.hostnames import base_name as base_name
from clusters.clouds.drivers.hostnames import host_name as host_name
from clusters.clouds.drivers.hostnames import label
from clusters.clouds.drivers.hostnames import role_name as role_name

COMMON = "app.kubernetes.io"
PREFIX = "gpu-cloud"
MANAGER = "gpu-cloud"

# The finalizer of pods (removed once their end is in the database) and of the owner (once RunGone is).
METERING = f"{PREFIX}/metering"
TOLD = f"{PREFIX}/told"

PORTAL = f"{PREFIX}/portal"
APPCODE = f"{PREFIX}/appcode"
CLUSTER = f"{PREFIX}/cluster"
RUN = f"{PREFIX}/run"
RUN_ID = f"{PREFIX}/run-id"
ROLE = f"{PREFIX}/role"
ENDPOINT = f"{PREFIX}/endpoint"
OWNER = f"{PREFIX}/owner"
DATASTORE = f"{PREFIX}/datastore"
VOLUME_ID = f"{PREFIX}/volume-id"

# On the claims of saved environments and of cached inputs what is in them, and on owners what their runs use of them; when a run
# that does was put there last, and how many bytes were asked for.
ENVIRONMENT = f"{PREFIX}/environment"
CACHE = f"{PREFIX}/cache"
USED = f"{PREFIX}/used"
BYTES = f"{PREFIX}/bytes"

# Which pod of a service's task this is, from 0 (and then absent): nobody else counts them.
ATTEMPT = f"{PREFIX}/attempt"
# Why a run's output is not where it belongs, noted on its owner.
NOT_STORED = f"{PREFIX}/not-stored"

# On the owner: what makes the pods of the run, as "Job/<name> Deployment/<name>"; and that the portal wants it to end.
WORKLOADS = f"{PREFIX}/workloads"
ENDING = f"{PREFIX}/ending"
# The settings with which the run was started.
SETTINGS = f"{PREFIX}/settings"
# The finalizer of the Job controller, until it has counted a pod.
COUNTED = "batch.kubernetes.io/job-tracking"

# What tasks of a run reach each other at, and the name of that port.
PORT, TASK = 2222, "task"
LABEL_LIMIT = 63
# Of a task below 1,000: `<role>-<index>.<base>:<port>`.
LONGEST_ADDRESS = ROLE_LIMIT + len("-999") + len(".") + BASE_LIMIT + len(f":{PORT}")


def owner_name(run: RunRef) -> str:
    """The ConfigMap that owns everything of the run and holds what its tasks share."""
    return f"{base_name(run)}-run"


def registries_name(run: RunRef) -> str:
    """Of the Secret by which its images are fetched."""
    return f"{base_name(run)}-registries"


def secret_name(run: RunRef) -> str:
    """Of the keys of its data, and of the variables that are secret."""
    return f"{base_name(run)}-secret"


def endpoint_name(run: RunRef, endpoint: str) -> str:
    """The Service and the Ingress of an endpoint."""
    return f"{base_name(run)}-{endpoint}"


def portal_name(run: RunRef) -> str:
    """The Service by which a gateway in the namespace of the run reaches the portal; longer than any name of an endpoint."""
    return f"{base_name(run)}-gateway-to-portal"


def volume_name(run: RunRef, mount: int) -> str:
    """The claim of the run's mount number `mount`."""
    return f"{base_name(run)}-volume{mount}"


def persistent_volume_name(run: RunRef, mount: int) -> str:
    """What is behind that claim. It lies in no namespace, and portals that share a Kubernetes cluster count their runs alike;
    a namespace belongs to one of them."""
    return f"{run.namespace}-{volume_name(run, mount)}"


def claim_name(volume: VolumeRef) -> str:
    """The claim of a datastore's volume, which outlives runs; never the name of one that belongs to a run."""
    return label(f"{volume.appcode}-{volume.datastore}", f"-{volume.id}-data", LABEL_LIMIT)


def environment_claim(appcode: str, key: str) -> str:
    """The claim of an appcode's saved environment; never the name of one that belongs to a run or a datastore."""
    return label(f"{appcode}-environment", f"-{key[:16]}", LABEL_LIMIT)


def cache_claim(appcode: str, key: str) -> str:
    """The claim of an input that an appcode's runs share; never the name of any other."""
    return label(f"{appcode}-cache", f"-{key[:16]}", LABEL_LIMIT)


def address(run: RunRef, role: str, index: int) -> str:
    """`host:port` of one task, from any pod of its namespace; it needs no object to exist yet.

    Pods look in their own namespace first (https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/), so this
    is found by the first question; a name with the namespace would be found by the third.
    """
    return f"{host_name(run, role, index)}.{base_name(run)}:{PORT}"


def common_labels(name: str, instance: str, part_of: str) -> dict[str, str]:
    """Those by which other tools group objects
    (https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/). Nothing here looks for them."""
    return {
        f"{COMMON}/name": name,
        f"{COMMON}/instance": instance,
        f"{COMMON}/part-of": part_of,
        f"{COMMON}/managed-by": PREFIX,
    }


def run_labels(portal: str, run: RunRef) -> dict[str, str]:
    """On everything of a run. `portal` tells installations apart that share a Kubernetes cluster."""
    return {
        **common_labels(run.cluster, base_name(run), run.appcode),
        PORTAL: portal,
        APPCODE: run.appcode,
        CLUSTER: run.cluster,
        RUN: str(run.number),
        RUN_ID: str(run.id),
    }


def run_selector(portal: str, run: RunRef) -> dict[str, str]:
    """The labels by which an object finds the pods of its run: portals count their runs alike."""
    return {PORTAL: portal, RUN_ID: str(run.id)}


def volume_labels(portal: str, volume: VolumeRef) -> dict[str, str]:
    """No run is named: what is done to all that belongs to one leaves volumes alone."""
    return {
        **common_labels(volume.datastore, claim_name(volume), volume.appcode),
        PORTAL: portal,
        APPCODE: volume.appcode,
        DATASTORE: volume.datastore,
        VOLUME_ID: str(volume.id),
    }


def role_labels(portal: str, run: RunRef, role: str) -> dict[str, str]:
    return {**run_labels(portal, run), f"{COMMON}/component": role, ROLE: role}


def selector(**labels: str | int) -> str:
    """A label selector from short names: `selector(portal="main", run_id=3)`."""
    return ",".join(f"{PREFIX}/{name.replace('_', '-')}={value}" for name, value in labels.items())


def run_id_of(labels: Mapping[str, str]) -> int | None:
    """The run that an object belongs to; None when its labels are not ours or were changed by hand."""
    text = labels.get(RUN_ID, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
