"""A plugin as an administrator describes it: pip requirements that JupyterLab needs for it, over an image. Pure.

{"kind": "plugin", "metadata": {"name": "archive", "image": "jupyter-4-6"},
 "spec": {"title": "Archive", "description": "Downloads folders.", "requirements": ["jupyter-archive>=3.4"]}}
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from clusters.environments.installed import EnvironmentName
from clusters.manifest.requirements import requirement
from portal.manifests import Manifest, Strict


def _some(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("Fill this in.")
    return value


class PluginMetadata(Strict):
    name: EnvironmentName
    image: Annotated[str, StringConstraints(min_length=1, max_length=63)]


class PluginSpec(Strict):
    """Its description for users, and its pip requirements."""

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
    """`{"kind":"plugin","metadata":{"name","image"},"spec":{…}}`. The portal writes `status` and ignores it in requests."""

    kind: Literal["plugin"] = "plugin"
    metadata: PluginMetadata
    spec: PluginSpec
