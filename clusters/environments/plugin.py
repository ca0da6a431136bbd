"""A plugin as an administrator describes it: pip requirements that JupyterLab needs for it, over an image. Pure.

{"kind": "plugin", "metadata": {"name": "archive", "image": "jupyter-4-6"},
 "spec": {"title": "Archive", "description": "Downloads folders.", "requirements": ["jupyter-archive>=3.4"]}}
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from clusters.environments.found import EnvironmentName
from clusters.requirements import requirement
from portal.manifests import Manifest, Strict


def _some(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("Fill this in.")
    return value


class PluginMetadata(Strict):
    name: EnvironmentName
    image: Annotated[str, StringConstraints(min_length=1, max_length=63)]


class PluginSpec(Strict):
    """What people read of it, and what pip would be told to install."""

    title: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=60)] = Field(
        examples=["Archive"]
    )
    description: Annotated[str, StringConstraints(strip_whitespace=True, max_length=500)] = ""
    requirements: Annotated[
        tuple[Annotated[str, StringConstraints(max_length=200), AfterValidator(requirement)], ...],
        Field(max_length=20),
        AfterValidator(_some),
    ] = Field(examples=[["jupyter-archive>=3.4"]])


class PluginManifest(Manifest):
    """`{"kind":"plugin","metadata":{"name","image"},"spec":{…}}`; `status` is ours and is ignored when it comes back."""

    kind: Literal["plugin"] = "plugin"
    metadata: PluginMetadata
    spec: PluginSpec
