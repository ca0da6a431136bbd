"""Names of all objects. Pure.

A run's base name is `<appcode>-<cluster>-<number>-<id>`. The front is for people and is cut if too long; the id makes it unique
for ever (a deleted cluster's name and run numbers may be reused while its pods still end).

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
# Stops and resumes what makes the pods of a run in a Kueue queue, so that these changes are told from those that end a run.
QUEUE_MANAGER = "gpu-cloud-queue"

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

# On claims of saved environments and cached inputs: the key of the content; owners carry the keys that their runs use. USED: when
# a run last used the claim. BYTES: its requested size.
ENVIRONMENT = f"{PREFIX}/environment"
CACHE = f"{PREFIX}/cache"
USED = f"{PREFIX}/used"
BYTES = f"{PREFIX}/bytes"

# The attempt of a service's pod, from 0 (when it is absent), because Kubernetes does not count these.
ATTEMPT = f"{PREFIX}/attempt"
# On the owner: why the run's output was not stored.
NOT_STORED = f"{PREFIX}/not-stored"

# On the owner: the workloads to scale down when the run ends, as "Job/<name> Deployment/<name>"; in the same form all objects of
# the run that are watched; and a mark that the portal ends the run.
WORKLOADS = f"{PREFIX}/workloads"
OBJECTS = f"{PREFIX}/objects"
ENDING = f"{PREFIX}/ending"
# On the owner, until its pods have nodes: the API whose PodGroup binds all of them or none (render/gangs.py).
GANG = f"{PREFIX}/gang"
# On what the connection test makes and removes: the portal that tests.
PROBE = f"{PREFIX}/probe"
# How often the run was taken off the cluster before, on its owner.
LIFE = f"{PREFIX}/life"
# On the objects that make the pods of a run in a Kueue queue: the queue.
QUEUE = f"{PREFIX}/queue"
# The Job controller's finalizer, until it has counted a pod.
COUNTED = "batch.kubernetes.io/job-tracking"

# The port at which tasks of a run reach each other, and its name.
PORT, TASK = 2222, "task"
LABEL_LIMIT = 63
# For a task index below 1,000: `<role>-<index>.<base>:<port>`.
LONGEST_ADDRESS = ROLE_LIMIT + len("-999") + len(".") + BASE_LIMIT + len(f":{PORT}")


def owner_name(run: RunRef) -> str:
    """Returns the name of the ConfigMap that owns everything of the run and holds its shared variables."""
    return f"{base_name(run)}-run"


def workload_name(run: RunRef) -> str:
    """Returns the name of the Workload by which the run waits in a Kueue queue."""
    return base_name(run)


def registries_name(run: RunRef) -> str:
    """Returns the name of the pull secret."""
    return f"{base_name(run)}-registries"


def secret_name(run: RunRef) -> str:
    """Returns the name of the Secret with storage keys and secret variables."""
    return f"{base_name(run)}-secret"


def endpoint_name(run: RunRef, endpoint: str) -> str:
    """Returns the name of an endpoint's Service and Ingress."""
    return f"{base_name(run)}-{endpoint}"


def portal_name(run: RunRef) -> str:
    """Returns the name of the Service through which a gateway reaches the portal; longer than any endpoint's name."""
    return f"{base_name(run)}-gateway-to-portal"


def volume_name(run: RunRef, mount: int) -> str:
    """Returns the name of the claim for the run's mount number `mount`."""
    return f"{base_name(run)}-volume{mount}"


def persistent_volume_name(run: RunRef, mount: int) -> str:
    """Returns the name of that claim's volume. It has no namespace, so the name includes it: portals that share a cluster have
    equal run ids, but a namespace belongs to one of them."""
    return f"{run.namespace}-{volume_name(run, mount)}"


def claim_name(volume: VolumeRef) -> str:
    """Returns the name of a datastore's claim, which outlives runs; never equal to that of a run's claim."""
    return label(f"{volume.appcode}-{volume.datastore}", f"-{volume.id}-data", LABEL_LIMIT)


def environment_claim(appcode: str, key: str) -> str:
    """Returns the name of a saved environment's claim; never equal to that of a run's or datastore's claim."""
    return label(f"{appcode}-environment", f"-{key[:16]}", LABEL_LIMIT)


def cache_claim(appcode: str, key: str) -> str:
    """Returns the name of a cached input's claim; never equal to that of another claim."""
    return label(f"{appcode}-cache", f"-{key[:16]}", LABEL_LIMIT)


def address(run: RunRef, role: str, index: int) -> str:
    """Returns `host:port` of one task, from any pod of its namespace, even before any object exists.

    Pods search their own namespace first (https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/), so the
    first DNS query finds it; a name with the namespace would take three.
    """
    return f"{host_name(run, role, index)}.{base_name(run)}:{PORT}"


def common_labels(name: str, instance: str, part_of: str) -> dict[str, str]:
    """Returns the labels by which other tools group objects
    (https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/). The portal does not use them."""
    return {
        f"{COMMON}/name": name,
        f"{COMMON}/instance": instance,
        f"{COMMON}/part-of": part_of,
        f"{COMMON}/managed-by": PREFIX,
    }


def run_labels(portal: str, run: RunRef) -> dict[str, str]:
    """Returns the labels of all objects of a run. `portal` distinguishes installations that share a cluster."""
    return {
        **common_labels(run.cluster, base_name(run), run.appcode),
        PORTAL: portal,
        APPCODE: run.appcode,
        CLUSTER: run.cluster,
        RUN: str(run.number),
        RUN_ID: str(run.id),
    }


def run_selector(portal: str, run: RunRef) -> dict[str, str]:
    """Returns the selector for the pods of a run. Includes the portal, because portals have equal run ids."""
    return {PORTAL: portal, RUN_ID: str(run.id)}


def volume_labels(portal: str, volume: VolumeRef) -> dict[str, str]:
    """Returns labels without a run, so that operations on all objects of a run skip volumes."""
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
    """Returns a label selector from short names: `selector(portal="main", run_id=3)`."""
    return ",".join(f"{PREFIX}/{name.replace('_', '-')}={value}" for name, value in labels.items())


def run_id_of(labels: Mapping[str, str]) -> int | None:
    """Returns the run of an object; None if its labels are not ours or were changed by hand."""
    text = labels.get(RUN_ID, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
