"""REST: services, how they change, who asks them, and what they have been asked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from pydantic import Field, StringConstraints
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.api.documents import Money, money
from clusters.models import Revision, RevisionDrift, Rollout, Service, ServiceToken
from clusters.serving import actions
from clusters.serving.access import service_for, services_for, services_in
from clusters.serving.manifest import DeploySpec, ScaleSpec, ServiceManifest, TokenSpec
from clusters.serving.preview import Preview, preview_deploy, preview_service
from clusters.serving.shown import (
    HOUR,
    LONGEST,
    Brief,
    Counted,
    ReplicaShown,
    RevisionShown,
    Shown,
    Stats,
    address,
    briefs,
    shown,
    stats_of,
)
from portal.access import OPERATE, VIEW, Capability, appcode_for
from portal.api.documents import Answer
from portal.api.pagination import PAGE_PARAMETERS, SEARCH_PARAMETER, everything, moment, page, search
from portal.api.views import person
from portal.errors import Invalid
from portal.manifests import Strict, parse
from portal.specs import Line

LIST_PARAMETERS = [*PAGE_PARAMETERS, SEARCH_PARAMETER]
EXAMPLE = OpenApiExample(
    "Two replicas of what an alias names",
    request_only=True,
    value={
        "kind": "service",
        "metadata": {"name": "digits", "appcode": "ops-demo"},
        "spec": {
            "model": "digits@champion", "image": "tensorflow-2-21", "flavor": "middle-1-gpu",
            "replicas": {"least": 2, "most": 4, "target": 8},
            "rollout": {"kind": "canary", "weight": 10, "minutes": 10},
        },
    },
)  # fmt: skip
SINCE = OpenApiParameter("since", str, description="A time of ISO 8601; an hour before `until` when absent.")
UNTIL = OpenApiParameter("until", str, description="A time of ISO 8601, at most a day after `since`; now when absent.")


class CountedAnswer(Answer):
    """Of the requests of some time. Latency is null where nobody asked."""

    requests: int
    errors: int = Field(description="Answers of 500 and more, and those that never came.")
    refused: int = Field(description="Answers of 400 to 499, by the model's server.")
    rows: int = Field(
        description="That were answered, a request may have many; 0 from a model server that does not say it."
    )
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    bytes_in: int
    bytes_out: int


class ServiceMinuteAnswer(CountedAnswer):
    minute: dt.datetime
    revision: int
    mirrored: bool = Field(description="These were copies, whose answers went nowhere.")


class ServiceSumAnswer(CountedAnswer):
    """Of one revision, over the whole time."""

    revision: int
    mirrored: bool


class ServiceStatsDocument(Answer):
    since: dt.datetime
    until: dt.datetime
    minutes: list[ServiceMinuteAnswer] = Field(description="Oldest first; one in which nobody asked is left out.")
    sums: list[ServiceSumAnswer]


class DriftColumnAnswer(Answer):
    """One column of an input or output, in bins that each have a tenth of the training sample; the last is beyond all edges."""

    tensor: str
    column: int
    kind: Literal["input", "output"]
    edges: list[float]
    expected: list[float] = Field(description="The share of each bin in the sample.")
    seen: list[int] = Field(description="How many rows fell into each.")
    psi: float | None = Field(description="Population stability index; null where too few rows were seen.")
    word: Literal["too few", "stable", "moderate", "large"]


class ServiceDriftAnswer(Answer):
    """What one revision saw in one hour, beside its training sample."""

    revision: int
    model: str
    hour: dt.datetime = Field(description="Its beginning.")
    rows: int
    alerted: bool = Field(description="An alert began in this hour, or went on.")
    columns: list[DriftColumnAnswer] = Field(description="What drifted most first.")


class ServiceDriftPage(Answer):
    items: list[ServiceDriftAnswer]
    next: str | None


class ReplicaAnswer(Answer):
    slot: int
    revision: int
    state: Literal["starting", "serving", "draining"]
    since: dt.datetime
    cluster: str = Field(description="The cluster that it is, with its logs, metrics, terminal and cost.")
    run: int | None
    phase: str = Field(description="Of that run.")
    message: str
    node: str
    in_flight: int


class RevisionAnswer(Answer):
    number: int
    model: str = Field(examples=["digits/3"])
    weight: int = Field(description="Per cent of the requests that it is to answer.")
    mirrored: bool
    serving: int = Field(description="Its replicas that answer.")
    replicas: int = Field(description="All that are not gone.")
    wanted: int
    created: dt.datetime
    created_by: str | None
    gpu_seconds: int
    cost: Money
    requests: int
    price_per_thousand: Money | None = Field(description="Cost by requests; null where nobody asked.")


class RolloutAnswer(Answer):
    number: int
    kind: Literal["rolling", "canary", "shadow"]
    phase: Literal["Gated", "Starting", "Comparing", "Shifting", "Promoted", "RolledBack", "Cancelled", "Failed"]
    message: str
    reason: str
    from_: int | None = Field(alias="from", description="The revision that answered before.")
    to: int
    model: str
    weight: int
    minutes: int
    by_hand: bool = Field(description="Somebody, not the clock, promotes it.")
    judged: dict[str, Any] = Field(description="What was compared.")
    judge_at: dt.datetime | None
    created: dt.datetime
    created_by: str | None
    finished: dt.datetime | None


class ServiceStatus(Answer):
    phase: Literal["Starting", "Running", "Degraded", "Sleeping", "Failed", "Stopped"]
    message: str
    since: dt.datetime
    desired: Literal["running", "ended"]
    address: str = Field(examples=["http://digits-ops-demo.serve.localhost:8000/"])
    revision: int | None = Field(description="The one that answers most of the requests.")
    model: str | None = Field(description="What that serves.", examples=["digits/3"])
    serving: int = Field(description="Replicas that answer, of all revisions.")
    replicas: int = Field(description="All that are not gone.")
    rollout: RolloutAnswer | None = Field(description="The one that is under way.")
    in_flight: int
    waiting: int = Field(description="Requests for which no replica is free.")
    requests: int = Field(description="Of the last hour.")
    errors: int
    created: dt.datetime
    created_by: str | None


class ServiceShort(ServiceManifest):
    status: ServiceStatus


class ServicePage(Answer):
    items: list[ServiceShort]
    next: str | None


class ServiceLongStatus(ServiceStatus):
    fronts: int = Field(description="Programs that take requests, of all services.")
    scale: dict[str, Any] = Field(description="What the autoscaler decided last, and why.")
    gpu_seconds: int
    cost: Money
    each_replica: list[ReplicaAnswer]
    revisions: list[RevisionAnswer] = Field(
        description="Newest first: those that answer, have replicas or are the last."
    )
    rollouts: list[RolloutAnswer] = Field(description="The last ones, newest first.")


class ServiceDocument(ServiceManifest):
    """A service as it is answered: the manifest, and what became of it."""

    status: ServiceLongStatus


class ServiceChoiceAnswer(Answer):
    when_full: Literal["wait", "replace", "cpu"]
    message: str
    chosen: bool = Field(description="The service says so.")


class ServicePreviewDocument(Answer):
    """What a deployment would take now."""

    model: str
    replicas: int
    gpus: int = Field(description="That have to be free beside what it has.")
    gpus_free: int
    seconds: int | None = Field(description="Until a new replica answers, as earlier ones took.")
    fits: Literal["now", "waits", "never"]
    message: str
    choices: list[ServiceChoiceAnswer] = Field(description="Where none is free: `rollout.whenFull`.")
    cost_per_hour: Money = Field(description="Of all replicas, with the dearest GPU model that they may get.")


class RollbackSpec(Strict):
    """Why the revision before is to answer again."""

    reason: Annotated[Line, StringConstraints(max_length=300)] = ""


class ServiceTokenAnswer(Answer):
    name: str
    begins: str = Field(description="Its first letters, by which people tell it from others.")
    per_second: int | None
    at_once: int | None
    created: dt.datetime
    created_by: str | None
    expires: dt.datetime | None
    used: dt.datetime | None = Field(description="To a minute or so.")


class ServiceTokenPage(Answer):
    items: list[ServiceTokenAnswer]
    next: str | None


class NewServiceToken(ServiceTokenAnswer):
    token: str = Field(description="Sent by callers as “Authorization: Bearer …”. It is told once, now.")


class AllServices(APIView):
    @extend_schema(
        operation_id="services_list_all",
        summary="All services that I may see, newest first",
        parameters=LIST_PARAMETERS,
        responses=ServicePage,
    )
    def get(self, request: Request) -> Response:
        return _page(request, services_for(person(request)))


class AppcodeServices(APIView):
    @extend_schema(
        operation_id="services_list",
        summary="The services of an appcode, newest first",
        parameters=LIST_PARAMETERS,
        responses=ServicePage,
    )
    def get(self, request: Request, code: str) -> Response:
        return _page(request, services_in(person(request), code))

    @extend_schema(
        operation_id="services_create",
        summary="Create a service and start its first revision",
        description="The name of a deleted one brings its address back, and its numbers go on; its tokens are gone.",
        request=ServiceManifest,
        responses={201: ServiceDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, OPERATE)
        manifest = parse(ServiceManifest, request.data, appcode=code)
        made = actions.create_service(manifest, acting_user=person(request), appcode=appcode)
        there = request.build_absolute_uri(f"{request.path}/{made.name}")
        return Response(_document(made), status=status.HTTP_201_CREATED, headers={"Location": there})


class ServicesPreview(APIView):
    @extend_schema(
        operation_id="services_preview",
        summary="What a service would take if it were created or changed now",
        description="Writes nothing. The manifest is judged as it is when it is created.",
        request=ServiceManifest,
        responses=ServicePreviewDocument,
        examples=[EXAMPLE],
    )
    def post(self, request: Request, code: str) -> Response:
        appcode_for(person(request), code, OPERATE)
        manifest = parse(ServiceManifest, request.data, appcode=code)
        return Response(_preview(preview_service(manifest, acting_user=person(request))))


class OneService(APIView):
    @extend_schema(
        operation_id="services_read",
        summary="A service: its replicas, revisions, rollouts and what they cost",
        responses=ServiceDocument,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        return Response(_document(_find(request, code, name)))

    @extend_schema(
        operation_id="services_change",
        summary="Replace the definition",
        description="What changes its replicas is rolled out, of the version that answers; a changed number of them is only "
        "scaled. Sending what is there already changes nothing. It keeps its name and its model.",
        request=ServiceManifest,
        responses=ServiceDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, code: str, name: str) -> Response:
        found = _find(request, code, name, OPERATE)
        manifest = parse(ServiceManifest, request.data, appcode=code, name=name)
        return Response(_document(actions.change_service(found, manifest, acting_user=person(request))))

    @extend_schema(
        operation_id="services_delete",
        summary="Delete a service with its replicas and tokens",
        description="They end at once; requests in flight are lost. Its address stays its own, for one of the same name.",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str) -> Response:
        actions.delete_service(_find(request, code, name, OPERATE), acting_user=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


@dataclass(frozen=True)
class Verb:
    """`sent` is what the body says, None where there is none."""

    name: str
    do: Callable[..., Any]
    summary: str
    description: str
    sent: type[Strict] | None = None


VERBS = (
    Verb(
        "deploy", actions.deploy, "Have a version of its model answer",
        "By default the one that its alias names now, rolled out as the service says. It agrees to a rollout that waits for "
        "that, and starts a service that is disabled. What answers already is not deployed again.",
        DeploySpec,
    ),
    Verb("disable", actions.disable_service, "End all replicas", "Its definition and tokens stay. Repeating it changes nothing."),
    Verb("enable", actions.enable_service, "Start the revision that answered last", "Repeating it changes nothing."),
    Verb(
        "rollback", lambda service, spec, **by: actions.rollback(service, spec.reason, **by), "Go back to the revision before",
        "A rollout that is under way ends; its alias stays. Else it is the revision that answered before: at once while its "
        "replicas are warm, and the alias that is followed goes back, too. 409 where there is none.",
        RollbackSpec,
    ),
    Verb(
        "promote", actions.promote, "End the comparison: the new revision takes over",
        "It agrees to a rollout that waits for that. 409 where no rollout is under way, or its replicas do not answer yet.",
    ),
    Verb(
        "scale", actions.scale, "Say how many replicas there are",
        "One number, or a range in which they follow the requests. 0: it sleeps until somebody asks.", ScaleSpec,
    ),
)  # fmt: skip


def verb_view(verb: Verb) -> type[APIView]:
    """A view of one POST."""

    class VerbView(APIView):
        @extend_schema(
            operation_id=f"services_{verb.name}",
            summary=verb.summary,
            description=verb.description,
            request=verb.sent,
            responses={202: ServiceDocument},
        )
        def post(self, request: Request, code: str, name: str) -> Response:
            found = _find(request, code, name, OPERATE)
            sent = (parse(verb.sent, request.data or {}),) if verb.sent else ()
            verb.do(found, *sent, acting_user=person(request))
            return Response(_document(_find(request, code, name)), status=status.HTTP_202_ACCEPTED)

    return VerbView


class ServicePreview(APIView):
    @extend_schema(
        operation_id="services_preview_deploy",
        summary="What a deployment would take now",
        description="Writes nothing: GPUs that have to be free and are, how long a start takes, and what is to be chosen from "
        "where none is free.",
        request=DeploySpec,
        responses=ServicePreviewDocument,
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        found = _find(request, code, name, OPERATE)
        asked = parse(DeploySpec, request.data or {})
        return Response(_preview(preview_deploy(found, asked, acting_user=person(request))))


class ServiceStats(APIView):
    @extend_schema(
        operation_id="services_stats",
        summary="What a service was asked, by minute and revision",
        parameters=[SINCE, UNTIL],
        responses=ServiceStatsDocument,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        found = _find(request, code, name)
        until = moment(request, "until") or timezone.now()
        since = moment(request, "since")
        try:
            since = since or until - HOUR
        except OverflowError:
            raise Invalid.at("until", message="Nothing was asked at the beginning of the calendar.") from None
        if not dt.timedelta(0) < until - since <= LONGEST:
            raise Invalid.at("since", message="Give a time before “until”, and at most a day.")
        return Response(_stats(stats_of(found, since, until)).json_value())


class ServiceDrift(APIView):
    @extend_schema(
        operation_id="services_drift",
        summary="What a service was asked and has answered beside the training samples of its models, newest hour first",
        description="An hour of a revision is an item; a version without a training sample has none. They are kept for a month.",
        parameters=PAGE_PARAMETERS,
        responses=ServiceDriftPage,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        rows = RevisionDrift.objects.filter(revision__service=_find(request, code, name)).select_related("revision")
        return page(request, rows, order=("-hour", "-id"), render=_drift)


class ServiceTokens(APIView):
    @extend_schema(
        operation_id="service_tokens_list",
        summary="Who may ask a service, newest first",
        responses=ServiceTokenPage,
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        rows = _find(request, code, name).tokens.select_related("created_by").defer("digest")
        return everything([ServiceTokenAnswer(**_token(row)).json_value() for row in rows])

    @extend_schema(
        operation_id="service_tokens_create",
        summary="Make a token for one caller",
        description="It asks this service and nothing else, and is told once.",
        request=TokenSpec,
        responses={201: NewServiceToken},
    )
    def post(self, request: Request, code: str, name: str) -> Response:
        found = _find(request, code, name, OPERATE)
        row, token = actions.create_token(found, parse(TokenSpec, request.data), acting_user=person(request))
        made = NewServiceToken(**_token(row), token=token)
        return Response(made.json_value(), status=status.HTTP_201_CREATED)


class OneServiceToken(APIView):
    @extend_schema(
        operation_id="service_tokens_delete",
        summary="Delete a token: it asks no more",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, code: str, name: str, token: str) -> Response:
        actions.delete_token(_find(request, code, name, OPERATE), token, acting_user=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


def _find(request: Request, code: str, name: str, capability: Capability = VIEW) -> Service:
    return service_for(person(request), code, name, capability)


def _page(request: Request, rows: QuerySet[Service]) -> Response:
    answer = page(
        request, search(request, rows, "name", "spec__model", "appcode__code"), order="-id", render=lambda row: row
    )
    answer.data["items"] = [_said(each.row, ServiceStatus(**_facts(each))) for each in briefs(answer.data["items"])]
    return answer


def _document(service: Service) -> dict[str, Any]:
    found: Shown = shown(service)
    return _said(
        service,
        ServiceLongStatus(
            **_facts(found),
            fronts=found.flying.fronts,
            scale=service.scale,
            gpu_seconds=found.gpu_seconds,
            cost=money(found.cost),
            each_replica=[_replica(each) for each in found.replicas],
            revisions=[_revision(each) for each in found.revisions],
            rollouts=[_rollout(each) for each in found.rollouts],
        ),
    )


def _said(service: Service, found: ServiceStatus) -> dict[str, Any]:
    return {
        "kind": "service",
        "metadata": {"name": service.name, "appcode": service.appcode.code},
        "spec": service.spec,
        "status": found.json_value(),
    }


def _facts(found: Brief) -> dict[str, Any]:
    row, answering = found.row, found.answering
    return {
        "phase": row.phase, "message": row.message, "since": row.phase_since, "desired": row.desired, "address": address(row),
        "revision": answering.number if answering else None, "model": answering.model if answering else None,
        "serving": found.serving, "replicas": found.living, "rollout": _rollout(found.rollout) if found.rollout else None,
        "in_flight": found.flying.requests, "waiting": found.flying.waiting, "requests": found.requests,
        "errors": found.errors, "created": row.created_at, "created_by": _who(row),
    }  # fmt: skip


def _who(row: Service | Revision | Rollout | ServiceToken) -> str | None:
    return row.created_by.username if row.created_by else None


def _replica(found: ReplicaShown) -> ReplicaAnswer:
    return ReplicaAnswer(
        slot=found.row.slot, revision=found.revision, state=found.row.state, since=found.since, cluster=found.cluster,
        run=found.run, phase=found.phase, message=found.message, node=found.node, in_flight=found.in_flight,
    )  # fmt: skip


def _revision(found: RevisionShown) -> RevisionAnswer:
    row = found.row
    return RevisionAnswer(
        number=row.number, model=row.model, weight=row.weight, mirrored=row.mirrored, serving=found.serving,
        replicas=found.living, wanted=row.wanted, created=row.created_at, created_by=_who(row), gpu_seconds=found.gpu_seconds,
        cost=money(found.cost), requests=found.requests,
        price_per_thousand=money(found.price) if found.price is not None else None,
    )  # fmt: skip


def _rollout(row: Rollout) -> RolloutAnswer:
    return RolloutAnswer(
        number=row.number, kind=row.kind, phase=row.phase, message=row.message, reason=row.reason,
        from_=row.from_revision.number if row.from_revision else None, to=row.to_revision.number, model=row.to_revision.model,
        weight=row.weight, minutes=row.minutes, by_hand=row.by_hand, judged=row.judged, judge_at=row.judge_at,
        created=row.created_at, created_by=_who(row), finished=row.finished_at,
    )  # fmt: skip


def _counted(found: Counted) -> dict[str, Any]:
    return {
        "requests": found.requests, "errors": found.errors, "refused": found.refused, "rows": found.rows,
        "p50_ms": found.p50, "p95_ms": found.p95, "p99_ms": found.p99, "bytes_in": found.bytes_in, "bytes_out": found.bytes_out,
    }  # fmt: skip


def _stats(found: Stats) -> ServiceStatsDocument:
    return ServiceStatsDocument(
        since=found.since,
        until=found.until,
        minutes=[
            ServiceMinuteAnswer(
                minute=each.at, revision=each.revision, mirrored=each.mirrored, **_counted(each.counted)
            )
            for each in found.minutes
        ],
        sums=[
            ServiceSumAnswer(revision=number, mirrored=mirrored, **_counted(counted))
            for (number, mirrored), counted in found.sums.items()
        ],
    )


def _drift(row: RevisionDrift) -> dict[str, Any]:
    return ServiceDriftAnswer(
        revision=row.revision.number, model=row.revision.model, hour=row.hour, rows=row.rows, alerted=row.alerted,
        columns=[DriftColumnAnswer(**each) for each in row.columns],
    ).json_value()  # fmt: skip


def _preview(found: Preview) -> dict[str, Any]:
    return ServicePreviewDocument(
        model=f"{found.version.model.name}/{found.version.number}", replicas=found.replicas, gpus=found.gpus,
        gpus_free=found.gpus_free, seconds=found.seconds, fits=found.fits, message=found.sentence,
        choices=[
            ServiceChoiceAnswer(when_full=each.when_full, message=each.sentence, chosen=each.chosen) for each in found.choices
        ],
        cost_per_hour=money(found.cost.per_hour),
    ).json_value()  # fmt: skip


def _token(row: ServiceToken) -> dict[str, Any]:
    return {
        "name": row.name, "begins": row.begins, "per_second": row.per_second, "at_once": row.at_once,
        "created": row.created_at, "created_by": _who(row), "expires": row.expires_at, "used": row.used_at,
    }  # fmt: skip
