"""REST of dashboards: sums over time, utilisation, waste, what does not fit, and a segment with what is behind it."""

from __future__ import annotations

import datetime as dt

from django.http import Http404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing import periods
from billing.dashboards import reconciliation
from billing.dashboards.serializers import (
    CorrectionPage,
    IdleTaskPage,
    QuarantinedPage,
    ReconciliationDocument,
    SegmentDocument,
    SegmentPage,
    SpendingDocument,
    UtilisationDocument,
    WasteCasePage,
    WasteDocument,
    correction,
    idle_task,
    quarantined,
    reconciliation_document,
    segment_document,
    segment_summary,
    spending_document,
    utilisation_document,
    waste_case,
    waste_document,
)
from billing.efficiency import capacity, measured, waste
from billing.ledger.models import GROUPS, Group, LedgerEntry
from billing.metering.models import Observation, UsageSegment
from billing.metering.segments import floor
from billing.periods import STEPS, Range
from billing.sums import makeup, over_time
from billing.sums.over_time import Dashboard
from portal.access import appcodes_for, require_administrator
from portal.api.pagination import PAGE_PARAMETERS, page, page_of_sums, text
from portal.api.views import person
from portal.errors import Invalid

DAYS = [
    OpenApiParameter("from", OpenApiTypes.DATE, description="The first day (UTC). Default: 30 days ago."),
    OpenApiParameter("to", OpenApiTypes.DATE, description="The last day, which counts as a whole. Default: today."),
    OpenApiParameter("columns", str, enum=STEPS, description="Default: days, or months when there are many."),
    OpenApiParameter("appcode", str, description="Only of this appcode."),
]
NARROW: tuple[Group, ...] = ("line", "user", "model", "framework", "cluster")


class Scope:
    """The days and the appcodes that a request asks for. Raises Invalid, and Http404 for an appcode that is not theirs."""

    def __init__(self, request: Request) -> None:
        self.now: dt.datetime = floor(timezone.now())
        self.user = person(request)
        since, until, step = (text(request, name, longest=20) for name in ("from", "to", "columns"))
        self.range: Range = periods.parse_days(since, until, step, self.now.date())
        self.names = {str(pk): code for pk, code in appcodes_for(self.user).order_by().values_list("pk", "code")}
        code = text(request, "appcode", longest=63)
        chosen = [int(pk) for pk, name in self.names.items() if code in ("", name)]
        if code and code not in self.names.values():
            raise Http404(f"There is no appcode “{code}” that you can see.")
        everything = self.user.is_administrator and not code
        self.appcodes = None if everything else sorted(chosen)

    def read(self, by: Group, where: dict[Group, str]) -> Dashboard:
        return over_time.read(self.range, by, self.now, appcodes=self.appcodes, where=where)


def _narrowed(request: Request) -> dict[Group, str]:
    return {group: text(request, group, longest=200) for group in NARROW if group in request.query_params}


class Spending(APIView):
    @extend_schema(
        operation_id="dashboard_spending",
        summary="GPU-seconds and cost over time by business line, appcode, person, GPU model, framework or cluster",
        description="Of all appcodes that I may see, exact to the second, what still runs included.",
        parameters=[
            *DAYS,
            OpenApiParameter("by", str, enum=GROUPS, description="Default: appcode."),
            *(OpenApiParameter(group, str, description="Only of this value.") for group in NARROW),
        ],
        responses=SpendingDocument,
    )
    def get(self, request: Request) -> Response:
        scope = Scope(request)
        by = text(request, "by", longest=20) or "appcode"
        if by not in GROUPS:
            raise Invalid.at("by", message=f"Choose one of {', '.join(GROUPS)}.")
        where = _narrowed(request)
        found, parts = scope.read(by, where), None
        if where.keys() == {"line"}:
            parts = makeup.parts(scope.now, window=scope.range.window, appcodes=scope.appcodes, line=where["line"])
        return Response(spending_document(found, by, scope.names, parts))


class Utilisation(APIView):
    @extend_schema(
        operation_id="dashboard_utilisation",
        summary="GPU-seconds held of those that were there, by GPU model, and how idle they were while held",
        description="What was there is known from the moment on in which the portal followed a cloud.",
        parameters=DAYS,
        responses=UtilisationDocument,
    )
    def get(self, request: Request) -> Response:
        scope = Scope(request)
        there = capacity.available(scope.range, scope.now)
        found = scope.read("model", {})
        shares = capacity.shares(found.by_group, there)
        looked = measured.by_model(scope.range, appcodes=scope.appcodes)
        busy = measured.busy(found.by_group, looked, looked, None)
        total = capacity.total(share for column in shares.values() for share in column.values())
        return Response(utilisation_document(scope.range, scope.now, total, shares, there, looked, busy))


class WasteOverTime(APIView):
    @extend_schema(
        operation_id="dashboard_waste",
        summary="What was held for nothing: failed runs, parameter servers that outlived their workers, GPUs that waited",
        description="By the time at which a run ended; reckoned within a minute or two after that. GPUs that were held idle "
        "stand apart, as far as it was measured how busy they were; hours older than PORTAL_MEASURED_DAYS (396) are not known "
        "any more and missing, which `idle.knownSince` says.",
        parameters=DAYS,
        responses=WasteDocument,
    )
    def get(self, request: Request) -> Response:
        scope = Scope(request)
        found = waste.report(scope.range, scope.now, appcodes=scope.appcodes)
        idle = measured.idle(scope.range, appcodes=scope.appcodes)
        return Response(waste_document(scope.range, scope.now, found, idle, scope.names))


class Reconciliation(APIView):
    @extend_schema(
        operation_id="dashboard_reconciliation",
        summary="Pods without an end, mended times, corrections of the ledger, and sightings that nobody understood",
        parameters=DAYS,
        responses=ReconciliationDocument,
    )
    def get(self, request: Request) -> Response:
        scope = Scope(request)
        administrator = scope.user.is_administrator
        found = reconciliation.report(scope.range, scope.now, appcodes=scope.appcodes, quarantine=administrator)
        return Response(reconciliation_document(scope.range, scope.now, found, scope.names))


class WasteCases(APIView):
    @extend_schema(
        operation_id="dashboard_waste_cases",
        summary="Every case of waste: failed runs, parameter servers that outlived their workers, GPUs that waited",
        parameters=[*DAYS, *PAGE_PARAMETERS],
        responses=WasteCasePage,
    )
    def get(self, request: Request) -> Response:
        scope = Scope(request)
        rows = waste.cases(scope.range, appcodes=scope.appcodes)
        return page(request, rows, order="-id", render=lambda row: waste_case(row).json_value())


class IdleTasks(APIView):
    @extend_schema(
        operation_id="dashboard_waste_idle",
        summary="Every task whose GPUs were held idle, as far as that was measured",
        parameters=[*DAYS, *PAGE_PARAMETERS],
        responses=IdleTaskPage,
    )
    def get(self, request: Request) -> Response:
        scope = Scope(request)
        return page_of_sums(
            request,
            lambda before, most: measured.idle_tasks_before(scope.range, before, most, appcodes=scope.appcodes),
            number_of=lambda each: each.segment_id,
            render=lambda each: idle_task(each, scope.names).json_value(),
        )


class WithoutEnd(APIView):
    @extend_schema(
        operation_id="reconciliation_without_end",
        summary="Every pod that still holds its resources although its run is over",
        parameters=[DAYS[3], *PAGE_PARAMETERS],
        responses=SegmentPage,
    )
    def get(self, request: Request) -> Response:
        scope = Scope(request)
        rows = reconciliation.endless(scope.now, scope.appcodes)
        return page(request, rows, order="id", render=lambda row: segment_summary(row).json_value())


class Flagged(APIView):
    @extend_schema(
        operation_id="reconciliation_flagged",
        summary="Every segment with a time that had to be mended",
        parameters=[*DAYS, *PAGE_PARAMETERS],
        responses=SegmentPage,
    )
    def get(self, request: Request) -> Response:
        scope = Scope(request)
        rows = reconciliation.flagged(scope.range, scope.appcodes)
        return page(request, rows, order="-id", render=lambda row: segment_summary(row).json_value())


class Corrections(APIView):
    @extend_schema(
        operation_id="reconciliation_corrections",
        summary="Everything that the ledger took back, and what it charged instead",
        parameters=[*DAYS, *PAGE_PARAMETERS],
        responses=CorrectionPage,
    )
    def get(self, request: Request) -> Response:
        scope = Scope(request)
        return page_of_sums(
            request,
            lambda before, most: list(
                reconciliation.corrections(scope.range, scope.appcodes, before=before, most=most)
            ),
            number_of=lambda each: each.number,
            render=lambda each: correction(each, scope.names).json_value(),
        )


class Quarantine(APIView):
    @extend_schema(
        operation_id="reconciliation_quarantine",
        summary="Every sighting that nobody has understood yet; administrators only",
        parameters=PAGE_PARAMETERS,
        responses=QuarantinedPage,
    )
    def get(self, request: Request) -> Response:
        require_administrator(person(request))
        rows = reconciliation.quarantined()
        return page(request, rows, order="-id", render=lambda row: quarantined(row).json_value())


class OneSegment(APIView):
    @extend_schema(
        operation_id="segments_read",
        summary="One segment with every sighting behind it and every line of the ledger that follows from it",
        responses=SegmentDocument,
    )
    def get(self, request: Request, pk: int) -> Response:
        row = (
            UsageSegment.objects.select_related("appcode")
            .filter(pk=pk, appcode__in=appcodes_for(person(request)))
            .first()
        )
        if row is None:
            raise Http404("There is no such segment.")
        seen = list(Observation.objects.filter(uid=row.uid).order_by("seen_at", "pk"))
        lines = list(LedgerEntry.objects.filter(segment=row).order_by("pk"))
        looked = measured.of_pods([row.uid]).get(row.uid, measured.Measured())
        return Response(segment_document(row, seen, lines, looked, timezone.now()))
