"""Runs a notebook: reads its text from the running application, and creates a cluster of the framework `notebook`.

Everything that is not given is as in the application: image, environment, variables, datastores, flavor. Its home is mounted,
too, if several tasks may mount it. A ReadWriteOnce volume is not, because the application holds it.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, StringConstraints, ValidationError

from clusters.applications.manifest import Name, role_of
from clusters.cluster import actions
from clusters.frameworks.jupyter import HOME, Jupyter
from clusters.frameworks.notebook import Notebook
from clusters.manifest.cluster import ClusterManifest, ClusterMetadata
from clusters.manifest.input import InputSpec
from clusters.manifest.notebook import notebook_path
from clusters.runs.commands import answer_of
from clusters.runs.models import Cluster, Run
from datastores.models import Datastore
from portal.access import OPERATE, require
from portal.errors import Conflict, FieldError, Invalid
from portal.manifests import Manifest, Strict, mistakes
from portal.models import User
from portal.text.words import readable

# Maximum size of the notebook file, including outputs.
MAX_MIB = 8
MAX_LISTED = 200
# Parsed one at a time in this process: a file of brackets takes 25 times its size.
ONE = threading.Lock()


class NotebookRunSpec(Strict):
    """The notebook, and what differs from the application."""

    notebook: Annotated[str, StringConstraints(max_length=400)] = Field(
        examples=["work/train.ipynb"], description="Its path below the home."
    )
    parameters: dict[str, JsonValue] = Field(default_factory=dict, examples=[{"epochs": 3}])
    flavor: Name | None = None
    image: Name | None = None
    environment: str | None = None
    input: InputSpec | None = None
    output: Name | None = Field(default=None, description="Where the notebook is kept with its outputs.")
    env: dict[str, str] = Field(default_factory=dict)
    time_limit: int | None = None


class NotebookRunManifest(Manifest):
    """`{"metadata":{"name"},"spec":{"notebook","parameters",…}}`: a run of an application's notebook."""

    kind: Literal["notebook-run"] = "notebook-run"
    metadata: ClusterMetadata
    spec: NotebookRunSpec


def run_notebook(cluster: Cluster, manifest: NotebookRunManifest, *, acting_user: User) -> Cluster:
    """The cluster that runs it. Raises Conflict while the application is not running, Invalid, CloudError, PermissionDenied."""
    require(acting_user, cluster.appcode, OPERATE)
    source = _read(cluster, manifest.spec.notebook, acting_user)
    document = {"metadata": manifest.metadata.model_dump(), "spec": spec_of(cluster, manifest.spec, source)}
    try:
        with ONE:
            made = ClusterManifest.model_validate(document)
        return actions.create_cluster(made, acting_user=acting_user)
    except ValidationError as error:
        raise Invalid([_own(each) for each in mistakes(error)]) from None
    except Invalid as invalid:
        raise Invalid([_own(each) for each in invalid.errors]) from None


def notebooks_in(cluster: Cluster, *, acting_user: User) -> list[str]:
    """Paths below its home, last changed first. Raises Conflict while it is not running, CloudError."""
    require(acting_user, cluster.appcode, OPERATE)
    hidden = ("-name", ".*", "-prune", "-o")
    argv = ("find", f"{HOME}/", "-mindepth", "1", *hidden, "-name", "*.ipynb", "-type", "f", "-printf", "%T@ %P\\0")
    said, _, _ = answer_of(_running(cluster), role_of(Jupyter.name), argv, user=acting_user)
    found = [line.partition(" ") for line in said.decode(errors="replace").split("\0") if line]
    return [path for _, _, path in sorted(found, key=lambda each: float(each[0]), reverse=True)[:MAX_LISTED]]


def spec_of(cluster: Cluster, wanted: NotebookRunSpec, source: str) -> dict[str, Any]:
    """The spec of the cluster. Values that were not given are the application's."""
    own = cluster.spec
    said = wanted.model_dump(include=wanted.model_fields_set, by_alias=True, mode="json")
    kept = {key: said.get(key, own[key]) for key in ("image", "environment", "input", "output", "env")}
    flavor = wanted.flavor or own["roles"][role_of(Jupyter.name)]["flavor"]
    return {
        **kept,
        "framework": Notebook.name,
        "command": own["command"],
        "home": own["home"] if may_share(cluster) else None,
        "roles": {Notebook.roles[0].name: {"flavor": flavor}},
        "retries": 0,
        "timeLimit": wanted.time_limit,
        "notebook": {"path": wanted.notebook, "source": source, "parameters": wanted.parameters},
    }


def may_share(cluster: Cluster) -> bool:
    """Whether its home can also be mounted by another task."""
    home = Datastore.objects.filter(appcode=cluster.appcode_id, name=cluster.spec["home"]).first()
    return home is not None and (home.kind != Datastore.Kind.VOLUME or home.spec["access_mode"] == "ReadWriteMany")


def _running(cluster: Cluster) -> Run:
    run = cluster.current_run
    if cluster.spec["framework"] != Jupyter.name:
        raise Conflict(f"{cluster.name} is no notebook.")
    if run is None or not run.tasks.filter(role=role_of(Jupyter.name), index=0, phase="Running").exists():
        raise Conflict(f"{cluster.name} does not run; deploy it, for its notebooks are read in it.")
    run.cluster = cluster
    return run


def _read(cluster: Cluster, path: str, user: User) -> str:
    try:
        notebook_path(path)
    except ValueError as error:
        raise Invalid.at("spec", "notebook", message=str(error)) from None
    size = MAX_MIB * 2**20
    argv = ("head", "-c", str(size + 1), "--", f"{HOME}/{path}")
    said, errors, code = answer_of(_running(cluster), role_of(Jupyter.name), argv, user=user)
    if code != 0:
        why = "there is no such file" if "No such file" in errors else readable(errors)[-200:]
        raise Invalid.at("spec", "notebook", message=f"{path} cannot be read in the home of {cluster.name}: {why}.")
    if len(said) > size:
        raise Invalid.at("spec", "notebook", message=f"{path} has more than {MAX_MIB} MiB; clear its outputs first.")
    return said.decode(errors="replace")


def _own(error: FieldError) -> FieldError:
    """An error of the cluster, at the field of the request."""
    path = error.path
    if path[:3] == ("spec", "notebook", "parameters"):
        path = ("spec", "parameters", *path[3:4])
    elif path[:2] == ("spec", "notebook"):
        path = ("spec", "notebook")
    elif path[:2] == ("spec", "roles"):
        path = ("spec", "flavor")
    return replace(error, path=path)
