"""REST documents of flavors, images and serving runtimes."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from clusters.catalog.models import Flavor, Image, ServingRuntime
from portal.api.documents import Answer, page_of


class FlavorDocument(Answer):
    """A size of task. Manifests use its `name`."""

    name: str
    title: str
    cpu_milli: int = Field(description="1000 is one core.")
    memory_mb: int
    gpus: int
    gpu_model: str = Field(description="Empty for any model.")
    resource: str = Field(description="The extended resource of Kubernetes that `gpus` counts.")
    node_labels: dict[str, str] = Field(description="Labels of the nodes that its tasks may go to.")
    tolerations: list[dict[str, str]] = Field(description="Taints that its tasks tolerate, as in Kubernetes.")
    extra: dict[str, int | str] = Field(description="Further extended resources of one task.")
    enabled: bool = Field(description="Whether it is offered; only administrators see others.")


FlavorPage = page_of("FlavorPage", FlavorDocument)


class ImageDocument(Answer):
    """An entry of the image catalogue. Manifests use its `name`."""

    name: str
    title: str
    description: str
    container: str = Field(description="The container's reference; empty when there is none.")
    local: bool = Field(description="Whether it can run on the portal's own machine.")
    frameworks: list[str] = Field(description="Those that it has; others are refused. Empty: not said.")
    enabled: bool = Field(description="Whether it is offered; only administrators see others.")
    environment: str | None = Field(
        description="The path of a virtual environment on the portal's own machine; null to all but administrators."
    )
    program: str | None = Field(description="A folder of that machine that tasks start in; the same.")


ImagePage = page_of("ImagePage", ImageDocument)


class ServingRuntimeDocument(Answer):
    """A model server. A service's manifest uses its `name` as `runtime`. `command`, `health` and `folder` contain
    {model}, {version} and {port}, which each replica fills in."""

    name: str
    title: str
    description: str
    formats: list[str] = Field(description="Of versions of models that it serves.", examples=[["saved-model"]])
    protocols: list[str] = Field(examples=[["tensorflow-serving-v1"]])
    image: str = Field(description="The container that it is; empty where it runs in the image of the service.")
    local: bool = Field(description="Whether it can run on the portal's own machine.")
    command: str = Field(description="How it is started; empty for the portal's own server.")
    port: int
    health: str
    folder: str = Field(description="Where it reads the model.")
    warm_up_seconds: int = Field(description="For how long it has been healthy before it is asked anything.")
    drain_seconds: int = Field(description="How long a replica that is to end may answer what it was asked before.")


ServingRuntimePage = page_of("ServingRuntimePage", ServingRuntimeDocument)


def flavor_document(flavor: Flavor) -> dict[str, Any]:
    return FlavorDocument.of(flavor).json_value()


def image_document(image: Image, *, paths: bool = False) -> dict[str, Any]:
    """`paths` adds its paths on the portal's own machine, for administrators."""
    return ImageDocument.of(
        image,
        local=bool(image.environment),
        environment=image.environment if paths else None,
        program=image.program if paths else None,
    ).json_value()


def serving_runtime_document(runtime: ServingRuntime) -> dict[str, Any]:
    return ServingRuntimeDocument.of(runtime, local=not runtime.image).json_value()
