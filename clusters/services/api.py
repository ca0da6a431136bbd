"""REST: services, their rollouts, tokens and statistics."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from pydantic import Field, StringConstraints
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.services import actions, tokens
from clusters.services.access import SERVICES, service_for
from clusters.services.manifest import DeploySpec, ScaleSpec, ServiceManifest, TokenSpec
from clusters.services.models import RevisionDrift, Rollout, Service, ServiceToken
from clusters.services.preview import Preview, preview_deploy, preview_service
from clusters.services.summary import (
    HOUR,
    LONGEST,
    Brief,
    Counted,
    RevisionShown,
    Shown,
    Stats,
    address,
    briefs,
    shown,
    stats_of,
)
from portal.access import OPERATE, appcode_for
from portal.api.documents import Answer, Who, page_of
from portal.api.money import Money, money
from portal.api.objects import all_view, object_views
from portal.api.operations import Document, operation
from portal.api.pagination import PAGE_PARAMETERS, everything, moment, page, page_together, search
from portal.api.verbs import Kind, Verb
from portal.api.views import person
from portal.errors import Invalid
from portal.manifests import Strict, parse
from portal.manifests.appcode import Line

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
    """Request statistics over some time. Latency is null without requests."""

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
    """Totals of one revision over the whole time."""

    revision: int
    mirrored: bool


class ServiceStatsDocument(Answer):
    since: dt.datetime
    until: dt.datetime
    minutes: list[ServiceMinuteAnswer] = Field(description="Oldest first; one in which nobody asked is left out.")
    sums: list[ServiceSumAnswer]


class DriftColumnAnswer(Answer):
    """One column of an input or output. Each bin has a tenth of the training sample; the last is above all edges."""

    tensor: str
    column: int
    kind: Literal["input", "output"]
    edges: list[float]
    expected: list[float] = Field(description="The share of each bin in the sample.")
    seen: list[int] = Field(description="How many rows fell into each.")
    psi: float | None = Field(description="Population stability index; null where too few rows were seen.")
    word: Literal["too few", "stable", "moderate", "large"]


class ServiceDriftAnswer(Answer):
    """Values seen by one revision in one hour, compared with its training sample."""

    revision: int
    model: str
    hour: dt.datetime = Field(description="Its beginning.")
    rows: int
    alerted: bool = Field(description="An alert began in this hour, or went on.")
    columns: list[DriftColumnAnswer] = Field(description="What drifted most first.")


ServiceDriftPage = page_of("ServiceDriftPage", ServiceDriftAnswer)


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
    created_by: Who
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
    created_by: Who
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
    created_by: Who


class ServiceShort(ServiceManifest):
    status: ServiceStatus


ServicePage = page_of("ServicePage", ServiceShort)


class ServiceLongStatus(ServiceStatus):
    routers: int = Field(description="Programs that take requests, of all services.")
    scale: dict[str, Any] = Field(description="What the autoscaler decided last, and why.")
    gpu_seconds: int
    cost: Money
    each_replica: list[ReplicaAnswer]
    revisions: list[RevisionAnswer] = Field(
        description="Newest first: those that answer, have replicas or are the last."
    )
    rollouts: list[RolloutAnswer] = Field(description="The last ones, newest first.")


class ServiceDocument(ServiceManifest):
    """A service: its manifest and its status."""

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
    """The reason for the rollback."""

    reason: Annotated[Line, StringConstraints(max_length=300)] = ""


class ServiceTokenAnswer(Answer):
    name: str
    begins: str = Field(description="Its first letters, by which people tell it from others.")
    per_second: int | None
    at_once: int | None
    created: dt.datetime
    created_by: Who
    expires: dt.datetime | None
    used: dt.datetime | None = Field(description="To a minute or so.")


ServiceTokenPage = page_of("ServiceTokenPage", ServiceTokenAnswer)


class NewServiceToken(ServiceTokenAnswer):
    token: str = Field(description="Sent by callers as “Authorization: Bearer …”. It is told once, now.")


class ServicesPreview(APIView):
    @operation("services_preview", ServicePreviewDocument, request=ServiceManifest, examples=[EXAMPLE])
    def post(self, request: Request, code: str) -> Document:
        """What a service would take if it were created or changed now

        Writes nothing. The manifest is judged as it is when it is created."""
        appcode_for(person(request), code, OPERATE)
        manifest = parse(ServiceManifest, request.data, appcode=code)
        return _preview(preview_service(manifest, acting_user=person(request)))


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


class ServicePreview(APIView):
    @operation("services_preview_deploy", ServicePreviewDocument, request=DeploySpec)
    def post(self, request: Request, code: str, name: str) -> Document:
        """What a deployment would take now

        Writes nothing: GPUs that have to be free and are, how long a start takes, and what is to be chosen from where
        none is free."""
        found = service_for(person(request), code, name, OPERATE)
        asked = parse(DeploySpec, request.data or {})
        return _preview(preview_deploy(found, asked, acting_user=person(request)))


class ServiceStats(APIView):
    @operation("services_stats", ServiceStatsDocument, parameters=[SINCE, UNTIL])
    def get(self, request: Request, code: str, name: str) -> Document:
        """What a service was asked, by minute and revision"""
        found = service_for(person(request), code, name)
        until = moment(request, "until") or timezone.now()
        since = moment(request, "since")
        try:
            since = since or until - HOUR
        except OverflowError:
            raise Invalid.at("until", message="Nothing was asked at the beginning of the calendar.") from None
        if not dt.timedelta(0) < until - since <= LONGEST:
            raise Invalid.at("since", message="Give a time before “until”, and at most a day.")
        return _stats(stats_of(found, since, until)).json_value()


class ServiceDrift(APIView):
    @operation("services_drift", ServiceDriftPage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request, code: str, name: str) -> Response:
        """What a service was asked and has answered beside the training samples of its models, newest hour first

        An hour of a revision is an item; a version without a training sample has none. They are kept for a month."""
        rows = RevisionDrift.objects.filter(revision__service=service_for(person(request), code, name)).select_related(
            "revision"
        )
        return page(request, rows, order=("-hour", "-id"), render=_drift)


class ServiceTokens(APIView):
    @operation("service_tokens_list", ServiceTokenPage)
    def get(self, request: Request, code: str, name: str) -> Response:
        """Who may ask a service, newest first"""
        rows = service_for(person(request), code, name).tokens.select_related("created_by").defer("digest")
        return everything([ServiceTokenAnswer.of(row, **_times(row)).json_value() for row in rows])

    @operation("service_tokens_create", {201: NewServiceToken}, request=TokenSpec)
    def post(self, request: Request, code: str, name: str) -> Document:
        """Make a token for one caller

        It asks this service and nothing else, and is told once."""
        found = service_for(person(request), code, name, OPERATE)
        row, token = tokens.create_token(found, parse(TokenSpec, request.data), acting_user=person(request))
        return NewServiceToken.of(row, token=token, **_times(row)).json_value()


class OneServiceToken(APIView):
    @operation("service_tokens_delete", {204: None})
    def delete(self, request: Request, code: str, name: str, token: str) -> None:
        """Delete a token: it asks no more"""
        tokens.delete_token(service_for(person(request), code, name, OPERATE), token, acting_user=person(request))


def _page(request: Request, rows: QuerySet[Service]) -> Response:
    rows = search(request, rows, "name", "spec__model", "appcode__code")
    return page_together(request, rows, order="-id", render=_shorts)


def _shorts(rows: Sequence[Service]) -> list[Document]:
    return [_said(each.row, ServiceStatus(**_facts(each))) for each in briefs(rows)]


def _document(service: Service) -> dict[str, Any]:
    found: Shown = shown(service)
    return _said(
        service,
        ServiceLongStatus(
            **_facts(found),
            routers=found.flying.routers,
            scale=service.scale,
            gpu_seconds=found.gpu_seconds,
            cost=money(found.cost),
            each_replica=[ReplicaAnswer.of(each, slot=each.row.slot, state=each.row.state) for each in found.replicas],
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
        "errors": found.errors, "created": row.created_at, "created_by": row.created_by,
    }  # fmt: skip


def _revision(found: RevisionShown) -> RevisionAnswer:
    return RevisionAnswer.of(
        found.row, serving=found.serving, replicas=found.living, created=found.row.created_at, gpu_seconds=found.gpu_seconds,
        cost=money(found.cost), requests=found.requests,
        price_per_thousand=money(found.price) if found.price is not None else None,
    )  # fmt: skip


def _rollout(row: Rollout) -> RolloutAnswer:
    return RolloutAnswer.of(
        row, from_=row.from_revision.number if row.from_revision else None, to=row.to_revision.number,
        model=row.to_revision.model, created=row.created_at, finished=row.finished_at,
    )  # fmt: skip


def _stats(found: Stats) -> ServiceStatsDocument:
    return ServiceStatsDocument(
        since=found.since,
        until=found.until,
        minutes=[
            ServiceMinuteAnswer.of(
                each.counted, minute=each.at, revision=each.revision, mirrored=each.mirrored, **_latency(each.counted)
            )
            for each in found.minutes
        ],
        sums=[
            ServiceSumAnswer.of(counted, revision=number, mirrored=mirrored, **_latency(counted))
            for (number, mirrored), counted in found.sums.items()
        ],
    )


def _latency(found: Counted) -> dict[str, float | None]:
    return {"p50_ms": found.p50, "p95_ms": found.p95, "p99_ms": found.p99}


def _drift(row: RevisionDrift) -> dict[str, Any]:
    return ServiceDriftAnswer.of(row, revision=row.revision.number, model=row.revision.model).json_value()


def _preview(found: Preview) -> dict[str, Any]:
    return ServicePreviewDocument.of(
        found,
        model=f"{found.version.model.name}/{found.version.number}",
        message=found.sentence,
        choices=[ServiceChoiceAnswer.of(each, message=each.sentence) for each in found.choices],
        cost_per_hour=money(found.cost.per_hour),
    ).json_value()


def _times(row: ServiceToken) -> dict[str, Any]:
    return {"created": row.created_at, "expires": row.expires_at, "used": row.used_at}


AllServices = all_view(SERVICES, ServicePage, _page)
AppcodeServices, OneService = object_views(
    SERVICES, ServiceManifest, ServiceDocument, ServicePage,
    render=_document, listing=_page, example=EXAMPLE,
    create=actions.create_service, change=actions.change_service, delete=actions.delete_service,
    texts={
        "create": "Create a service and start its first revision\n\n"
        "The name of a deleted one brings its address back, and its numbers go on; its tokens are gone.",
        "read": "A service: its replicas, revisions, rollouts and what they cost",
        "change": "Replace the definition\n\n"
        "What changes its replicas is rolled out, of the version that answers; a changed number of them is "
        "only scaled. Sending what is there already changes nothing.",
        "delete": "Delete a service with its replicas and tokens\n\n"
        "They end at once; requests in flight are lost. Its address stays its own, for one of the same name.",
    },
)  # fmt: skip
KIND = Kind("services", service_for, ServiceDocument, _document)
