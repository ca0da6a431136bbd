"""Clusters, runs and tasks in the API and in exports: `{kind, metadata, spec, status}`.

`spec` repeats the request unchanged, so a manifest can be read and sent back; `status` is the observed state. The
classes both build the answers and describe them in OpenAPI, so the two cannot diverge.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

from django.utils import timezone
from pydantic import Field
from pydantic.alias_generators import to_camel

from billing.sums.access import SegmentRow
from billing.sums.breakdown import Part
from billing.sums.serializers import UsagePart, usage_parts
from clusters.admission.codes import Code, Fits, Values
from clusters.admission.foretold import Foretold
from clusters.admission.offers import Kind
from clusters.clouds.health import silence_of
from clusters.cluster.api.summaries import Looks
from clusters.frame.documents import Phase
from clusters.frameworks import ROLES
from clusters.gateway.origins import openings
from clusters.manifest.cluster import ClusterManifest, ClusterSpec, RoleName
from clusters.runs.input_listing import Change
from clusters.runs.models import Cluster, Decision, Run, Task
from clusters.runs.placing.forecasts import forecasts_of
from clusters.runs.placing.rights import Right, RightName, rights_of
from clusters.runs.queries.offers import Offered
from clusters.runs.queries.preview import Preview
from clusters.runs.status import history
from clusters.runs.status.hook_status import ShownHook, hooks_of
from clusters.scalars.counted import gpu_seconds, kept
from clusters.scalars.crashes import Crash
from clusters.scalars.pace import Straggler
from portal.api.documents import Answer, Who, page_of
from portal.api.money import Money, money
from portal.manifests import parse


class RoleStatus(Answer):
    ready: int
    count: int


class EndpointStatus(Answer):
    name: str
    url: str = Field(description="Where it is opened in a browser, or with the cluster's access token.")
    ready: bool = Field(description="Its program answers, and the gateway leads there.")


class ReadStatus(Answer):
    """The input as it was copied for a run. Equal digests mean the same file names, sizes and times."""

    digest: str = Field(examples=["9f" * 32])
    files: int
    bytes: int
    changed_since: int | None = Field(description="The run before, when that has read something else.")


class WroteStatus(Answer):
    """The contents of a run's output folder when the run had ended."""

    digest: str | None = Field(
        examples=["9f" * 32], description="As that of what is read; null where there are too many files."
    )
    files: int
    bytes: int
    complete: bool = Field(description="False where there are more files than were counted.")


class CodeStatus(Answer):
    """The program that a run started with, besides its image. Equal values mean the same files or commit."""

    digest: str | None = Field(default=None, examples=["9f" * 32], description="Of files: of all names and texts.")
    commit: str | None = Field(default=None, examples=["9f" * 20], description="Of a repository.")


class HookStatus(Answer):
    """The state of a hook of a run."""

    name: str
    on: Literal["before", "success", "failure", "always"]
    state: Literal["Pending", "Due", "Skipped", "Refused"] | Phase = Field(
        description="The phase of the run that does it. Pending before its turn comes (the end of the run that it follows; of "
        "one before the run, when that could start), Due after that, Skipped where the run ended otherwise, Refused where it "
        "cannot be made."
    )
    message: str = Field(description="A sentence for people.")
    cluster: str | None = Field(examples=["train-notify"], description="What does it; null before that is made.")
    run: int | None = Field(description="Of that cluster.")
    started: dt.datetime | None
    finished: dt.datetime | None
    cost: Money


class StragglerStatus(Answer):
    """A task that makes fewer than half as many steps per second as the median of its role, by the steps that it prints."""

    role: RoleName
    index: int
    pace: float = Field(examples=[0.8], description="Steps in a second.")
    median: float = Field(examples=[2.4], description="That of its role.")


class CrashStatus(Answer):
    """A task that ended unexpectedly and was started again."""

    role: RoleName
    index: int
    at: dt.datetime
    message: str = Field(description="A sentence for people.")
    others: int = Field(description="How many tasks ended because of it, and were started again with it.")
    back: bool = Field(description="Whether all of them run again, or have.")
    step: int | None = Field(description="The last that was told before, in event files or in the log.")
    steps_repeated: int | None = Field(
        description="How many steps before that were trained again, from the last checkpoint on; null while nothing tells."
    )
    gpu_seconds: int = Field(description="What these had taken the first time, with all GPUs of the run.")


class DecisionStatus(Answer):
    """What was decided about a run, for programs by a code with its values, and for people in a sentence."""

    number: int = Field(description="From 1; 0 where it is not in the history.")
    at: dt.datetime
    code: Code = Field(
        description="As in a preview. Waits, too: Turn (not decided yet), Cloud (its cloud says why), Budget, Disabled and "
        "Expired (of its appcode), GivenBack, TakenBack. Now: Placed, Whole, and Started where the cloud places its tasks."
    )
    values: dict[str, int | str] = Field(
        description="What the sentence is made of: counts, and names of nodes or of runs of the same appcode.",
        examples=[{"needed": 8, "free": 5, "total": 16}],
    )
    sentence: str


RIGHT = Field(
    description="By which right it holds its GPUs: inside the quota of its appcode, borrowed beyond it, or spare. Null while it "
    "holds none, and where the portal does not place it."
)
PROTECTED_UNTIL = Field(
    description="From then on its GPUs may be taken back for others. Null inside the quota, where no other appcode takes them."
)


class ForecastStatus(Answer):
    """By when a run that waits probably starts. No promise: runs that come later may have more right, and others last longer."""

    p50: dt.datetime = Field(description="Half of the replays of the queue have started it by then.")
    p90: dt.datetime = Field(description="Nine of ten have.")
    basis: str = Field(examples=["32 replays of the queue, with the run times of 43 runs that ended there"])
    slipped: str = Field(description="A sentence on why it is later than was told first; empty if it is not.")
    as_of: dt.datetime


FORECAST = Field(default=None, description="Null where nobody can say; `forecastWhy` says why.")
FORECAST_WHY = Field(
    default="", description="A sentence; empty beside a forecast, and for a run that does not wait.",
    examples=["Forecasts are not shown here yet: 12 of 29 starts are known by which they can be judged."],
)  # fmt: skip


class AdmissionStatus(Answer):
    """Whether a run has what it asked for, and why not. Once it is over: what was decided last."""

    verdict: Fits
    code: Code
    values: dict[str, int | str]
    sentence: str
    as_of: dt.datetime = Field(description="Since when it holds: the time of the last line of its history.")
    right: RightName | None = RIGHT
    protected_until: dt.datetime | None = PROTECTED_UNTIL
    forecast: ForecastStatus | None = FORECAST
    forecast_why: str = FORECAST_WHY


class ChangeDocument(Answer):
    """Something else to ask for, with which the run starts now or sooner. It was decided as if it had been asked for."""

    kind: Kind = Field(
        description="What is given up: tasks (fewer), the parts of the same GPUs (split), their model, a longer time limit, or "
        "the right to keep them (spare)."
    )
    patch: dict[str, Any] = Field(
        description="A JSON merge patch (RFC 7396) of the manifest.",
        examples=[{"spec": {"roles": {"worker": {"flavor": "h200-8", "count": 1}}}}],
    )
    verdict: Literal["now", "waits"]
    at: dt.datetime | None = Field(
        description="When it starts at the latest, where that is sooner than as it is; null if it starts now, or nobody knows."
    )
    price_per_hour: Money = Field(description="With the dearest GPU model that its tasks may get.")
    words: str = Field(description="What changes, for people.", examples=["as 2 × 8 GPUs"])


class AdmissionDocument(Answer):
    """The same, null before anything was decided, with a page of the history of decisions, newest first. The newest 200 are
    kept. A line whose code is that of the line before it tells of other numbers, and comes at least a minute later."""

    verdict: Fits | None
    code: Code | None
    values: dict[str, int | str]
    sentence: str
    as_of: dt.datetime | None
    right: RightName | None = RIGHT
    protected_until: dt.datetime | None = PROTECTED_UNTIL
    forecast: ForecastStatus | None = FORECAST
    forecast_why: str = FORECAST_WHY
    history: list[DecisionStatus]
    next: str | None = Field(description="Where the next page is; null after the last.")
    changes: list[ChangeDocument] = Field(
        description="While it waits, what would start now instead, of those who may change it: at most three, from the smallest "
        "change on. The changed run waits behind all others."
    )


class RunStatus(Answer):
    """The observed state of a run. Seconds and cost grow while it holds GPUs."""

    phase: Phase
    reason: str = Field(examples=["WaitingForGPUs"], description="A word for programs; empty when all is well.")
    message: str = Field(description="A sentence for people.")
    admission: AdmissionStatus | None = Field(description="Null before anything was decided about it.")
    run: int
    part_of: str = Field(examples=["sweeps/lr"], description="What made its cluster; empty where somebody did.")
    cloud: str = Field(examples=["training"], description="Where it was made; “local” is the portal's own machine.")
    namespace: str = Field(description="That of its business line there.")
    notice: str = Field(description="A sentence while its cloud is out of reach: how old this is. Empty otherwise.")
    warning: str = Field(
        description="Sentences on data: an empty input, output that could not be stored and why. Empty otherwise."
    )
    read: ReadStatus | None = Field(description="What it has read; null before, and where the input is no copy.")
    wrote: WroteStatus | None = Field(
        description="What it has written; null before it is listed, and where the portal cannot see the datastore's files."
    )
    code: CodeStatus | None = Field(
        description="Null where the image has all of the program, and of Git before the run is planned."
    )
    roles: dict[RoleName, RoleStatus]
    endpoints: list[EndpointStatus]
    hooks: list[HookStatus]
    stragglers: list[StragglerStatus] | None = Field(
        description="Tasks that fall behind, the slowest first. Null in lists, and where their logs cannot be read now."
    )
    crashes: list[CrashStatus] | None = Field(
        description="Of tasks that were started again, the newest 50. Null in lists while it runs, and where nobody can tell now."
    )
    started: dt.datetime | None
    checkpoint_at: dt.datetime | None = Field(
        description="When the newest file of its output was stored, beside logs and event files. The portal looks once a minute "
        "while it runs on GPUs that may be taken back. Null for other runs, and where the portal cannot see the files."
    )
    finished: dt.datetime | None
    gpu_seconds: int
    cost: Money


class ClusterDocument(ClusterManifest):
    """A cluster: its manifest, and the status of its latest run (null before the first)."""

    status: RunStatus | None


ClusterPage = page_of("ClusterPage", ClusterDocument)


class RunMetadata(Answer):
    appcode: str
    cluster: str
    number: int
    created: dt.datetime
    created_by: Who


class RunDocument(Answer):
    """One deployment of a cluster, with a copy of the spec that it was started with."""

    kind: Literal["run"] = "run"
    metadata: RunMetadata
    spec: ClusterSpec
    status: RunStatus


RunPage = page_of("RunPage", RunDocument)


class TaskStatus(Answer):
    """One task as last seen. A task that was not seen yet has the reason of its run."""

    role: RoleName
    index: int
    phase: Literal["Pending", "Running", "Succeeded", "Failed"]
    node: str
    gpus: list[str]
    started: dt.datetime | None
    finished: dt.datetime | None
    exit_code: int | None
    restarts: int
    reason: str
    message: str


TaskPage = page_of("TaskPage", TaskStatus)


class TaskUsageDocument(Answer):
    """The time for which one task held its resources; `ended` is null while it does."""

    role: str
    index: int
    uid: str
    gpus: int
    gpu_model: str
    cpu_milli: int
    memory_mb: int
    started: dt.datetime
    ended: dt.datetime | None
    seconds: int
    gpu_seconds: int
    cost: Money
    notes: list[str] = Field(description="A sentence for each thing that was estimated or mended.")


class ClusterUsageDocument(Answer):
    """The usage of a cluster over all its runs, and the segments of one run."""

    kind: Literal["usage"] = "usage"
    appcode: str
    cluster: str
    gpu_seconds: int
    cost: Money
    run: int | None = Field(description="The run whose segments these are.")
    parts: list[UsagePart] = Field(description="What makes up the cost of that run: SKU × seconds × price.")
    segments: list[TaskUsageDocument]


CHANGES = Field(
    description="At most three, from the smallest change on; none if the run starts now, or waits for something else than room "
    "and quota."
)


class PreviewAdmission(Answer):
    """What can be done so that it starts sooner."""

    changes: list[ChangeDocument] = CHANGES
    must_add: str = Field(
        description="For people: what an administrator would have to add, where the run can never start and no change helps; "
        "empty otherwise."
    )


class PreviewDocument(Answer):
    """What creating the cluster now would do."""

    cloud: str
    namespace: str
    tasks: int
    gpus: int
    fits: Literal["now", "waits", "never"]
    code: Code = Field(
        description="Why, for programs; stable, while `message` may change. Now: Fits. Waits: Quota, Behind (nodes are kept for "
        "earlier runs), Placing, Gpus, Resources (CPU or memory), Fragmented (enough GPUs are free, in blocks that are too "
        "small), Window (nodes are closed or reserved before it would end), NoNodes, NotBefore, Input, Hook, Unreachable. Never: "
        "OverLimit (the quota), NoSuchGpu, OverNode, OverPool."
    )
    message: str = Field(description="A sentence for people: what happens, what is needed and free, what to do.")
    cost_per_hour: Money = Field(description="With the dearest GPU model that its tasks may get.")
    cost_per_hour_low: Money = Field(description="With the cheapest one.")
    cost_limit: Money | None = Field(
        description="At most, by its time limit, at the prices that are known for that time; null without one."
    )
    cost_hooks: Money = Field(description="At most, of all its hooks by their time limits; besides the others.")
    admission: PreviewAdmission


class InputAmount(Answer):
    files: int
    bytes: int


class InputDocument(Answer):
    """The input as the run `run` read it, and as it is now."""

    run: int | None
    changed: bool | None
    was: InputAmount | None
    now: InputAmount | None
    versions: list[str] = Field(description="Of the datastore: those that are what that run has read.")


def input_document(change: Change | None) -> dict[str, Any]:
    if change is None:
        return InputDocument(run=None, changed=None, was=None, now=None, versions=[]).json_value()
    was, now = (InputAmount(files=files, bytes=size) for files, size in (change.was, change.now))
    found = InputDocument(run=change.run, changed=change.is_changed, was=was, now=now, versions=list(change.versions))
    return found.json_value()


def read_manifest(body: Any, *, appcode: str, name: str | None = None) -> ClusterManifest:
    """Parses the body of a request to …/appcodes/`appcode`/clusters[/`name`]. Its metadata may omit what the URL
    contains, but not contradict it. Raises Invalid."""
    address = {"appcode": appcode} if name is None else {"appcode": appcode, "name": name}
    return parse(ClusterManifest, body, **address)


def to_manifest(
    cluster: Cluster,
    now: dt.datetime | None = None,
    notices: Mapping[str, str] | None = None,
    looks: Looks | None = None,
    rights: Mapping[int, Right] | None = None,
    forecasts: Mapping[int, Foretold] | None = None,
) -> dict[str, Any]:
    """The cluster as a manifest. `notices` are `health.silences`; `rights` and `forecasts` those of its run. No query if all are
    given, and `appcode`, `current_run` and its hooks are joined."""
    run, now = cluster.current_run, now or timezone.now()
    if run is not None:
        run.cluster = cluster
    return {
        "kind": "cluster",
        "metadata": {"name": cluster.name, "appcode": cluster.appcode.code},
        "spec": _in_order(cluster.spec),
        "status": run_status(run, now, notices, looks, rights, forecasts).json_value() if run else None,
    }


def run_document(
    run: Run,
    now: dt.datetime | None = None,
    notices: Mapping[str, str] | None = None,
    looks: Looks | None = None,
    rights: Mapping[int, Right] | None = None,
    forecasts: Mapping[int, Foretold] | None = None,
) -> dict[str, Any]:
    """A run's document. No query with `notices`, `rights` and `forecasts` (see `to_manifest`), and with `cluster.appcode`,
    `created_by` and hooks joined."""
    metadata = RunMetadata.of(run, appcode=run.cluster.appcode.code, cluster=run.cluster.name, created=run.created_at)
    return {
        "kind": "run",
        "metadata": metadata.json_value(),
        "spec": _in_order(run.spec),
        "status": run_status(run, now or timezone.now(), notices, looks, rights, forecasts).json_value(),
    }


def run_status(
    run: Run,
    now: dt.datetime,
    notices: Mapping[str, str] | None,
    looks: Looks | None = None,
    rights: Mapping[int, Right] | None = None,
    forecasts: Mapping[int, Foretold] | None = None,
) -> RunStatus:
    if notices is None:
        notices = {run.cloud: silence_of(run, now)}
    # Without `looks`, only what the row stores.
    looks = looks or Looks(crashes=kept(run))
    return RunStatus.of(
        run,
        admission=_admission(
            run,
            rights_of([run]) if rights is None else rights,
            forecasts_of([run], now) if forecasts is None else forecasts,
        ),
        run=run.number,
        part_of=run.cluster.part_of,
        notice="" if run.is_terminal else notices.get(run.cloud, ""),
        warning=run.data_warning,
        read=ReadStatus(**run.read) if run.read else None,
        wrote=WroteStatus(**run.wrote) if run.wrote else None,
        code=CodeStatus(**run.code) if run.code else None,
        roles={role: run.roles[role] for role in ROLES if role in run.roles},
        endpoints=[EndpointStatus.of(each) for each in openings(run.cluster, run)],
        hooks=[_hook_status(each, now) for each in hooks_of(run)],
        stragglers=None if looks.stragglers is None else [_straggler(each) for each in looks.stragglers],
        crashes=None if looks.crashes is None else [_crash_status(run, each) for each in looks.crashes],
        started=run.started_at,
        finished=run.finished_at,
        gpu_seconds=run.gpu_seconds_at(now),
        cost=money(run.cost_at(now)),
    )


def _admission(run: Run, rights: Mapping[int, Right], forecasts: Mapping[int, Foretold]) -> AdmissionStatus | None:
    found, right = history.current(run), rights.get(run.pk)
    if found is None:
        return None
    holds = {"right": right.name if right else None, "protected_until": right.until if right else None}
    return AdmissionStatus.of(found, **_decided(found), **holds, **forecast_fields(forecasts.get(run.pk)))


def forecast_fields(found: Foretold | None) -> dict[str, Any]:
    """`forecast` and `forecast_why` of a document."""
    shown = None if found is None or found.why else ForecastStatus.of(found)
    return {"forecast": shown, "forecast_why": found.why if found else ""}


def admission_document(
    run: Run, lines: list[Any], following: str | None, offers: Iterable[Offered] = ()
) -> dict[str, Any]:
    """`lines`: a page of the history as `decision_document` makes them."""
    found = _admission(run, rights_of([run]), forecasts_of([run]))
    status = (
        dict(found)
        if found
        else dict.fromkeys(("verdict", "code", "as_of", "right", "protected_until")) | {"values": {}, "sentence": ""}
    )
    changes = change_documents(offers)
    return AdmissionDocument(**status, history=lines, next=following, changes=changes).json_value()


def decision_document(row: Decision) -> dict[str, Any]:
    found = history.line(row)
    return DecisionStatus.of(found, values=_named(found.values)).json_value()


def _decided(found: history.Line) -> dict[str, Any]:
    return {"verdict": found.code.fits, "values": _named(found.values), "as_of": found.at}


def _named(values: Values) -> dict[str, int | str]:
    return {to_camel(name): value for name, value in values.items()}


def _straggler(found: Straggler) -> StragglerStatus:
    return StragglerStatus(role=found.role, index=found.index, pace=round(found.pace, 3), median=round(found.median, 3))


def _crash_status(run: Run, crash: Crash) -> CrashStatus:
    return CrashStatus.of(
        crash,
        at=dt.datetime.fromtimestamp(crash.at, dt.UTC),
        message=crash.sentence,
        back=crash.is_back,
        steps_repeated=crash.repeated,
        gpu_seconds=gpu_seconds(run, [crash]),
    )


def _hook_status(hook: ShownHook, now: dt.datetime) -> HookStatus:
    return HookStatus.of(
        hook,
        cluster=hook.did.cluster.name if hook.did else None,
        run=hook.did.number if hook.did else None,
        cost=money(hook.cost_at(now)),
    )


def task_documents(run: Run, latest: Iterable[Task]) -> list[dict[str, Any]]:
    """All tasks of a run by role and index. `latest` are the newest observed attempts."""
    seen = {(task.role, task.index): task for task in latest}
    counts = {role: item["count"] for role, item in run.spec["roles"].items()}
    return [
        _task_status(run, role, index, seen.get((role, index))).json_value()
        for role in ROLES
        for index in range(counts.get(role, 0))
    ]


def usage_document(
    cluster: Cluster, run: Run | None, segments: Iterable[SegmentRow], parts: Sequence[Part], now: dt.datetime
) -> dict[str, Any]:
    """Usage until `now`: the sums over all runs, and `segments` and `parts` of `run`. One query."""
    runs = list(cluster.runs.only("usage_as_of", "gpu_seconds", "gpu_rate", "cost", "cost_rate"))
    return ClusterUsageDocument(
        appcode=cluster.appcode.code,
        cluster=cluster.name,
        gpu_seconds=sum(each.gpu_seconds_at(now) for each in runs),
        cost=money(sum((each.cost_at(now) for each in runs), Decimal(0))),
        run=run.number if run else None,
        parts=usage_parts(parts),
        segments=[_segment(row) for row in segments],
    ).json_value()


def preview_document(found: Preview) -> dict[str, Any]:
    return PreviewDocument.of(
        found,
        cloud=found.place.cloud,
        namespace=found.place.namespace,
        message=found.sentence,
        cost_per_hour=money(found.cost.per_hour),
        cost_per_hour_low=money(found.cost.per_hour_low),
        cost_limit=None if found.cost.limit is None else money(found.cost.limit),
        cost_hooks=money(found.cost.hooks),
        admission=PreviewAdmission(changes=change_documents(found.offers), must_add=found.must_add),
    ).json_value()


def change_documents(offers: Iterable[Offered]) -> list[ChangeDocument]:
    return [
        ChangeDocument(
            kind=each.kind,
            patch=dict(each.patch),
            verdict="now" if each.starts else "waits",
            at=each.at,
            price_per_hour=money(each.per_hour),
            words=each.words,
        )
        for each in offers
    ]


def _in_order(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec with its keys in manifest order; PostgreSQL's jsonb sorts them by length."""
    keys = [to_camel(name) for name in ClusterSpec.model_fields]
    ordered = {key: spec[key] for key in keys if key in spec} | spec
    return {**ordered, "roles": {role: spec["roles"][role] for role in ROLES if role in spec["roles"]}}


def _task_status(run: Run, role: RoleName, index: int, task: Task | None) -> TaskStatus:
    if task is None:
        return TaskStatus(
            role=role, index=index, phase="Pending", node="", gpus=[], started=None, finished=None,
            exit_code=None, restarts=0, reason=run.reason, message=run.message,
        )  # fmt: skip
    return TaskStatus.of(
        task,
        gpus=[str(gpu) for gpu in task.gpus],
        started=task.started_at,
        finished=task.finished_at,
        restarts=task.attempt,
        message=task.sentence,
    )


def _segment(row: SegmentRow) -> TaskUsageDocument:
    segment, resources = row.segment, row.segment.resources
    return TaskUsageDocument.of(
        row,
        role=segment.labels.get("role", ""),
        index=segment.labels.get("index", 0),
        uid=segment.uid,
        gpus=resources.gpus,
        gpu_model=resources.gpu_model,
        cpu_milli=resources.cpu_milli,
        memory_mb=resources.memory_mb,
        started=segment.started,
        ended=segment.ended,
        cost=money(row.cost),
    )
