"""The contract between the portal and whatever runs its tasks: frozen values in, frozen values out, no database.

A cloud is told the whole plan of a run (plan.py) and is asked to make it so (cloud.py); it reports what it sees (seen.py), and
never decides what a run means. All calls may block on the network, so no caller holds a transaction. All calls may be repeated:
applying the same plan twice, or deleting what is already gone, does nothing.

Environment values and TF_CONFIG are written once per role, in Kubernetes' own syntax (variables.py): `$(NAME)` is replaced by the
value of another variable of the same task, `$$(` is a literal `$(`, and TASK_INDEX is always defined. So one object per role
is enough on Kubernetes, and the local cloud calls `expand` to read the same text the same way. What all tasks of a run
have in common is written once per run, and referred to in the same way.
"""

from clusters.clouds.drivers.base.cloud import Cloud, ServesEndpoints, Session
from clusters.clouds.drivers.base.errors import CloudError, CloudRefused, NotOurs, Unanswered, WatchExpired
from clusters.clouds.drivers.base.plan import (
    AccessMode,
    Endpoint,
    ImageRef,
    LocalSource,
    Mount,
    NfsSource,
    Plan,
    RestartPolicy,
    RolePlan,
    RunRef,
    S3Source,
    Source,
    SourceKind,
    VolumeRef,
    VolumeSource,
)
from clusters.clouds.drivers.base.seen import (
    Batch,
    Capacity,
    GpuUse,
    LogChunk,
    Measurements,
    Node,
    Output,
    PlaceChanged,
    RunBlocked,
    RunChanged,
    RunFound,
    RunGone,
    Seen,
    StorageSeen,
    StorageState,
    TaskPhase,
    TaskSeen,
    Unreadable,
    Waiting,
)
from clusters.clouds.drivers.base.variables import expand, literal

__all__ = [
    "AccessMode",
    "Batch",
    "Capacity",
    "Cloud",
    "CloudError",
    "CloudRefused",
    "Endpoint",
    "GpuUse",
    "ImageRef",
    "LocalSource",
    "LogChunk",
    "Measurements",
    "Mount",
    "NfsSource",
    "Node",
    "NotOurs",
    "Output",
    "PlaceChanged",
    "Plan",
    "RestartPolicy",
    "RolePlan",
    "RunBlocked",
    "RunChanged",
    "RunFound",
    "RunGone",
    "RunRef",
    "S3Source",
    "Seen",
    "ServesEndpoints",
    "Session",
    "Source",
    "SourceKind",
    "StorageSeen",
    "StorageState",
    "TaskPhase",
    "TaskSeen",
    "Unanswered",
    "Unreadable",
    "VolumeRef",
    "VolumeSource",
    "Waiting",
    "WatchExpired",
    "expand",
    "literal",
]
