"""What a cloud is told: which run, and the whole plan of it. Frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

RestartPolicy = Literal["OnFailure", "Always"]
SourceKind = Literal["s3", "nfs", "local", "volume"]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]

CODE = "/elearn/code"


@dataclass(frozen=True)
class Access:
    """How a cloud is reached, as its row says: `credentials` as its driver made them of those that were given, None for those of
    the place where the portal runs, `settings` as JSON, and the token of the Prometheus that these name."""

    name: str
    credentials: str | None = field(repr=False)
    settings: Mapping[str, Any]
    prometheus_token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Gateway:
    """What leads people to the endpoints of a cloud. Their names lie below `domain`, "" for that of the portal. The portal itself
    reaches it at `address` (http://host:port), "" where those names lead."""

    domain: str = ""
    address: str = ""


@dataclass(frozen=True)
class RunRef:
    """Names one run everywhere. `id` is unique for ever; the rest is for people, paths and labels."""

    id: int
    namespace: str
    appcode: str
    cluster: str
    number: int


@dataclass(frozen=True)
class S3Source:
    """A folder of a bucket. `prefix` has no leading and no trailing slash; empty means the whole bucket. `own`: it lies in the
    portal's own object storage, which tasks reach wherever that is.
    """

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
    """A folder of an NFS export, mounted by the node. `path` already includes the folder of the run.

    `root` is the folder that exists and `path` lies inside it; "" when they are the same.
    """

    kind: ClassVar[SourceKind] = "nfs"

    server: str
    path: str
    root: str = ""


@dataclass(frozen=True)
class LocalSource:
    """A folder of this machine that an administrator allowed. `root` is the allowed folder and `path` lies inside it.

    The cloud resolves symbolic links at the start and refuses a path that leaves `root`.
    """

    kind: ClassVar[SourceKind] = "local"

    root: str
    path: str


@dataclass(frozen=True)
class VolumeRef:
    """Names one volume everywhere. `id` is unique for ever; the rest is for people, names and labels."""

    id: int
    namespace: str
    appcode: str
    datastore: str


@dataclass(frozen=True)
class VolumeSource:
    """A folder of a volume with a size, which the cloud keeps from the first run that mounts it until `delete_volume`.

    `storage_class` is the cloud's own word for how it is made ("" for its default), `size` a Kubernetes quantity. A
    ReadWriteOnce volume is mounted by one task at a time. `folder` lies in it and is made when it is not there.
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

    For output, what already lies there is fetched first too (resuming); during the run changed files are stored every few
    seconds, and once more when the last task has ended, whether it succeeded, failed or was stopped.

    With `shown_gib` it was written by another run, for people to look at: it may be empty, and of a bucket no more than so many
    GiB are fetched, which a file NOT-ALL-IS-COPIED.txt says there.

    With `follow`, of what is read only, only the event files of a bucket are fetched (`follow.PATTERN`), a piece of each before
    the start; they grow as they grow there, within seconds; see drivers/follow.py. What is mounted needs nothing of that.

    With `parts`, of what is read, each task sees the part of the files that its role says; with `folds`, in folders of
    their own, those for training and those of `fold`, which are held out. See drivers/parts.py. Of what is mounted it sees links,
    and the whole beside it.

    With `cached`, of a bucket that is read, it is copied once for all runs that read the same there, and they share the copy;
    `disk_bytes` is what it takes, 0 where nobody knows. With `or_copied` too, it is copied for this run alone where the cloud has
    no place or no room for that.

    With `stream_key`, of a bucket that is read, nothing is copied and nothing is mounted: tasks read it themselves, by S3, as
    `stream_variables` say. They need this key, and it opens nothing else.

    With `beside`, of what is read, it is copied next to an input: whole, and nothing is noted of it.

    With `digest`, of a bucket that is read, the listing of what lies there (datastores/listing.py) has to have that one, or the
    run is refused; `version` is what people call it.
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
        """Where tasks find what is streamed: all but its URL is what SDKs of S3 look for by themselves. Its server is at
        `address`, and knows them by the access key alone."""
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
        """Whether it is copied to be computed with, so that what it was is noted."""
        return self.read_only and not (self.follow or self.shown_gib or self.stream_key or self.beside)


@dataclass(frozen=True)
class ImageRef:
    """Where the program's software comes from: a container image, or a virtual environment and a program folder here.

    `container` is a reference for Kubernetes ("" when there is none). `environment` is the path of a virtual environment
    and `program` of a folder mounted read-only at /elearn/program, where commands start ("" when there is none).
    """

    name: str
    container: str
    environment: str
    program: str


@dataclass(frozen=True)
class Environment:
    """Packages over the image, those that an appcode saved and the plugins that it chose, by name for people and by `digest` for
    ever; or what a run requires.

    `lock` is a file of requirements with hashes; those behind a line `# plugins` go into a layer of their own, PATH/plugins, for
    the image's own program. With a first line `# requirements` it is what pip is told, and pip finds the versions. `script` is
    what a shell runs once afterwards ("" for nothing), with the environment in place and writable. `install` is a program for
    the image's own Python: with the arguments PATH LOCK CACHE LINK it makes the environment at PATH from the file LOCK, by uv
    with its cache in CACHE and --link-mode LINK. With a further SCRIPT it is for several that may be about to make the same:
    LOCK is packed by bz2, the script is run, too, what is whole is left as it is, and what another one makes is waited for.

    A cloud makes it once for each digest and image, before any task of a run that names it starts, and shows it read-only to all
    of them; a half-made one is never seen.
    """

    name: str
    digest: str
    lock: str
    script: str
    install: str


@dataclass(frozen=True)
class CodeFiles:
    """Texts by their paths below CODE, where every task sees them, read-only, and starts."""

    files: Mapping[str, str] = field(repr=False)
    folder: ClassVar[str] = ""


@dataclass(frozen=True)
class CodeCommit:
    """All files of a commit of a Git repository at CODE, where every task sees them, read-only; it starts in `folder` of them.
    `name` and `token` are what its server wants, "" for nothing; no task ever sees them."""

    url: str
    commit: str
    folder: str = ""
    name: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Endpoint:
    """What the tasks of a role serve by HTTP, on `port` of their own network. `name` is a DNS label of at most 15 characters
    with a letter in it, and no other endpoint of the run has it. `health` is a path that is answered without an error of the
    server (500 and above) as soon as people may come, which is when it has been so for `warm_up_seconds`. `activity` is a path
    that says whether the task works (see activity.py), "" where the program does not say. `origin` is where people open it, as
    https://host:port; a cloud with a gateway of its own leads from there to the tasks that are ready."""

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
    failed task again up to `retries` times (None: see clusters/attempts.py) and leaves a succeeded one alone; Always keeps every
    task alive, with back-off, until the run is deleted.
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
    # Whether its program is the image's own even where the run has an environment, which it finds in PORTAL_ENVIRONMENT. What
    # people install there can be saved, for which it has uv.
    from_image: bool = False
    # Of an input in parts, its first task gets this one, the next task the next; below 0: they get none.
    first_part: int = -1
    at_once: int = 0

    @property
    def together(self) -> int:
        """How many of its tasks there are at one time."""
        return self.at_once or self.count

    @property
    def is_apart(self) -> bool:
        """Whether its tasks know nothing of each other."""
        return bool(self.at_once)


@dataclass(frozen=True)
class Plan:
    """Everything a cloud needs to run one run. `grace_seconds` lie between SIGTERM and SIGKILL.

    `shared` are variables of every task, exactly as they stand; the `env` of a role may refer to them and has none of the same
    name. What grows with the number of tasks belongs here: a cloud keeps it once, not with every task. `secrets` are such
    variables, too, but what a cloud shows of a run (the specification of a pod, a command line, a log) never holds their values.

    `proof` is what a request to an endpoint carries when the gateway or a front of the portal sends it (../entrance.py): no other
    is led in. It is kept as secrets are.
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
    # User name and password by registry, for who fetches container images; no task has them.
    registries: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
