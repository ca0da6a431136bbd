"""What administrators offer: flavors, images and serving runtimes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models

from clusters.admission.demand import GPU, Demand, demand_of
from clusters.catalog.demands import check_extra, check_labels, check_resource, check_tolerations
from clusters.frameworks import runtimes
from clusters.manifest.cluster import ServerSpec
from clusters.manifest.env import check_env
from portal.errors import Invalid
from portal.manifests import parse


class Flavor(models.Model):
    """A size of task, and what it demands of nodes. An empty `gpu_model` means any model; where `resource` counts slices, or is
    not NVIDIA's, the model is a name with a price and chooses no node. Slices do not count against the quota of an appcode."""

    name = models.SlugField(max_length=63, unique=True)
    title = models.CharField(max_length=60, unique=True, help_text='As people say it: "Middle + 1 GPU".')
    cpu_milli = models.PositiveIntegerField(help_text="1000 is one core.")
    memory_mb = models.PositiveIntegerField()
    gpus = models.PositiveIntegerField(default=0)
    gpu_model = models.CharField(max_length=60, blank=True)
    resource = models.CharField(
        max_length=317, default=GPU, db_default=GPU, help_text="The extended resource that `gpus` counts."
    )
    node_labels = models.JSONField(
        default=dict, db_default={}, blank=True, help_text="Labels of the nodes that its tasks may go to."
    )
    tolerations = models.JSONField(
        default=list, db_default=[], blank=True, help_text="As in Kubernetes: key, operator, value, effect."
    )
    extra = models.JSONField(
        default=dict, db_default={}, blank=True,
        help_text='Further extended resources of one task: {"rdma/hca": 1, "hugepages-2Mi": "1Gi"}.',
    )  # fmt: skip
    enabled = models.BooleanField(default=True)

    class Meta:
        ordering: ClassVar = ["gpus", "cpu_milli", "name"]

    def __str__(self) -> str:
        return self.title

    @property
    def demand(self) -> Demand:
        return demand_of(self.__dict__)

    @property
    def demanded(self) -> str:
        """What it demands beside CPU, memory and NVIDIA's GPUs, in short."""
        demand = self.demand
        resource = [demand.resource] if demand.resource != GPU else []
        labels = [f"{key}={value}" for key, value in demand.labels]
        return ", ".join([*resource, *labels, *(f"{amount} {name}" for name, amount in demand.extra)])

    def clean(self) -> None:
        checks: dict[str, Callable[[], None]] = {
            "resource": lambda: check_resource(self.resource),
            "node_labels": lambda: check_labels(self.node_labels, self.gpu_model),
            "tolerations": lambda: check_tolerations(self.tolerations),
            "extra": lambda: check_extra(self.extra, self.resource),
        }
        wrong = {}
        for field, check in checks.items():
            try:
                check()
            except ValueError as error:
                wrong[field] = str(error)
        if wrong:
            raise ValidationError(wrong)


class Image(models.Model):
    """An entry of the image catalogue: a container reference and a local environment. Each cloud uses one of the two.
    `environment` is the path of a virtual environment, `program` of a folder that tasks see as /elearn/program."""

    name = models.SlugField(max_length=63, unique=True)
    title = models.CharField(max_length=100)
    description = models.TextField(blank=True)
    container = models.CharField(max_length=300, blank=True)
    environment = models.CharField(max_length=500, blank=True)
    program = models.CharField(max_length=500, blank=True)
    frameworks = ArrayField(
        models.CharField(max_length=40), default=list, db_default=[], blank=True,
        help_text="Those that it has, by the names of their drivers; empty where nobody said, and then none is refused.",
    )  # fmt: skip
    enabled = models.BooleanField(default=True)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.title

    def has(self, software: Literal["environment", "container"]) -> bool:
        """Whether the image works on clouds whose tasks use that software."""
        return bool(self.environment if software == "environment" else self.container)


class ServingRuntime(models.Model):
    """A model server in the catalogue. PORTAL is the portal's own (frameworks/inside/serve.py), with an empty `command`. For
    others, `command`, `health` and `folder` contain {model}, {version} and {port}.

    `image` is a container reference: with one, the runtime works in containers only. Without one it runs where the
    service's image does, including this machine.
    """

    PORTAL = "portal"

    name = models.SlugField(max_length=40, unique=True)
    title = models.CharField(max_length=60)
    description = models.CharField(max_length=500, blank=True)
    formats = ArrayField(models.CharField(max_length=20), help_text="Of models: saved-model, onnx …")
    protocols = ArrayField(models.CharField(max_length=30), help_text="PROTOCOLS of frameworks/runtimes.py")
    image = models.CharField(max_length=300, blank=True)
    command = models.TextField(blank=True, help_text="Divided into words as a shell does; no shell runs it.")
    env = models.JSONField(default=dict, db_default={}, blank=True)
    port = models.PositiveIntegerField(default=8501)
    health = models.CharField(
        max_length=200,
        default="/v2/health/ready",
        help_text="A path that is answered without an error as soon as the model is loaded.",
    )
    folder = models.CharField(max_length=200, default=runtimes.FOLDER, help_text="Where it reads the model.")
    warm_up_seconds = models.PositiveIntegerField(
        default=0, help_text="For how long it has been healthy before it is asked anything."
    )
    drain_seconds = models.PositiveIntegerField(
        default=30, help_text="How long a replica that is to end may answer what it was asked before."
    )
    enabled = models.BooleanField(default=True)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.title

    def server(self, model: str, version: int) -> dict[str, Any] | None:
        """How to start a replica of that version, as JSON of a `ServerSpec`; None for the portal's own server. Raises
        ValueError for a command that cannot be split into words."""
        template = runtimes.Template(self.command, self.health, self.folder, self.port, self.warm_up_seconds)
        return runtimes.server(self.name, template, model, version) if self.command else None

    def clean(self) -> None:
        is_portal = self.name == self.PORTAL
        if is_portal != (not self.command):
            why = "The portal's own server needs none." if is_portal else "Say how it is started."
            raise ValidationError({"command": why})
        if not is_portal and not self.image and self.folder != runtimes.FOLDER:
            why = f"On this machine a model lies at {runtimes.FOLDER}; only a container may have it elsewhere."
            raise ValidationError({"folder": why})
        try:
            check_env(self.env)
        except ValueError as error:
            raise ValidationError({"env": str(error)}) from error
        try:
            server = self.server("model", 1)
        except ValueError as error:
            raise ValidationError({"command": f"It cannot be divided into words: {error}."}) from error
        try:
            if server:
                parse(ServerSpec, server)
        except Invalid as invalid:
            columns = {"argv": "command", "warmUpSeconds": "warm_up_seconds"}
            fields = {columns.get(each.path[0], each.path[0]): each.message for each in invalid.errors}
            raise ValidationError(fields) from invalid
