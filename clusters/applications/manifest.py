"""The manifest of an application: a short form, as one value, convertible to and from that of a cluster.

    {"kind": "application", "metadata": {"name": "notes", "appcode": "ops-demo"},
     "spec": {"type": "jupyter", "image": "jupyter", "flavor": "middle-1-gpu", "storage": {"size": "20Gi"}}}

`cluster_spec` and `application_spec` are inverses for every cluster that is an application. `ClusterManifest` does the
validation; `own_path` maps its errors to the application's fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from clusters.frameworks import APPLICATIONS
from clusters.manifest.cluster import (
    MAX_ENDPOINTS,
    AccessSpec,
    ClusterManifest,
    ClusterMetadata,
    EndpointSpec,
    IdleSpec,
    PriorityClass,
    usual_idle,
)
from clusters.manifest.input import InputSpec
from portal.errors import FieldError, Invalid
from portal.manifests import Manifest, Strict, mistakes

if TYPE_CHECKING:
    ApplicationType = str
else:
    ApplicationType = Literal[tuple(APPLICATIONS)]

Name = Annotated[str, StringConstraints(min_length=1, max_length=63)]
# Fields that both manifests have under the same name.
SAME = (
    "image",
    "environment",
    "requirements",
    "plugins",
    "command",
    "env",
    "input",
    "output",
    "output_path",
    "runs",
    "model",
    "time_limit",
    "priority_class",
    "idle",
    "access",
)
# Fields that only a cluster has; changing the application leaves them as they are.
KEPT = ("retries", "scheduleAfter", "terminationGracePeriod")
# Fields of a cluster that an application has under another name. Below `roles`, the role's name comes between.
_OTHER_NAMES = {"framework": "type", "mode": "type", "completion": "type", "home": "storage"}
_OF_ROLE = {"flavor": "flavor", "count": "flavor", "endpoints": "endpoints"}


# Volume size of an application that needs a volume and names none; also the form's default.
USUAL_SIZE = "10Gi"


class StorageSpec(Strict):
    """Where its files are: a datastore of the appcode by name, or the size of a new volume, `<name>-home`, which is created
    with the application and outlives it."""

    datastore: Name | None = None
    size: str | None = Field(default=None, examples=["20Gi"])

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.datastore is None) == (self.size is None):
            raise ValueError("Name a datastore, or the size of a new volume, like 20Gi.")
        return self


class ApplicationSpec(Strict):
    """An application: what it is, what it runs on, where its files are and who may open it."""

    type: ApplicationType
    image: Name
    environment: str | None = Field(
        default=None, description="A saved environment over the image: NAME or NAME:VERSION."
    )
    requirements: tuple[str, ...] = Field(
        default=(), description="What pip installs over the image, a requirement each.", examples=[["streamlit>=1.40"]]
    )
    plugins: tuple[str, ...] = Field(
        default=(), description="Of Jupyter: what its JupyterLab has besides, of those offered with the image."
    )
    flavor: Name
    storage: StorageSpec | None = Field(
        default=None,
        description=f"Its files, at /elearn/home. A new notebook that names none gets a volume of {USUAL_SIZE}.",
    )
    input: InputSpec | None = None
    output: Name | None = None
    output_path: str = "{name}/{run}"
    runs: tuple[str, ...] = Field(default=(), description="Runs whose output it shows, as CLUSTER/NUMBER.")
    model: str | None = Field(
        default=None,
        description="Of a model server: what it serves, NAME@ALIAS or NAME/VERSION.",
        examples=["digits@champion"],
    )
    command: str = Field(default="", description="What to run; of Jupyter: what to run before it.")
    env: dict[str, str] = Field(default_factory=dict)
    time_limit: int | None = Field(default=None, description="Seconds after which it is ended.")
    priority_class: PriorityClass = Field(
        default="normal",
        description="'urgent' comes before other runs of its appcode; 'spare' runs on GPUs that nobody else needs.",
    )
    idle: IdleSpec = Field(
        default=IdleSpec(), description="What follows on hours without work; what is usual depends on the type."
    )
    endpoints: Annotated[tuple[EndpointSpec, ...], Field(max_length=MAX_ENDPOINTS)] = Field(
        default=(), description="What it serves by HTTP; of Jupyter: besides the notebook."
    )
    access: AccessSpec = AccessSpec()

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        driver = APPLICATIONS.get(kind) if isinstance(kind, str) else None
        return {"idle": usual_idle(driver), **value} if driver else value


class ApplicationManifest(Manifest):
    """`{"kind":"application","metadata":{"name","appcode"},"spec":{…}}`. The portal writes `status` and ignores it in
    requests."""

    kind: Literal["application"] = "application"
    metadata: ClusterMetadata
    spec: ApplicationSpec


def home_of(manifest: ApplicationManifest) -> str:
    """The name of the volume that is created for its files."""
    return f"{manifest.metadata.name}-home"


def with_storage(manifest: ApplicationManifest) -> ApplicationManifest:
    """A new application with a volume of the usual size, if its type needs one and the manifest names none."""
    spec = manifest.spec
    if spec.storage is not None or not APPLICATIONS[spec.type].needs_home:
        return manifest
    return manifest.model_copy(update={"spec": spec.model_copy(update={"storage": StorageSpec(size=USUAL_SIZE)})})


def cluster_manifest(manifest: ApplicationManifest, before: Mapping[str, Any] | None = None) -> ClusterManifest:
    """Its cluster. `before` is the spec of the cluster that it changes. Raises Invalid with the application's fields."""
    document = {
        "kind": "cluster",
        "metadata": manifest.metadata.model_dump(),
        "spec": cluster_spec(manifest.spec, home_of(manifest), before),
    }
    try:
        return ClusterManifest.model_validate(document)
    except ValidationError as error:
        raise Invalid(own_errors(mistakes(error))) from None


def cluster_spec(spec: ApplicationSpec, home: str, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The spec of its cluster as JSON. `home` is the name of a volume that is created for it."""
    document = spec.model_dump(mode="json", by_alias=True)
    storage = spec.storage and (spec.storage.datastore or home)
    role = {"flavor": spec.flavor, "count": 1, "endpoints": document["endpoints"]}
    return {
        "framework": spec.type,
        **{key: document[key] for key in map(_key, SAME)},
        "home": storage,
        "roles": {role_of(spec.type): role},
        **{key: before[key] for key in KEPT if before and key in before},
    }


def application_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse: the application's spec, from the spec of its cluster."""
    role = spec["roles"][role_of(spec["framework"])]
    return {
        "type": spec["framework"],
        "image": spec["image"],
        "flavor": role["flavor"],
        "storage": {"datastore": spec["home"]} if spec.get("home") else None,
        **{key: spec[key] for key in map(_key, SAME) if key not in ("image", "access", "idle", "priorityClass")},
        # Absent in what was stored before there were classes.
        "priorityClass": spec.get("priorityClass", "normal"),
        "endpoints": role["endpoints"],
        "idle": spec["idle"],
        "access": spec["access"],
    }


def role_of(kind: str) -> str:
    """The role of its only task."""
    return APPLICATIONS[kind].roles[0].name


def own_errors(errors: Iterable[FieldError]) -> list[FieldError]:
    return [replace(error, path=own_path(error.path)) for error in errors]


def own_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """The application's field for a path in the manifest of its cluster."""
    if path[:2] == ("spec", "roles"):
        field = _OF_ROLE.get(path[3], "type") if len(path) > 3 else "type"
        return ("spec", field, *(path[4:] if field == "endpoints" else ()))
    if path[:1] == ("spec",) and len(path) > 1 and path[1] in _OTHER_NAMES:
        return ("spec", _OTHER_NAMES[path[1]])
    return path


def _key(name: str) -> str:
    return ApplicationSpec.model_fields[name].alias or name
