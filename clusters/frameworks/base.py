"""The contract of a framework driver: which roles a cluster has, how the tasks of each are started and find each other, and
when the run is done. Forms, manifests, plans, verdicts and metering read the driver; none of them knows a role by name.

A driver is pure. It writes values once per role in the syntax of `drivers.base.expand`, so that one Kubernetes object per role
is enough. Two references differ between tasks: `$(TASK_INDEX)` counts within the role from 0, and `$(TASK_RANK)` within the run,
through the roles in the order in which the driver names them: with one master, worker-0 has rank 1. Programs find both in their
environment, too. What names all tasks is written once per run by `shared`, and the values of roles refer to it.

The contract also fits a launcher, where one task starts the program of all others, as MPI does. This is how such a driver reads;
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

Where the first worker is the launcher itself, the argv of the role is a shell that asks for its TASK_INDEX.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from portal.manifests import field_error

MAX_TASKS_PER_ROLE = 1000

# How commands of users are run.
SHELL = ("bash", "-o", "pipefail", "-c")

# Where a program that people open listens: an entrance leads there on every cloud (clouds/drivers/entrance.py).
LOOPBACK = "127.0.0.1"

# `host:port` by role and index.
Addresses = Mapping[tuple[str, int], str]


@dataclass(frozen=True)
class Resources:
    """What one task of a role holds; copied from the flavor when a run is made, because flavors change. What copies and stores
    its data beside it takes room on its machine, too (`beside_…`), and nobody pays for that."""

    flavor: str
    cpu_milli: int
    memory_mb: int
    gpus: int
    gpu_model: str
    beside_cpu_milli: int = 0
    beside_memory_mb: int = 0


@dataclass(frozen=True)
class Endpoint:
    """What the task of a role serves by HTTP on `port`; `health` is a path that is answered as soon as people may come, and
    `activity` one that says whether the task works (`drivers/base/activity.py`). People may come when `health` was answered for
    `warm_up_seconds`."""

    name: str
    port: int
    health: str = "/"
    activity: str = ""
    warm_up_seconds: int = 0


@dataclass(frozen=True)
class Role:
    """`name` is what manifests say, `title` what people read. A cluster has from `least` to `most` tasks of it.

    The tasks of a role that is `kept_alive` serve the others and have no end of their own: they are started again whenever they
    end, until the run is over. A role that does not `take_part` is no member of the computation, and stands apart in forms and
    lists. One that `leads` is asked for unless there are workers alone, of which worker 0 leads then.
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
        """There is nothing to choose but the flavor."""
        return self.least == self.most or self.leads

    @property
    def is_usual(self) -> bool:
        """Whether a cluster has it that says nothing."""
        return bool(self.least) or self.leads

    def counted(self, count: int) -> str:
        """ "one master", "2 parameter servers"."""
        noun = self.title.lower()
        return f"one {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True)
class Completion:
    """A run that is to end by itself is done when every task of `role` has succeeded. `name` is what manifests say, `title` what
    people read after "The run is done"."""

    name: str
    role: str
    title: str


@dataclass(frozen=True)
class Launch:
    """How every task of one role starts: `argv` exactly as it stands, and `env` in the syntax of `drivers.base.expand`."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    # Whether the program is the image's own where the run has a saved environment: it is named in PORTAL_ENVIRONMENT, and what it
    # has of broken packages keeps nobody from opening the program.
    from_image: bool = False


MASTER = Role("master", "Master", least=1, most=1)
LEADER = Role("master", "Master", most=1, leads=True, hint="Without one, worker 0 leads.")
WORKER = Role("worker", "Worker")
EVALUATOR = Role("evaluator", "Evaluator", most=1, takes_part=False, hint="Tests checkpoints while the others train.")
MASTER_DONE = Completion("master", "master", "when the master has finished")
WORKERS_DONE = Completion("workers", "worker", "when all workers have finished")


class NotebookSource(Protocol):
    """A notebook as a run has it: its path below the home where it was read, its text without outputs, and what it is given."""

    @property
    def path(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, object]: ...


class Server(Protocol):
    """A program that serves a model, and how it is started."""

    @property
    def argv(self) -> tuple[str, ...]: ...

    @property
    def port(self) -> int: ...

    @property
    def health(self) -> str: ...

    @property
    def warm_up_seconds(self) -> int: ...


class Spec(Protocol):
    """What a driver may read of a cluster's spec."""

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
        """Those that people named for a role."""


class Framework(ABC):
    name: ClassVar[str]
    title: ClassVar[str]
    # An application is opened in a browser, and has a form and a list of its own.
    is_application: ClassVar[bool] = False
    # Whether it is software that an image has or has not. What people bring themselves runs in any.
    is_installed: ClassVar[bool] = True
    # Whether its tasks know nothing of each other: one that fails ends none of the others, and the run is over when
    # each has ended.
    is_independent: ClassVar[bool] = False
    # Whether people choose which Keras its programs find.
    has_keras: ClassVar[bool] = False
    # Whether somebody who opens it can run programs with it: then nobody is let in who may not run clusters of the appcode,
    # unless an owner names them.
    is_shell: ClassVar[bool] = False
    # How is known whether it is idle: its endpoint says whether it works, or it does nothing by itself and works for whom the
    # gateway lets in ("use"). "": nobody can tell, and it is never stopped for that.
    idle_signal: ClassVar[Literal["work", "use", ""]] = ""
    # Seconds of idleness after which one is stopped whose manifest says nothing; 0 for never.
    idle_after: ClassVar[int] = 0
    # What its tasks see of the outputs of runs, those that a manifest names: all files, or event files as they grow.
    shows_runs: ClassVar[Literal["files", "events", ""]] = ""
    # Whether what it runs is a notebook that the manifest has.
    runs_notebook: ClassVar[bool] = False
    # Whether its tasks keep what people install in a layer (layer.py), named in PORTAL_LAYER, which can be saved.
    has_layer: ClassVar[bool] = False
    # Whether it cannot do without a datastore of its own, at /elearn/home.
    needs_home: ClassVar[bool] = False
    # Whether its server takes plugins that administrators offer with its image.
    has_plugins: ClassVar[bool] = False
    # The first is that of a manifest which says nothing.
    modes: ClassVar[tuple[Literal["batch", "service"], ...]] = ("batch", "service")
    needs_command: ClassVar[bool] = True
    # In the order of ranks. Several drivers may have a role of the same name, in the same order.
    roles: ClassVar[tuple[Role, ...]]
    # The first is that of a manifest which says nothing.
    completions: ClassVar[tuple[Completion, ...]] = (MASTER_DONE, WORKERS_DONE)
    # Every variable that `shared` or `launch` may set: a user's own value would be lost without a word.
    reserved_env: ClassVar[frozenset[str]] = frozenset()

    def validate(self, spec: Spec) -> None:
        """Raises `field_error` with the path inside the spec of what this framework cannot run."""
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
        """The role whose first task leads; "" where nobody would. Parameter servers need a master, which coordinates."""
        if not self.roles[0].leads or spec.count(self.roles[0].name):
            return self.roles[0].name
        serves = any(role.kept_alive and spec.count(role.name) for role in self.roles)
        return WORKER.name if spec.count(WORKER.name) and not serves else ""

    def usual_completion(self, roles: Container[str]) -> str:
        """What a manifest with such `roles` means that says nothing."""
        return next((each.name for each in self.completions if each.role in roles), self.completions[0].name)

    def is_alone(self, spec: Spec) -> bool:
        """Whether there is one task: a plain program stays a plain program, and is told of no others."""
        return sum(spec.count(role.name) for role in self.roles) == 1

    def endpoints(self, spec: Spec, role: str) -> Sequence[Endpoint]:
        """What the task of `role` serves: here what people named."""
        return spec.endpoints(role)

    def shared(self, spec: Spec, addresses: Addresses) -> Mapping[str, str]:
        """Variables that are the same for every task, exactly as they stand. `addresses` has every (role, index)."""
        return {}

    @abstractmethod
    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        """How every task of `role` starts, besides the shared variables. `resources` is what one task of each role holds."""

    def readers(self, spec: Spec) -> Sequence[str]:
        """The roles whose tasks, in this order, each read a part of an input that is divided. The others read none of it."""
        return [role.name for role in self.roles if role.takes_part and not role.kept_alive and spec.count(role.name)]

    def completion(self, name: str) -> Completion:
        """What a valid spec means by `completion`."""
        return next(each for each in self.completions if each.name == name)

    def role(self, name: str) -> Role:
        return next(each for each in self.roles if each.name == name)

    def members(self, spec: Spec) -> int:
        """How many tasks take part in the computation."""
        return sum(spec.count(role.name) for role in self.roles if role.takes_part)


def _bounds(role: Role, count: int) -> str:
    if role.is_fixed:
        return f"A cluster has exactly {role.counted(role.least)}."
    return f"At most {role.counted(role.most)}." if count > role.most else f"At least {role.counted(role.least)}."


def shell(command: str) -> tuple[str, ...]:
    """The argv of a command as a user types it. It fails when any program of a pipe fails, as in `python train.py | tee log`."""
    return (*SHELL, command)


def prepared(command: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` after a command of the user's, where there is one."""
    return (*SHELL, f'{command}\nexec "$@"', "bash", *argv) if command else argv


def addresses_of(addresses: Addresses, role: str, count: int) -> list[str]:
    """The addresses of one role in the order of their index."""
    return [addresses[role, index] for index in range(count)]
