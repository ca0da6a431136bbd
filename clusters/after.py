"""What is done before and after a run, as a manifest says it: its hooks. Pure.

One idea: a hook is a small cluster of its own, of one task, so it has what clusters have: a log, a time limit, retries, a cost.
It reads at /elearn/input what the run has written, or, before the run, what that will read, and its environment has the facts
of the run. What a hook does not say itself
it takes from the one of its appcode that it uses, then from the run.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from portal.manifests import Strict, dns_label, field_error

MAX_HOOKS = 5
MAX_HOOK_NAME = 20
MAX_MODEL_NAME = 30
# Its own cluster is named after the cluster and the hook; a cluster has at most so many characters.
MAX_CLUSTER_NAME = 40
MAX_COMMAND_BYTES = 64 * 1024
TIME_LIMIT = 600
# {name} and {run} are those of the run that it follows.
OUTPUT_PATH = "{name}-{hook}/{run}"
PART = "hooks/"
# How a hook is called that has no other name.
OWN = "after"
# Where a hook sees what the run has written, or is to read.
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
    if "\0" in value:
        raise ValueError("A NUL character cannot be passed to a program.")
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
    """What is done, and when. What is null follows from the run: its image, its output datastore, the smallest flavor."""

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
    """The description of the API names no default that nobody may send: `HookSpec._named` fills the name in."""
    del schema["default"]


class HookSpec(HookWork):
    """A hook of a cluster: a command of its own, or one of the appcode that it uses. What it says besides takes the place of what
    that says; variables are added."""

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
        """With what it takes from the hook that it uses."""
        if used is None:
            return self
        taken = {
            name: getattr(used, name) for name in HookWork.model_fields if name != "env" and getattr(self, name) is None
        }
        return self.model_copy(update={**taken, "env": {**used.env, **self.env}})

    def is_due(self, phase: str) -> bool:
        """Whether it is to be done after a run that came to its end in this phase."""
        return phase in _PHASES[self.when]


def part_of(cluster: str) -> str:
    """What the clusters of the hooks of a cluster are a part of."""
    return f"{PART}{cluster}"


def part_name(cluster: str, hook: str) -> str:
    """How the cluster of a hook is called: the same for all runs. Of a long name the beginning, and something that tells it from
    others with that beginning."""
    name = f"{cluster}-{hook}"
    if len(name) <= MAX_CLUSTER_NAME:
        return name
    digest = hashlib.sha256(cluster.encode()).hexdigest()[:6]
    return f"{cluster[: MAX_CLUSTER_NAME - len(hook) - 8]}-{digest}-{hook}"


def model_of(hook: HookWork, *, name: str) -> str:
    """Of which model it makes a version after a run of the cluster `name`, or ""."""
    return (hook.model or "").replace("{name}", name)


def folder_of(path: str, *, name: str, run: int, hook: str) -> str:
    """Where a hook writes, after run `run` of the cluster `name`."""
    return path.replace("{name}", name).replace("{run}", str(run)).replace("{hook}", hook)
