"""Hooks of a manifest: what is done before and after a run. Pure.

One idea: a hook runs as a small cluster of one task, so it has a log, a time limit, retries and a cost. At
/elearn/input it reads the output of the run or, for a hook before the run, the run's input. Its environment holds the
facts of the run. A field that a hook leaves out comes from the appcode's hook that it uses, then from the run.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from clusters.manifest.env import no_nul
from portal.manifests import Strict, dns_label, field_error

MAX_HOOKS = 5
MAX_HOOK_NAME = 20
MAX_MODEL_NAME = 30
# Maximum length of a cluster name. A hook's cluster is named <cluster>-<hook>.
MAX_CLUSTER_NAME = 40
MAX_COMMAND_BYTES = 64 * 1024
TIME_LIMIT = 600
# {name} and {run} are those of the run that the hook follows.
OUTPUT_PATH = "{name}-{hook}/{run}"
PART = "hooks/"
# Default name of a hook.
OWN = "after"
# Where a hook sees the output of the run, or its input.
SEEN_AT = "/elearn/input"

On = Literal["before", "success", "failure", "always"]
_PHASES: dict[On, tuple[str, ...]] = {
    "before": (),
    "success": ("Succeeded",),
    "failure": ("Failed",),
    "always": ("Succeeded", "Failed", "Stopped"),
}
_PATH = re.compile(r"[A-Za-z0-9._/-]*")


def _command(value: str) -> str:
    no_nul(value)
    if not value.strip():
        raise ValueError('Say what to run, as in bash -c "…".')
    if len(value.encode()) > MAX_COMMAND_BYTES:
        raise ValueError(f"A command has at most {MAX_COMMAND_BYTES // 1024} KiB; put a longer one into a file.")
    return value


def _path(value: str) -> str:
    rest = folder_of(value, name="", run=0, hook="")
    if not _PATH.fullmatch(rest) or value.startswith("/") or ".." in value.split("/"):
        raise ValueError(
            "Give a folder inside the datastore; {name}, {run} and {hook} are filled in, and '..' is none."
        )
    return value


def _model(value: str) -> str:
    dns_label(value.replace("{name}", "x"))
    return value


HookName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_HOOK_NAME), AfterValidator(dns_label)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_MODEL_NAME), AfterValidator(dns_label)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=63)]


class HookWork(Strict):
    """What a hook runs, and when. A null field follows from the run: its image, its output datastore, the smallest flavor."""

    on: On | None = Field(
        default=None,
        description="After a run that has succeeded (success, the usual), failed (failure), or ended in any way (always); or "
        "before the run, which starts when it has succeeded.",
    )
    command: Annotated[str, AfterValidator(_command)] | None = Field(default=None, examples=["echo $PORTAL_PHASE"])
    image: Name | None = None
    flavor: Name | None = None
    env: dict[str, str] = Field(default_factory=dict, description="Besides PORTAL_… with the facts of the run.")
    time_limit: int | None = Field(
        default=None, ge=60, le=86400, description=f"Seconds; {TIME_LIMIT} where it is null."
    )
    retries: int | None = Field(default=None, ge=0, le=10, description="How often it may fail and be started again: 0.")
    output: Name | None = Field(default=None, description="A datastore of the appcode, mounted at /elearn/output.")
    output_path: Annotated[str, StringConstraints(max_length=200), AfterValidator(_path)] | None = Field(
        default=None, description=f"The folder there: {OUTPUT_PATH}, where name and run are those that it follows."
    )
    model: Annotated[str, StringConstraints(max_length=MAX_MODEL_NAME), AfterValidator(_model)] | None = Field(
        default=None,
        description="When it has succeeded, its model-version.json is registered as a version of this model, which is made where "
        "there is none; {name} is that of the cluster.",
        examples=["digits"],
    )

    @model_validator(mode="after")
    def _after(self) -> Self:
        if self.on == "before" and self.model:
            raise field_error("Before a run there is nothing to register.", "model")
        return self

    @property
    def when(self) -> On:
        return self.on or "success"

    @property
    def is_before(self) -> bool:
        return self.on == "before"


def _without_default(schema: dict[str, Any]) -> None:
    """Removes the empty default from the API schema: `HookSpec._named` fills in the name, and clients must not send ""."""
    del schema["default"]


class HookSpec(HookWork):
    """A hook of a cluster: a command, or a hook of the appcode (`use`), whose fields it overrides and whose env it extends."""

    name: HookName = Field(
        default="",
        validate_default=False,
        description=f"The name of the hook that it uses, or “{OWN}”.",
        json_schema_extra=_without_default,
    )
    use: HookName | None = Field(default=None, description="A hook of the appcode.")

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.use and self.command is None:
            raise field_error("Say what to run, or name a hook of the appcode that it uses.", "command")
        if not self.name:
            object.__setattr__(self, "name", self.use or OWN)
        if not self.use and self.on is None:
            object.__setattr__(self, "on", "success")
        return self

    def settled(self, used: HookWork | None) -> HookSpec:
        """This hook, with the fields that it leaves out taken from the hook that it uses."""
        if used is None:
            return self
        taken = {
            name: getattr(used, name) for name in HookWork.model_fields if name != "env" and getattr(self, name) is None
        }
        return self.model_copy(update={**taken, "env": {**used.env, **self.env}})

    def is_due(self, phase: str) -> bool:
        """Whether the hook runs after a run that ended in this phase."""
        return phase in _PHASES[self.when]


def part_of(cluster: str) -> str:
    """`part_of` of the clusters that run the hooks of a cluster."""
    return f"{PART}{cluster}"


def part_name(cluster: str, hook: str) -> str:
    """The name of a hook's cluster, the same for all runs. A long name is cut and made unique by a hash of the cluster's name."""
    name = f"{cluster}-{hook}"
    if len(name) <= MAX_CLUSTER_NAME:
        return name
    digest = hashlib.sha256(cluster.encode()).hexdigest()[:6]
    return f"{cluster[: MAX_CLUSTER_NAME - len(hook) - 8]}-{digest}-{hook}"


def model_of(hook: HookWork, *, name: str) -> str:
    """The name of the model that the hook registers a version of after a run of cluster `name`; "" for none."""
    return (hook.model or "").replace("{name}", name)


def folder_of(path: str, *, name: str, run: int, hook: str) -> str:
    """The folder that a hook writes to after run `run` of cluster `name`."""
    return path.replace("{name}", name).replace("{run}", str(run)).replace("{hook}", hook)
