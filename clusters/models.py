"""Every table of this app, for Django, which looks for them here. Code imports each from its room."""

from clusters.benchmarks.models import Benchmark, Measurement
from clusters.catalog.models import Flavor, Image, ServingRuntime
from clusters.clouds.models import Cloud, CloudState, Placement, Window
from clusters.cluster_templates.models import Template
from clusters.environments.models import Environment, Plugin
from clusters.gateway.models import AccessToken, Origin, Visit
from clusters.git_tokens.models import GitToken
from clusters.hooks.models import Hook, HookRun
from clusters.machine.models import MachineBlock, MachineSeries
from clusters.model_registry.models import ModelAlias, ModelRetention, ModelVersion, RegisteredModel
from clusters.pipelines.models import Pipeline, PipelineRun, StageRun
from clusters.pull_secrets.models import PullSecret
from clusters.results.models import Metric, ResultsView, RunMetric
from clusters.runs.models import Cluster, Decision, Forecast, Run, Task
from clusters.schedules.models import Schedule
from clusters.services.models import (
    Replica,
    Revision,
    RevisionDrift,
    Rollout,
    Router,
    Service,
    ServiceMinute,
    ServiceToken,
)
from clusters.sweeps.models import Sweep, Trial
from clusters.tracking.models import Experiment, TrackedMetric, TrackedRun

__all__ = [
    "AccessToken",
    "Benchmark",
    "Cloud",
    "CloudState",
    "Cluster",
    "Decision",
    "Environment",
    "Experiment",
    "Flavor",
    "Forecast",
    "GitToken",
    "Hook",
    "HookRun",
    "Image",
    "MachineBlock",
    "MachineSeries",
    "Measurement",
    "Metric",
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
    "ResultsView",
    "Revision",
    "RevisionDrift",
    "Rollout",
    "Router",
    "Run",
    "RunMetric",
    "Schedule",
    "Service",
    "ServiceMinute",
    "ServiceToken",
    "ServingRuntime",
    "StageRun",
    "Sweep",
    "Task",
    "Template",
    "TrackedMetric",
    "TrackedRun",
    "Trial",
    "Visit",
    "Window",
]
