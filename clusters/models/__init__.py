"""The tables, by what they are for; elsewhere they are imported from here."""

from clusters.models.clouds import LOCAL, Cloud, CloudState, Placement, cloud_name
from clusters.models.gateway import AccessToken, Origin, Visit
from clusters.models.many import (
    Benchmark,
    HookRun,
    Measurement,
    Pipeline,
    PipelineRun,
    Schedule,
    StageRun,
    Sweep,
    Trial,
)
from clusters.models.offers import Environment, Flavor, GitToken, Hook, Image, Plugin, PullSecret, Template
from clusters.models.registry import ModelAlias, ModelRetention, ModelVersion, RegisteredModel
from clusters.models.runs import Cluster, Run, Task
from clusters.models.serving import (
    Front,
    Replica,
    Revision,
    RevisionDrift,
    Rollout,
    Service,
    ServiceMinute,
    ServiceToken,
    ServingRuntime,
)

__all__ = [
    "LOCAL",
    "AccessToken",
    "Benchmark",
    "Cloud",
    "CloudState",
    "Cluster",
    "Environment",
    "Flavor",
    "Front",
    "GitToken",
    "Hook",
    "HookRun",
    "Image",
    "Measurement",
    "ModelAlias",
    "ModelRetention",
    "ModelVersion",
    "Origin",
    "Pipeline",
    "PipelineRun",
    "Placement",
    "Plugin",
    "PullSecret",
    "RegisteredModel",
    "Replica",
    "Revision",
    "RevisionDrift",
    "Rollout",
    "Run",
    "Schedule",
    "Service",
    "ServiceMinute",
    "ServiceToken",
    "ServingRuntime",
    "StageRun",
    "Sweep",
    "Task",
    "Template",
    "Trial",
    "Visit",
    "cloud_name",
]
