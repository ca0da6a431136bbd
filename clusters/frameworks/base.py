"""The contract of a framework driver: the roles of a cluster, how their tasks start and find each other, and when the run is
done. Forms, manifests, plans, verdicts and metering read the driver; none of them knows a role by name.

Drivers are pure. They write values once per role in the syntax of `drivers.base.expand`, so that one Kubernetes object per role
is enough. Two references differ between tasks: `$(TASK_INDEX)` counts within the role from 0, and `$(TASK_RANK)` within the run,
over the roles in the driver's order: with one master, worker-0 has rank 1. Programs find both in their environment, too.
`shared` writes values that name all tasks once per run, and the values of roles refer to them.

The contract also fits launchers such as MPI, where one task starts the program of all others. Such a driver would be as follows;
the agent is whatever the image has for starting a process on request, usually sshd:

    class MPI(Framework):
        name, title = "mpi", "MPI"
        roles = (Role("master", "Launcher", least=1, most=1), Role("worker", "Worker", least=1, kept_alive=True))
        completions = (Completion("master", "master", "when the launcher has finished"),)
        reserved_env = frozenset({"MPI_HOSTS"})

        def shared(self, spec, addresses):
            return {"MPI_HOSTS": ",".join(host for host, _, _ in …)}           # each worker's address without its port

        def launch(self, spec, role, addresses, resources):
            if role == "worker":
                return Launch(("/usr/sbin/sshd", "-D", "-p", "2222"))          # kept alive until the launcher is done
            return Launch((*SHELL, 'mpirun --host "$MPI_HOSTS" bash -c "$0"', spec.command))

If the first worker itself is the launcher, the argv of the role is a shell that tests TASK_INDEX.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from clusters.admission.demand import DEMANDS, GPU, Demand, demand_of, is_whole
from portal.manifests import field_error

MAX_TASKS_PER_ROLE = 1000

# Runs users' commands.
SHELL = ("bash", "-o", "pipefail", "-c")

# Applications listen here; on every cloud an entrance forwards to it (clouds/drivers/entrance.py).
LOOPBACK = "127.0.0.1"

# `host:port` by role and index.
Addresses = Mapping[tuple[str, int], str]


@dataclass(frozen=True)
class Resources:
    """Resources of one task of a role. Copied from the flavor when a run is made, because flavors change. `beside_…`: used on
    the task's machine by the helpers that copy and store its data; not billed. `resource` and what follows: as in `Flavor`."""

    flavor: str
    cpu_milli: int
    memory_mb: int
    gpus: int
    gpu_model: str
    beside_cpu_milli: int = 0
    beside_memory_mb: int = 0
    resource: str = GPU
    node_labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()
    extra: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def demand(self) -> Demand:
        return demand_of(self.__dict__)

    @property
    def whole_gpus(self) -> int:
        """GPUs that count against a quota; slices do not."""
        return self.gpus if is_whole(self.demand.counted(self.gpu_model)) else 0

    def json_value(self) -> dict[str, Any]:
        """Without what only some flavors have: release 1.0 does not know these names."""
        is_usual = self.resource == self.demand.counted(self.gpu_model) == GPU
        given = {"resource": not is_usual, **{name: bool(getattr(self, name)) for name in DEMANDS}}
        return {name: value for name, value in asdict(self).items() if given.get(name, True)}


@dataclass(frozen=True)
class Endpoint:
    """An HTTP server in a task of a role. `health`: a path that answers once people may come. `activity`: a path that reports
    whether the task works (`drivers/base/activity.py`). `warm_up_seconds`: how long `health` must answer before people are let
    in."""

    name: str
    port: int
    health: str = "/"
    activity: str = ""
    warm_up_seconds: int = 0


@dataclass(frozen=True)
class Role:
    """`name` is used in manifests, `title` is shown to people. A cluster has `least` to `most` tasks of the role.

    `kept_alive`: its tasks serve the others and never end by themselves; they are restarted until the run is over. `takes_part`:
    false for roles outside the computation, which forms and lists show apart. `leads`: clusters have it by default; with workers
    alone, worker 0 leads.
    """

    name: str
    title: str
    least: int = 0
    most: int = MAX_TASKS_PER_ROLE
    kept_alive: bool = False
    takes_part: bool = True
    hint: str = ""
    leads: bool = False

    @property
    def is_fixed(self) -> bool:
        """True if only the flavor can be chosen."""
        return self.least == self.most or self.leads

    @property
    def is_usual(self) -> bool:
        """True if a cluster has the role by default."""
        return bool(self.least) or self.leads

    def counted(self, count: int) -> str:
        """ "one master", "2 parameter servers"."""
        noun = self.title.lower()
        return f"one {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True)
class Completion:
    """A batch run is done when every task of `role` has succeeded. `title` is shown after "The run is done"."""

    name: str
    role: str
    title: str


@dataclass(frozen=True)
class Launch:
    """How every task of one role starts: `argv` literally, `env` in the syntax of `drivers.base.expand`."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    # The program comes from the image even if the run has a saved environment, which is then only named in PORTAL_ENVIRONMENT:
    # broken packages in it cannot keep people from opening the program.
    from_image: bool = False


MASTER = Role("master", "Master", least=1, most=1)
LEADER = Role("master", "Master", most=1, leads=True)
WORKER = Role("worker", "Worker")
EVALUATOR = Role("evaluator", "Evaluator", most=1, takes_part=False, hint="Tests checkpoints while the others train.")
MASTER_DONE = Completion("master", "master", "when the master has finished")
WORKERS_DONE = Completion("workers", "worker", "when all workers have finished")


class NotebookSource(Protocol):
    """A notebook in a spec: its path below the home, its source without outputs, and its parameters."""

    @property
    def path(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, object]: ...


class Server(Protocol):
    """How a program that serves a model is started."""

    @property
    def argv(self) -> tuple[str, ...]: ...

    @property
    def port(self) -> int: ...

    @property
    def health(self) -> str: ...

    @property
    def warm_up_seconds(self) -> int: ...


class Spec(Protocol):
    """The part of a cluster's spec that drivers may read."""

    @property
    def command(self) -> str: ...

    @property
    def completion(self) -> str: ...

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def active_roles(self) -> Mapping[str, object]:
        """The roles that have at least one task."""

    @property
    def mode(self) -> str: ...

    @property
    def home(self) -> str | None: ...

    @property
    def runs(self) -> Sequence[str]: ...

    @property
    def output(self) -> str | None: ...

    @property
    def notebook(self) -> NotebookSource | None: ...

    @property
    def model(self) -> str | None: ...

    @property
    def server(self) -> Server | None: ...

    @property
    def image(self) -> str: ...

    @property
    def environment(self) -> str | None: ...

    @property
    def plugins(self) -> Sequence[str]: ...

    @property
    def keras(self) -> int | None: ...

    def count(self, role: str) -> int: ...

    def endpoints(self, role: str) -> Sequence[Endpoint]:
        """Returns the endpoints that the manifest names for a role."""


class Framework(ABC):
    name: ClassVar[str]
    title: ClassVar[str]
    # Opened in a browser; has its own form and list.
    is_application: ClassVar[bool] = False
    # Software that an image may lack. Commands that people bring run in any image.
    is_installed: ClassVar[bool] = True
    # Tasks are independent: a failed task does not end the others, and the run is over when each has ended.
    is_independent: ClassVar[bool] = False
    # People choose the version of Keras.
    has_keras: ClassVar[bool] = False
    # Opening it allows running programs, so only people who may run the appcode's clusters are admitted, unless an owner names
    # others.
    is_shell: ClassVar[bool] = False
    # How idleness is detected. "work": its endpoint reports whether it works. "use": requests let in by the gateway. "": not
    # detectable, so it is never stopped for idleness.
    idle_signal: ClassVar[Literal["work", "use", ""]] = ""
    # Default seconds of idleness before it is stopped; 0 for never.
    idle_after: ClassVar[int] = 0
    # How tasks see the outputs of the runs that a manifest names: all files, or event files as they grow.
    shows_runs: ClassVar[Literal["files", "events", ""]] = ""
    # The manifest contains the notebook that it runs.
    runs_notebook: ClassVar[bool] = False
    # Tasks keep installed packages in a layer (inside/layer.py), named in PORTAL_LAYER, which can be saved as an environment.
    has_layer: ClassVar[bool] = False
    # Requires a datastore of its own at /elearn/home.
    needs_home: ClassVar[bool] = False
    # Its server takes plugins that administrators offer with its image.
    has_plugins: ClassVar[bool] = False
    # The first is the default.
    modes: ClassVar[tuple[Literal["batch", "service"], ...]] = ("batch", "service")
    needs_command: ClassVar[bool] = True
    # In the order of ranks. Drivers that share role names list them in the same order.
    roles: ClassVar[tuple[Role, ...]]
    # The first is the default.
    completions: ClassVar[tuple[Completion, ...]] = (MASTER_DONE, WORKERS_DONE)
    # Every variable that `shared` or `launch` may set; manifests may not set them, because their value would silently be lost.
    reserved_env: ClassVar[frozenset[str]] = frozenset()

    def validate(self, spec: Spec) -> None:
        """Raises `field_error` with the path inside the spec for anything that this framework cannot run."""
        known = {role.name: role for role in self.roles}
        for name in spec.active_roles:
            if name not in known:
                has = ", ".join(known)
                raise field_error(f"{self.title} has no role “{name}”; it has: {has}.", "roles", name, "count")
        for role in self.roles:
            if not role.least <= spec.count(role.name) <= role.most:
                raise field_error(_bounds(role, spec.count(role.name)), "roles", role.name, "count")
        if not self.leader(spec):
            raise field_error(
                f"A cluster has one {self.roles[0].title.lower()}, or workers alone.",
                "roles",
                self.roles[0].name,
                "count",
            )
        self._check_completion(spec)
        if spec.mode not in self.modes:
            raise field_error(f"{self.title} runs as a {self.modes[0]} only; choose '{self.modes[0]}'.", "mode")
        for name, asked, is_taken, sentence in (
            ("runs", spec.runs, self.shows_runs, "shows no runs"),
            ("plugins", spec.plugins, self.has_plugins, "takes no plugins"),
            ("notebook", spec.notebook, self.runs_notebook, "runs no notebook"),
            ("keras", spec.keras, self.has_keras, "has no choice of Keras"),
        ):
            if asked and not is_taken:
                raise field_error(f"{self.title} {sentence}.", name)
        for name in spec.env:
            if name in self.reserved_env:
                raise field_error(f"{name} is set by the portal for {self.title}.", "env")

    def _check_completion(self, spec: Spec) -> None:
        chosen = next((each for each in self.completions if each.name == spec.completion), None)
        first = self.usual_completion(spec.active_roles)
        if chosen is None:
            raise field_error(f"{self.title} does not know this; choose '{first}'.", "completion")
        if not spec.count(chosen.role):
            noun = self.role(chosen.role).title.lower()
            raise field_error(f"There are no {noun}s to wait for; choose '{first}'.", "completion")

    def leader(self, spec: Spec) -> str:
        """Returns the role whose first task leads, or "" if there is none. Parameter servers need a master to coordinate."""
        if not self.roles[0].leads or spec.count(self.roles[0].name):
            return self.roles[0].name
        serves = any(role.kept_alive and spec.count(role.name) for role in self.roles)
        return WORKER.name if spec.count(WORKER.name) and not serves else ""

    def usual_completion(self, roles: Container[str]) -> str:
        """Returns the default completion of a manifest with these `roles`."""
        return next((each.name for each in self.completions if each.role in roles), self.completions[0].name)

    def is_alone(self, spec: Spec) -> bool:
        """True if there is a single task: its program gets no variables about other tasks."""
        return sum(spec.count(role.name) for role in self.roles) == 1

    def endpoints(self, spec: Spec, role: str) -> Sequence[Endpoint]:
        """Returns the endpoints of the tasks of `role`. Default: those in the manifest."""
        return spec.endpoints(role)

    def shared(self, spec: Spec, addresses: Addresses) -> Mapping[str, str]:
        """Returns variables that are equal for all tasks, as literal values. `addresses` has every (role, index)."""
        return {}

    @abstractmethod
    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        """Returns how every task of `role` starts, without the shared variables. `resources`: of one task of each role."""

    def readers(self, spec: Spec) -> Sequence[str]:
        """Returns the roles, in order, whose tasks each read a part of a divided input. Other roles read none of it."""
        return [role.name for role in self.roles if role.takes_part and not role.kept_alive and spec.count(role.name)]

    def completion(self, name: str) -> Completion:
        return next(each for each in self.completions if each.name == name)

    def role(self, name: str) -> Role:
        return next(each for each in self.roles if each.name == name)

    def members(self, spec: Spec) -> int:
        """Returns the number of tasks in the computation."""
        return sum(spec.count(role.name) for role in self.roles if role.takes_part)


def _bounds(role: Role, count: int) -> str:
    if role.is_fixed:
        return f"A cluster has exactly {role.counted(role.least)}."
    return f"At most {role.counted(role.most)}." if count > role.most else f"At least {role.counted(role.least)}."


def shell(command: str) -> tuple[str, ...]:
    """Returns the argv of a user's command. It fails when any program of a pipe fails, as in `python train.py | tee log`."""
    return (*SHELL, command)


def prepared(command: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Returns an argv that runs the user's command first, if there is one, then `argv`."""
    return (*SHELL, f'{command}\nexec "$@"', "bash", *argv) if command else argv


def addresses_of(addresses: Addresses, role: str, count: int) -> list[str]:
    return [addresses[role, index] for index in range(count)]
