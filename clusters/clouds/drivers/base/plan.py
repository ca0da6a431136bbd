"""The input of a cloud: the reference to a run and its whole plan. Frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from clusters.admission.demand import ANY, Demand

RestartPolicy = Literal["OnFailure", "Always"]
SourceKind = Literal["s3", "nfs", "local", "volume"]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]

CODE = "/elearn/code"


@dataclass(frozen=True)
class Access:
    """How to reach a cloud, from its row. `credentials`: in the driver's form, None for those of the portal's own environment.
    `settings`: as JSON. `prometheus_token`: for the Prometheus in the settings."""

    name: str
    credentials: str | None = field(repr=False)
    settings: Mapping[str, Any]
    prometheus_token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Gateway:
    """The gateway to the endpoints of a cloud. Their names are below `domain`, "" for the portal's. The portal itself connects
    to `address` (http://host:port), "" if the names resolve for it."""

    domain: str = ""
    address: str = ""


@dataclass(frozen=True)
class RunRef:
    """Identifies one run everywhere. `id` is unique for ever; the rest is for people, paths and labels. `life` counts how often
    it was taken off its cloud to be started anew: news of an earlier life is told apart by it."""

    id: int
    namespace: str
    appcode: str
    cluster: str
    number: int
    life: int = 0


@dataclass(frozen=True)
class S3Source:
    """A folder of a bucket. `prefix` has no leading or trailing slash; "" means the whole bucket. `own`: in the portal's own
    object storage, which tasks can reach at any address."""

    kind: ClassVar[SourceKind] = "s3"

    endpoint: str
    bucket: str
    prefix: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str = "us-east-1"
    own: bool = False


@dataclass(frozen=True)
class NfsSource:
    """A folder of an NFS export, mounted by the node. `path` includes the folder of the run.

    `root` is the existing folder that contains `path`; "" if they are the same.
    """

    kind: ClassVar[SourceKind] = "nfs"

    server: str
    path: str
    root: str = ""


@dataclass(frozen=True)
class LocalSource:
    """A folder of this machine that an administrator allowed. `root` is the allowed folder, `path` is inside it.

    The cloud resolves symbolic links at the start and refuses a path that leaves `root`.
    """

    kind: ClassVar[SourceKind] = "local"

    root: str
    path: str


@dataclass(frozen=True)
class VolumeRef:
    """Identifies one volume everywhere. `id` is unique for ever; the rest is for people, names and labels."""

    id: int
    namespace: str
    appcode: str
    datastore: str


@dataclass(frozen=True)
class VolumeSource:
    """A folder of a volume, which exists from the first run that mounts it until `delete_volume`.

    `storage_class` is the cloud's term for how it is made ("" for its default), `size` a Kubernetes quantity. A ReadWriteOnce
    volume is mounted by one task at a time. `folder` is inside the volume and is created if missing.
    """

    kind: ClassVar[SourceKind] = "volume"

    volume: VolumeRef
    storage_class: str
    size: str
    access_mode: AccessMode
    folder: str = ""


Source = S3Source | NfsSource | LocalSource | VolumeSource


@dataclass(frozen=True)
class Mount:
    """A datastore at a path inside every task. Input is read-only and fetched before the start.

    For output, existing files are fetched first, too (resuming). During the run changed files are stored every few seconds, and
    once more when the last task has ended, whether it succeeded, failed or was stopped.

    `shown_gib`: another run's output, for people to read. It may be empty; of a bucket at most this many GiB are fetched, and a
    file NOT-ALL-IS-COPIED.txt says so.

    `follow`, read-only: fetches only the event files of a bucket (`follow.PATTERN`), a piece of each before the start. The
    copies grow within seconds of the originals; see drivers/follow.py. Mounted sources do not need it.

    `parts`, read-only: each task sees the part of the files that its role defines. `folds`: training files and the held-out
    files of `fold` are in separate folders. See drivers/parts.py. For mounted sources the task sees links, and the whole beside
    them.

    `cached`, read-only, buckets: copied once for all runs that read the same, which share the copy. `disk_bytes` is its size on
    disk, 0 if unknown. With `or_copied` it is copied for this run alone if the cloud has no cache or no room for it.

    `stream_key`, read-only, buckets: nothing is copied or mounted; tasks read S3 themselves, with `stream_variables`. This key
    opens nothing else.

    `beside`, read-only: copied next to an input, as a whole, and not recorded.

    `digest`, read-only, buckets: the digest that the listing of the source (datastores/listing.py) must have, or the run is
    refused. `version` is its name for people.
    """

    mount_path: str
    read_only: bool
    source: Source
    follow: bool = False
    shown_gib: float = 0
    parts: int = 0
    fold: int = 0
    folds: int = 0
    version: str = ""
    digest: str = ""
    cached: bool = False
    or_copied: bool = False
    disk_bytes: int = 0
    beside: bool = False
    stream_key: str = field(default="", repr=False)

    @property
    def is_divided(self) -> bool:
        return bool(self.parts or self.folds)

    def stream_variables(self, address: str) -> dict[str, str]:
        """Returns the variables for streaming. S3 SDKs read all but PORTAL_INPUT, its URL. The server at `address` identifies
        tasks by the access key alone."""
        source = self.source
        if not isinstance(source, S3Source) or not self.stream_key:
            return {}
        return {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": self.stream_key[:20],
            "AWS_SECRET_ACCESS_KEY": self.stream_key[20:],
            "AWS_DEFAULT_REGION": source.region,
            "AWS_REGION": source.region,
            "PORTAL_INPUT": "/".join(part for part in (f"s3://{source.bucket}", source.prefix) if part),
        }

    @property
    def is_input(self) -> bool:
        """True if it is copied as input of a computation, so that its content is recorded."""
        return self.read_only and not (self.follow or self.shown_gib or self.stream_key or self.beside)


@dataclass(frozen=True)
class ImageRef:
    """The source of a program's software: a container image, or a virtual environment and a program folder on this machine.

    `container`: a reference for Kubernetes, "" for none. `environment`: path of a virtual environment. `program`: a folder
    mounted read-only at /elearn/program, where commands start, "" for none.
    """

    name: str
    container: str
    environment: str
    program: str


# The exit code of `Environment.install` if the package index cannot be reached (frameworks/inside/install.py).
INDEX_UNREACHED = 75


@dataclass(frozen=True)
class Environment:
    """Packages over the image: those an appcode saved and the plugins it chose (`name` for people, `digest` unique for ever), or
    a run's requirements.

    `lock` is a requirements file with hashes; those after a line `# plugins` go into a separate layer, PATH/plugins, for the
    image's own program. With a first line `# requirements` it is pip's input, and pip resolves the versions. `script` is run
    once by a shell afterwards ("" for none), with the environment in place and writable. `install` is a program for the image's
    own Python: with the arguments PATH LOCK CACHE LINK it makes the environment at PATH from the file LOCK, by uv with its cache
    in CACHE and --link-mode LINK. With a further argument SCRIPT several processes may make the same one: LOCK is compressed by
    bz2, the script is run, too, a complete environment is kept, and another process's work is waited for. Where it fails, its
    last line is a sentence for people, and the exit code INDEX_UNREACHED tells that another try may succeed.

    A cloud makes it once per digest and image, before any task that uses it starts, and mounts it read-only in all of them.
    Incomplete ones are never visible.
    """

    name: str
    digest: str
    lock: str
    script: str
    install: str


@dataclass(frozen=True)
class CodeFiles:
    """Text files by their paths below CODE, where every task finds them read-only and starts."""

    files: Mapping[str, str] = field(repr=False)
    folder: ClassVar[str] = ""


@dataclass(frozen=True)
class CodeCommit:
    """All files of a Git commit, read-only at CODE in every task, which starts in `folder` of them. `name` and `token`
    authenticate at the Git server, "" for none; no task ever sees them."""

    url: str
    commit: str
    folder: str = ""
    name: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Endpoint:
    """An HTTP server of a role's tasks, on `port` of their own network. `name`: a DNS label of at most 15 characters with a
    letter in it, unique in the run. `health`: a path that answers with a status below 500 once people may come, which is after
    `warm_up_seconds` of such answers. `activity`: a path that reports whether the task works (see activity.py), "" for none.
    `origin`: where people open it, as https://host:port; a cloud with its own gateway routes it to the ready tasks."""

    name: str
    port: int
    health: str = "/"
    activity: str = ""
    origin: str = ""
    warm_up_seconds: int = 0


@dataclass(frozen=True)
class RolePlan:
    """All tasks of one role; they differ only in TASK_INDEX (0 … count-1).

    Where they know nothing of each other `at_once` of them run at the same time, at most `count`, and one that ends makes room
    for the next; 0: they need each other, so all do.

    `argv` is run exactly as it stands, without a shell of ours. `gpu_model` is "" for any. `restart`: OnFailure starts a
    failed task again up to `retries` times (None: see base/restart_policy.py) and leaves a succeeded one alone; Always
    keeps every task alive, with back-off, until the run is deleted. `nodes`: the only nodes on which its tasks may run, by name;
    any if empty. Only a cloud that `places_runs` heeds them. `spread`: on as many nodes as possible.
    """

    role: str
    count: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cpu_milli: int
    memory_mb: int
    gpus: int
    gpu_model: str
    restart: RestartPolicy
    retries: int | None
    endpoints: tuple[Endpoint, ...] = ()
    # The program is the image's own even if the run has an environment, which PORTAL_ENVIRONMENT then names. Packages that people
    # install there can be saved, for which the task gets uv.
    from_image: bool = False
    # The part of a divided input for the first task; the next task gets the next. Below 0: none.
    first_part: int = -1
    at_once: int = 0
    nodes: tuple[str, ...] = ()
    spread: bool = False
    # What its GPUs are, and which nodes it may go to besides.
    demand: Demand = ANY

    @property
    def together(self) -> int:
        """The number of its tasks that run at the same time."""
        return self.at_once or self.count

    @property
    def is_apart(self) -> bool:
        """True if the tasks are independent."""
        return bool(self.at_once)


@dataclass(frozen=True)
class Plan:
    """Everything a cloud needs for one run. `grace_seconds`: between SIGTERM and SIGKILL.

    `shared`: literal variables for every task. The `env` of a role may refer to them and defines none of the same name. Values
    that grow with the number of tasks belong here, because a cloud stores them once. `secrets`: such variables, too, whose
    values never appear in what a cloud shows of a run (pod specification, command line, log).

    `proof`: requests to an endpoint must carry it, which shows that the portal's gateway or router sent them (../entrance.py).
    Kept like a secret.
    """

    run: RunRef
    image: ImageRef
    roles: tuple[RolePlan, ...]
    mounts: tuple[Mount, ...]
    grace_seconds: int = 10
    shared: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    proof: str = field(default="", repr=False)
    environment: Environment | None = None
    code: CodeFiles | CodeCommit | None = None
    # User name and password by registry, for pulling container images; never given to tasks.
    registries: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    # How the cloud gives all tasks their places at once or none any, in its own words (`Cloud.gang`); "" if it does not.
    gang: str = ""
    # With which its tasks record parameters and metrics at the portal (clusters/tracking); "" if they have their own server.
    tracking_token: str = field(default="", repr=False)

    def tracking_variables(self, address: str) -> dict[str, str]:
        """Returns the variables that MLflow's client reads. `address`: of the portal's tracking for tasks, "" for none."""
        if not address or not self.tracking_token:
            return {}
        return {"MLFLOW_TRACKING_URI": address, "MLFLOW_TRACKING_TOKEN": self.tracking_token}
