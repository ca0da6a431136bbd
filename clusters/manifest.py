"""What people ask for: the cluster manifest, as one typed and validated value.

The New Cluster form, a REST body and an imported manifest file all become a `ClusterManifest`; nothing else reaches an
action, so they accept and refuse the same things. Whether a name in it exists (image, flavor, datastore) is the
database's business and is checked in `catalog.py`; everything that can be judged from the value alone is judged here.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from clusters.frameworks import COMPLETIONS, FRAMEWORKS, ROLES
from clusters.frameworks.base import MAX_TASKS_PER_ROLE
from portal.manifests import AppcodeName, Manifest, Strict, dns_label

MAX_COMMAND_BYTES = 64 * 1024
MAX_ENV_VARIABLES = 200
MAX_ENV_BYTES = 64 * 1024
# A run's objects are named <cluster>-<run>-<role>-<index> and a DNS label has 63 characters, so the name gets what is left.
MAX_NAME = 40

# The names that drivers give, also for the description of REST; which of them go together is for the driver to say.
if TYPE_CHECKING:
    FrameworkName = str
    RoleName = str
    CompletionName = str
else:
    FrameworkName = Literal[tuple(FRAMEWORKS)]
    RoleName = Literal[tuple(ROLES)]
    CompletionName = Literal[tuple(COMPLETIONS)]
Mode = Literal["batch", "service"]

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names that the portal itself sets in every task; those of a framework stand in its driver.
RESERVED_ENV = frozenset(
    {"TASK_INDEX", "TASK_RANK", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"}
)
OUTPUT_PATH = re.compile(r"[A-Za-z0-9._{}/-]*")


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("A NUL character cannot be passed to a program.")
    return value


ClusterName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME), AfterValidator(dns_label)]
Text = Annotated[str, AfterValidator(_no_nul)]


class RoleSpec(Strict):
    """One role: the flavor (name in the catalogue) of each of its tasks, and how many tasks."""

    flavor: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    count: int = Field(default=1, ge=0, le=MAX_TASKS_PER_ROLE)


class ClusterSpec(Strict):
    """What one cluster runs. `input` and `output` name datastores of the same appcode.

    `output_path` is the folder inside the output datastore; `{name}` and `{run}` become the cluster's name and the run's
    number, so that by default no run overwrites another. A path without `{run}` is shared by all runs: what lies there is
    fetched before the start, which is how training resumes from a checkpoint.
    """

    framework: FrameworkName = next(iter(FRAMEWORKS))
    image: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    command: Annotated[Text, StringConstraints(min_length=1)]
    env: dict[str, Text] = Field(default_factory=dict, max_length=MAX_ENV_VARIABLES)
    input: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    output: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    output_path: Annotated[str, StringConstraints(max_length=200)] = "{name}/{run}"
    mode: Mode = "batch"
    roles: dict[RoleName, RoleSpec]
    completion: CompletionName = next(iter(COMPLETIONS))
    retries: int = Field(default=1, ge=0, le=10, description="How often one task may fail and be started again.")
    time_limit: int | None = Field(
        default=None, ge=60, le=60 * 86400, description="Seconds after which a run is stopped."
    )
    schedule_after: dt.datetime | None = Field(default=None, description="The first deployment waits until this time.")

    @field_validator("command")
    @classmethod
    def _command(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("Say what to run; it is appended after bash -c.")
        if len(value.encode()) > MAX_COMMAND_BYTES:
            raise ValueError(f"A command has at most {MAX_COMMAND_BYTES // 1024} KiB; put a longer one into a file.")
        return value

    @field_validator("env")
    @classmethod
    def _env(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            check_env_name(name)
        if sum(len(name.encode()) + len(text.encode()) for name, text in value.items()) > MAX_ENV_BYTES:
            raise ValueError(f"All variables together may have {MAX_ENV_BYTES // 1024} KiB.")
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

    @field_validator("schedule_after")
    @classmethod
    def _aware(cls, value: dt.datetime | None) -> dt.datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("Give the time zone, for example 2026-01-31T18:00:00Z.")
        try:
            return value and value.astimezone(dt.UTC)
        except OverflowError as error:
            raise ValueError("Calendars end before this time.") from error

    @model_validator(mode="after")
    def _framework(self) -> Self:
        FRAMEWORKS[self.framework].validate(self)
        return self

    def count(self, role: RoleName) -> int:
        """The number of tasks of `role`; 0 when the role is absent."""
        spec = self.roles.get(role)
        return spec.count if spec else 0

    @property
    def active_roles(self) -> dict[RoleName, RoleSpec]:
        """The roles that have at least one task, in the order of their ranks."""
        return {role: self.roles[role] for role in ROLES if self.count(role)}


class ClusterMetadata(Strict):
    name: ClusterName
    appcode: AppcodeName


class ClusterManifest(Manifest):
    """`{"kind":"cluster","metadata":{"name","appcode"},"spec":{…}}`; `status` is ours and is ignored when it comes back."""

    kind: Literal["cluster"] = "cluster"
    metadata: ClusterMetadata
    spec: ClusterSpec


def check_env_name(name: str) -> None:
    """Raises ValueError when `name` cannot be set by a user."""
    if not ENV_NAME.fullmatch(name):
        raise ValueError(f"“{name}” is not a variable name; use letters, digits and '_', and no digit at the start.")
    if name in RESERVED_ENV:
        raise ValueError(f"{name} is set by the portal.")


def parse_env(text: str) -> dict[str, str]:
    """`PYTHONPATH=/demo | DATA_DIR=/elearn/output` as a dictionary, as the New Cluster form takes it.

    Spaces around `|` and around names go; a value may contain `=`. A `|` inside a value is written `\\|`. Raises
    ValueError naming the part that has no `=` or a name that is given twice.
    """
    env: dict[str, str] = {}
    for part in re.split(r"(?<!\\)\|", text):
        part = part.replace("\\|", "|").strip()
        if not part:
            continue
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals:
            raise ValueError(f"“{part}” has no '='; write NAME=value and divide several by |.")
        check_env_name(name)
        if name in env:
            raise ValueError(f"{name} is given twice.")
        env[name] = value.strip()
    return env


def format_env(env: dict[str, str]) -> str:
    """The inverse of `parse_env` (for values without leading or trailing spaces), for a form that is filled again."""
    return " | ".join(f"{name}={value}".replace("|", "\\|") for name, value in env.items())
