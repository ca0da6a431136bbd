"""The cluster manifest as one typed, validated value.

The New Cluster form, a REST body and an imported manifest file all become a `ClusterManifest`, and actions accept
nothing else. So all three accept and refuse the same input. Everything that the value alone can answer is checked here;
`catalog/lookup.py` checks that the names in it (image, flavor, datastore) exist in the database.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, field_validator, model_validator

from clusters.admission.taking import GRACE_SECONDS, MAX_GRACE_SECONDS
from clusters.frameworks import COMPLETIONS, FRAMEWORKS, ROLES
from clusters.frameworks.base import MAX_TASKS_PER_ROLE, Endpoint, Framework
from clusters.manifest.code import CodeSpec
from clusters.manifest.env import MAX_ENV_VARIABLES, check_env, check_hook_env, no_nul
from clusters.manifest.hook_spec import MAX_HOOKS, HookSpec
from clusters.manifest.input import STREAM_ENV, InputSpec
from clusters.manifest.notebook import NotebookSpec
from clusters.manifest.requirements import MAX_REQUIREMENTS, required
from portal.manifests import AppcodeName, Manifest, Strict, dns_label, field_error
from portal.manifests.kept import Kept

MAX_COMMAND_BYTES = 64 * 1024
MAX_ENDPOINTS = 5
MAX_RUNS_SHOWN = 20
MAX_PLUGINS = 20
# A run's objects are named <cluster>-<run>-<role>-<index>, and a DNS label has 63 characters. The name gets the rest.
MAX_NAME = 40

# The names in the drivers, which also go into the REST schema. Each driver checks which of them go together.
if TYPE_CHECKING:
    FrameworkName = str
    RoleName = str
    CompletionName = str
else:
    FrameworkName = Literal[tuple(FRAMEWORKS)]
    RoleName = Literal[tuple(ROLES)]
    CompletionName = Literal[tuple(COMPLETIONS)]
Mode = Literal["batch", "service"]
PriorityClass = Literal["urgent", "normal", "spare"]
Placement = Literal["pack", "spread"]

RUN_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?/[1-9][0-9]{0,8}")
# A name, optionally with a version.
ENVIRONMENT_NAME = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?(:[1-9][0-9]{0,5})?$"
# A model with one of its aliases, or with a version number.
MODEL_NAME = r"^[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?(@[a-z][a-z0-9_-]{0,39}|/[1-9][0-9]{0,8})$"
OUTPUT_PATH = re.compile(r"[A-Za-z0-9._{}/-]*")


def _endpoint(value: str) -> str:
    if "--" in value:
        raise ValueError("Use single '-'.")
    if value == "task":
        raise ValueError("“task” is what tasks reach each other at; choose another name.")
    return dns_label(value)


EndpointName = Annotated[str, StringConstraints(min_length=1, max_length=15), AfterValidator(_endpoint)]
ClusterName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME), AfterValidator(dns_label)]
Text = Annotated[str, AfterValidator(no_nul)]
PluginName = Annotated[str, StringConstraints(pattern=ENVIRONMENT_NAME)]
RunName = Annotated[str, StringConstraints(max_length=MAX_NAME + 10)]
# One line of a requirements.txt.
RequirementLine = Annotated[Text, StringConstraints(pattern=r"^[^\r\n]*$", max_length=4000)]
HealthPath = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._~/?&=%-]*$", max_length=200)]


class EndpointSpec(Strict):
    """An HTTP endpoint that the task of a role serves. Users open it at `<name>-<cluster>-<appcode>.apps.<domain>`."""

    name: EndpointName
    port: int = Field(ge=1024, le=65535, description="Where the program listens.")
    health: HealthPath = Field(
        default="/", description="A path that is answered without an error of the server as soon as people may come."
    )


class AccessSpec(Strict):
    """Who may open the endpoints, besides users who may run clusters of the appcode: its other `members`, named
    `people`, or `everybody` who is signed in. Other members have read access only, so none of them can open an
    application that runs programs."""

    to: Literal["members", "people", "everybody"] = "members"
    people: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=r"^[^\s,]+$", max_length=150)], ...], Field(max_length=100)
    ] = Field(default=(), description="User names.")

    @model_validator(mode="after")
    def _people(self) -> Self:
        if bool(self.people) != (self.to == "people"):
            raise field_error("Name people if and only if it is open to 'people'.", "people")
        return self


class IdleSpec(Strict):
    """What happens to a service that has been idle for `after` seconds: `stop` announces and then stops it and keeps
    its files, `announce` only announces, `never` does neither. Unknown activity does not count as idle."""

    policy: Literal["stop", "announce", "never"] = "never"
    after: int = Field(
        default=7200, ge=60, le=30 * 86400, description="Seconds without work; of 'never' it means nothing."
    )

    @field_validator("after")
    @classmethod
    def _after(cls, value: int, info: ValidationInfo) -> int:
        return 7200 if info.data.get("policy") == "never" else value


def usual_idle(framework: Framework) -> dict[str, Any]:
    """The default where a manifest leaves `idle` out."""
    return {"policy": "stop", "after": framework.idle_after} if framework.idle_after else {"policy": "never"}


class RoleSpec(Strict):
    """One role: the flavor of each task (a name in the catalogue), the number of tasks, and what they serve."""

    flavor: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    count: int = Field(default=1, ge=0, le=MAX_TASKS_PER_ROLE)
    at_once: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TASKS_PER_ROLE,
        description="So many run at the same time, and the others when these have ended; all of them where it is left out.",
    )
    endpoints: Annotated[tuple[EndpointSpec, ...], Field(max_length=MAX_ENDPOINTS)] = ()

    @property
    def together(self) -> int:
        """The number of its tasks that run at the same time."""
        return min(self.count, self.at_once or self.count)


class ServerSpec(Strict):
    """How a program other than the portal's own serves the model, copied from a runtime of the catalogue when the
    revision was created. `argv` is run exactly as given and finds the model in `folder`."""

    runtime: Annotated[str, StringConstraints(min_length=1, max_length=40)] = Field(
        description="Its name in the catalogue, which also says in which container it runs, where it has one of its own."
    )
    argv: Annotated[tuple[Text, ...], Field(min_length=1, max_length=200)]
    port: int = Field(ge=1024, le=65535)
    health: HealthPath
    folder: Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$", max_length=300)]
    warm_up_seconds: int = Field(default=0, ge=0, le=3600)


class ClusterSpec(Strict):
    """What one cluster runs. `input` names what it reads (see InputSpec), `output` a datastore of the same appcode.

    `output_path` is a folder in the output datastore. `{name}` and `{run}` become the cluster's name and the run's
    number, so that by default no run overwrites another. Without `{run}` all runs share the folder, and its contents
    are fetched before the start: that is how training resumes from a checkpoint.
    """

    framework: FrameworkName = next(iter(FRAMEWORKS))
    image: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    environment: Annotated[str, StringConstraints(pattern=ENVIRONMENT_NAME)] | None = Field(
        default=None,
        description="Packages over the image, saved from an application: NAME, for the newest version then, or NAME:VERSION.",
    )
    requirements: Annotated[tuple[RequirementLine, ...], Field(max_length=MAX_REQUIREMENTS)] = Field(
        default=(),
        examples=[["pandas>=2.2", "-r requirements.txt"]],
        description="What pip installs over the image, once for all runs of the appcode that say the same: a requirement each, "
        "or -r NAME for a file of `code.files`. Packages come from the index of the cloud.",
    )
    keras: Literal[2, 3] | None = Field(
        default=None,
        description="Of TensorFlow: which Keras `tf.keras` is; the newest of the image where it is left out. Keras 2 is the "
        "package tf_keras. A program that imports `keras` itself gets Keras 3.",
    )
    plugins: Annotated[tuple[PluginName, ...], Field(max_length=MAX_PLUGINS)] = Field(
        default=(),
        description="Of Jupyter: what its JupyterLab has besides, of what is offered with the image: NAME, for the newest "
        "version then, or NAME:VERSION.",
    )
    command: Text = Field(
        default="",
        validate_default=True,
        description="Run by bash -o pipefail: it fails when any program of a pipe fails. Some applications need none.",
    )
    code: CodeSpec | None = Field(default=None, description="Files beside the image, where the command starts.")
    env: dict[str, Text] = Field(
        default_factory=dict,
        max_length=MAX_ENV_VARIABLES,
        description="$NAME and ${NAME} in a value mean another entry, or else the variable that the image or the portal sets; "
        "$$ is a dollar.",
    )
    input: InputSpec | None = None
    output: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    home: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = Field(
        default=None,
        description="A datastore with files of its own, mounted at /elearn/home: what lies there outlives the run.",
    )
    output_path: Annotated[str, StringConstraints(max_length=200)] = "{name}/{run}"
    runs: Annotated[tuple[RunName, ...], Field(max_length=MAX_RUNS_SHOWN)] = Field(
        default=(),
        description="Of TensorBoard and Jupyter: runs of this appcode, as CLUSTER/NUMBER; their outputs are mounted "
        "read-only at /elearn/runs/CLUSTER/NUMBER.",
    )
    notebook: NotebookSpec | None = Field(default=None, description="Of the framework notebook: what it runs.")
    model: Annotated[str, StringConstraints(pattern=MODEL_NAME)] | None = Field(
        default=None,
        examples=["digits@champion"],
        description="A registered model of this appcode: NAME@ALIAS, for the version that it names when a run is submitted, or "
        "NAME/VERSION. Its files are mounted read-only at /elearn/model; PORTAL_MODEL_NAME, _VERSION and _FORMAT say what it is.",
    )
    server: ServerSpec | None = Field(
        default=None,
        description="Of replicas of services alone: what serves the model instead of the portal's own server.",
    )
    mode: Mode = "batch"
    roles: dict[RoleName, RoleSpec]
    completion: CompletionName = next(iter(COMPLETIONS))
    access: AccessSpec = AccessSpec()
    retries: int | None = Field(
        default=None,
        ge=0,
        le=10,
        description="How often one task may fail and be started again, for whatever reason. Left out, a task that was killed or "
        "ran out of memory is started once more, and one whose program ended with an error is not. A task that its cloud takes "
        "away (a lost node, an eviction, a preemption) is always started again.",
    )
    priority_class: PriorityClass = Field(
        default="normal",
        description="'urgent' comes before the other runs of its appcode, and may take their GPUs. 'spare' starts on GPUs that "
        "nobody else needs, does not count against the quota, and gives them back as soon as somebody does.",
    )
    placement: Placement = Field(
        default="pack",
        description="'pack': tasks that need several nodes go into one rack, else one zone, as far as their cloud says where its "
        "nodes are. 'spread': each goes to another node, rack and zone, if there are enough. Only where the portal places runs.",
    )
    time_limit: int | None = Field(
        default=None, ge=60, le=60 * 86400, description="Seconds after which a run is stopped."
    )
    termination_grace_period: int = Field(
        default=GRACE_SECONDS,
        ge=1,
        le=MAX_GRACE_SECONDS,
        description="Seconds between SIGTERM and SIGKILL whenever its tasks are ended: stopped, at the time limit, or taken "
        "back. A program that saves a checkpoint at SIGTERM needs as many as that takes.",
    )
    idle: IdleSpec = IdleSpec()
    hooks: Annotated[tuple[HookSpec, ...], Field(max_length=MAX_HOOKS)] = Field(
        default=(),
        description="What is done before and after each run. One that fails after the run changes nothing of it; before "
        "it, the run fails.",
    )
    schedule_after: dt.datetime | None = Field(default=None, description="The first deployment waits until this time.")

    @field_validator("command")
    @classmethod
    def _command(cls, value: str, info: ValidationInfo) -> str:
        framework = FRAMEWORKS.get(info.data.get("framework", ""))
        if not value.strip() and (framework is None or framework.needs_command):
            raise ValueError('Say what to run, as in bash -c "…".' if value else "Fill this in.")
        if len(value.encode()) > MAX_COMMAND_BYTES:
            raise ValueError(f"A command has at most {MAX_COMMAND_BYTES // 1024} KiB; put a longer one into a file.")
        return value if value.strip() else ""

    @field_validator("env")
    @classmethod
    def _env(cls, value: dict[str, str]) -> dict[str, str]:
        check_env(value)
        return value

    @field_validator("hooks")
    @classmethod
    def _hooks(cls, value: tuple[HookSpec, ...]) -> tuple[HookSpec, ...]:
        for number, hook in enumerate(value):
            if any(other.name == hook.name for other in value[:number]):
                raise field_error(f"There are two hooks “{hook.name}”; name one otherwise.", str(number), "name")
            check_hook_env(hook.env, str(number))
        return value

    @field_validator("output_path")
    @classmethod
    def _output_path(cls, value: str) -> str:
        rest = value.replace("{name}", "").replace("{run}", "")
        if not OUTPUT_PATH.fullmatch(value) or "{" in rest or "}" in rest:
            raise ValueError("Use letters, digits, '.', '_', '-' and '/'; {name} and {run} are filled in.")
        if value.startswith("/") or ".." in value.split("/"):
            raise ValueError("Give a folder inside the datastore, without a leading '/' and without '..'.")
        return value

    @field_validator("runs")
    @classmethod
    def _runs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not RUN_NAME.fullmatch(name):
                raise ValueError(f"“{name}” is no run; write CLUSTER/NUMBER, for example train/3.")
        if len(set(value)) < len(value):
            raise ValueError("Name each run once.")
        return value

    @field_validator("requirements")
    @classmethod
    def _requirements(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(line for each in value if (line := each.strip()))

    @field_validator("plugins")
    @classmethod
    def _plugins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len({name.partition(":")[0] for name in value}) < len(value):
            raise ValueError("Name each plugin once.")
        return value

    @field_validator("schedule_after")
    @classmethod
    def _aware(cls, value: dt.datetime | None) -> dt.datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("Give the time zone, for example 2026-01-31T18:00:00Z.")
        try:
            return value and value.astimezone(dt.UTC)
        except OverflowError as error:
            raise ValueError("Calendars end before this time.") from error

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, value: Any) -> Any:
        """Fills in the defaults that depend on the framework."""
        if not isinstance(value, dict) or not isinstance(value.get("framework", ""), str):
            return value
        framework = FRAMEWORKS.get(value.get("framework") or next(iter(FRAMEWORKS)))
        if framework is None:
            return value
        usual = {"mode": framework.modes[0], "completion": framework.usual_completion(_asked(value.get("roles")))}
        return {**usual, "idle": usual_idle(framework), **value}

    @model_validator(mode="after")
    def _framework(self) -> Self:
        framework = FRAMEWORKS[self.framework]
        framework.validate(self)
        self._check_requirements()
        self._check_endpoints()
        turns = next((role for role, spec in self.roles.items() if spec.at_once), "")
        if turns and not framework.is_independent:
            raise field_error(
                "Only tasks that know nothing of each other can take turns; leave it out, or choose 'parallel'.",
                "roles", turns, "atOnce",
            )  # fmt: skip
        if self.hooks and framework.is_application:
            raise field_error("Only what computes has hooks.", "hooks")
        if self.input and self.input.mode == "stream" and (taken := sorted(STREAM_ENV & self.env.keys())):
            raise field_error(f"{taken[0]} is set by the portal where input is streamed.", "env")
        if self.idle.policy != "never" and not framework.idle_signal:
            raise field_error(
                f"Nobody can tell whether it works ({framework.title} does not say); choose 'never', and give it a time limit.",
                "idle",
                "policy",
            )
        if framework.is_shell and self.access.to == "everybody":
            raise field_error(
                f"Whoever opens {framework.title} runs programs in this appcode; name the people.", "access", "to"
            )
        return self

    def _check_requirements(self) -> None:
        if not self.requirements:
            return
        framework = FRAMEWORKS[self.framework]
        if self.environment:
            raise field_error("Give requirements or a saved environment, not both.", "requirements")
        if framework.has_layer:
            sentence = f"Install packages in {framework.title} itself, where they are kept, or save an environment."
            raise field_error(sentence, "requirements")
        if self.server:
            raise field_error("A serving runtime brings its own packages.", "requirements")
        try:
            required(self.requirements, self.code.files if self.code else None)
        except ValueError as error:
            raise field_error(str(error), "requirements") from None

    @property
    def required(self) -> tuple[str, ...]:
        """All packages to install over the image, including those in the files that `requirements` names."""
        return required(self.requirements, self.code.files if self.code else None)

    def _check_endpoints(self) -> None:
        names = [each.name for each in self.served]
        for role, spec in self.roles.items():
            if not spec.endpoints:
                continue
            if self.mode != "service":
                raise field_error(
                    "Only a service can be opened; choose the mode 'service'.", "roles", role, "endpoints"
                )
            if spec.count > 1:
                raise field_error("Only a role with one task can be opened.", "roles", role, "count")
            for endpoint in spec.endpoints:
                if names.count(endpoint.name) > 1:
                    raise field_error(f"There are two endpoints “{endpoint.name}”.", "roles", role, "endpoints")

    def endpoints(self, role: str) -> list[Endpoint]:
        """The endpoints that the manifest names for a role."""
        spec = self.roles.get(role)
        return [Endpoint(each.name, each.port, each.health) for each in spec.endpoints] if spec else []

    @property
    def served(self) -> list[Endpoint]:
        framework = FRAMEWORKS[self.framework]
        return [endpoint for role in self.active_roles for endpoint in framework.endpoints(self, role)]

    def count(self, role: RoleName) -> int:
        spec = self.roles.get(role)
        return spec.count if spec else 0

    @property
    def active_roles(self) -> dict[RoleName, RoleSpec]:
        """The roles that have at least one task, in rank order."""
        return {role: self.roles[role] for role in ROLES if self.count(role)}


def _asked(roles: Any) -> list[str]:
    """The roles in unvalidated input that ask for at least one task."""
    asked = roles.items() if isinstance(roles, dict) else ()
    return [name for name, said in asked if not (isinstance(said, dict) and said.get("count") in (0, "0"))]


class ClusterMetadata(Strict):
    name: Annotated[ClusterName, Kept("A cluster keeps its name; clone it under another one.")]
    appcode: Annotated[AppcodeName, Kept("A cluster stays in its appcode; clone it to another one.")]


class ClusterManifest(Manifest):
    """`{"kind":"cluster","metadata":{"name","appcode"},"spec":{…}}`. The portal writes `status` and ignores it in requests."""

    kind: Literal["cluster"] = "cluster"
    metadata: ClusterMetadata
    spec: ClusterSpec
